"""The API reference, `docs/reference`, made from the signatures and docstrings of the public names.

`make reference` writes it. `pages` says which name is on which page, `declarations` reads the source, `signatures` and
`prose` make it readable, `entries` and `pages` make Markdown of it.
"""
