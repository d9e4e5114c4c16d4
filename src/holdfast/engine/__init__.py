"""The producers' door: start runs, look at them, send to them, control them. Needs no worker and no workflow code.

Start with `engine`; `handle` is what a started run looks like. Only `app` builds one.
"""
