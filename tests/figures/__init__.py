"""Figures with a time limit, measured by pytest: `make figures` runs these files, and no tier of the tests does.

Each prints its result in a line that begins with `figure:`, and fails if that is above the limit. Tests prove the rules
behind them on a virtual clock, or by the order of events.
"""
