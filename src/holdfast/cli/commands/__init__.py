"""One module for each command, under its name; each defines `command`."""
