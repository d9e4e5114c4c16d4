"""Runs in namespaces of their own: the drivers, the layout, refusals, and a world of runs with crashes at any call."""
