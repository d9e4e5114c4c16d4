"""One turn of one run, without I/O: the deterministic loop, what workflow code sees, and what a turn gained.

The worker drives it: facts go in, a checkpoint and the steps to execute come out.
Start with `turn`; `loop` is the event loop that workflow code lives on, `context` what it is given.
"""
