"""Tools for tests: of workflows that use holdfast, and of stores that holdfast uses.

Nothing in holdfast imports this package, and pytest is imported only inside it.
Start with `contract`, the suite that every store is put to.
"""
