"""Small programs that use holdfast the way an application would. Each runs by itself: `python -m examples.checkout`.

They keep their runs in `$HOLDFAST_URL`, else in `holdfast.db` of the current directory. Each has an `hf`, so
`holdfast worker examples.checkout:hf` executes its workflows in another process.
"""
