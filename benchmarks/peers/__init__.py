"""The engines that are compared: each module is a driver that runs inside its engine's own environment.

Start with `driver`, the protocol between the coordinator (`benchmarks.versus`) and the drivers. A driver imports its
engine, `driver` and the standard library, nothing else: the environment of a peer contains no holdfast.
"""
