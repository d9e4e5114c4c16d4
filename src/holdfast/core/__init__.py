"""The core of holdfast: values, states and pure decisions.

Every package may import core. Core imports no other package of holdfast and does no I/O.
Start with `model` (the values), then `checkpoint` (what a turn writes) and `rules` (the decisions).
"""
