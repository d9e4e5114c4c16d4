"""Small programs that use holdfast as an application would. Each one runs alone: `python -m examples.checkout`.

The runs are stored in `$HOLDFAST_URL`, or in `holdfast.db` in the current directory if the variable is not set. Each
example defines `hf`, so `holdfast worker examples.checkout:hf` executes its workflows in another process.
"""
