"""The demo of `holdfast demo`: an application, its worker processes, and the two acts of the demo.

The wheel of holdfast contains this package, so that the command works wherever holdfast is installed.
"""
