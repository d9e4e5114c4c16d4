"""The benchmark of `holdfast bench`: its measures, the scratch store on which they run, and the report.

The wheel of holdfast contains this package, so that the command works wherever holdfast is installed.
"""
