"""The command line: parses, renders, and decides nothing about runs.

`main` is the entry point and stays light: each module of `commands` is one command, imported when it is
called. `render` is what `--json` promises, `output` how things are written, `exits` what exit codes mean.
"""
