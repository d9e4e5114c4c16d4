"""The words and rules of holdfast: values, states and pure decisions.

Everything may import core; core imports nothing of holdfast above it and does no I/O.
Start with `model` (what exists), then `checkpoint` (what a turn gained) and `rules` (what follows).
"""
