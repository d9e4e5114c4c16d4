"""Flows: workflows as data. This package is the pure core of their language.

It compiles the text of a flow into a `Program`, and executes a program on a `Machine` whose state is one JSON document.
It does no I/O and knows no store. Every package above may import it. Start with `grammar` (what is allowed), then
`compiler` (text to program) and `machine` (program to requests).
"""
