"""Stores keep runs safely. Each implements the port in `core.ports` and decides nothing `core.rules` decides.

Only `app` imports a store, and by name: no driver is loaded before its URL is used.
Start with `memory`, which is written for reading; every other store must answer exactly like it.
"""
