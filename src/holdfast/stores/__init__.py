"""Stores: the durable backends that keep runs safe.

Each store implements the port in `core.ports`. It makes no decision that `core.rules` makes.
Only `app` imports a store, and by name, so no driver is loaded before its URL is used.
Start with `memory`, which is written for reading. Every other store must answer exactly like it.
"""
