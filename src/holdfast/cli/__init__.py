"""The command line: it parses and renders, and contains no rules about runs.

`main` is the entry point and stays light: a module of `commands` has a group of commands, and is
imported when one of them is called.
`output` writes text and JSON, `exits` defines the exit codes. The JSON of a record is that of `core.wire`.
"""
