"""One module for each group of commands; `cli.main` says which. A command is a function with its name."""
