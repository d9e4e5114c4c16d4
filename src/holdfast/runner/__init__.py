"""One turn of one run, without I/O: the deterministic loop, the context, and the checkpoint of a turn.

The worker drives a turn: facts go in, a checkpoint and the steps to execute come out.
Start with `turn`. `loop` is the event loop of workflow code, and `context` is the object that the code gets.
"""
