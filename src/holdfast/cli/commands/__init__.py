"""One module for each command, with the name of the command; each defines `command`."""
