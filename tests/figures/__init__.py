"""Figures with a limit in time, measured by pytest: `make figures` runs these files, and no tier of the tests does.

Each prints what it has reached in a line that begins with `figure:`, and fails if that is more than the limit. Tests
prove the rules behind them on a virtual clock, or by the order of events.
"""
