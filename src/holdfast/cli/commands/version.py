"""`holdfast version`."""

from __future__ import annotations

import platform

from holdfast import __version__
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.output import Output


@holdfast_command(
    "version",
    "holdfast version --json",
)
def command(out: Output) -> None:
    """Print the version."""
    if out.is_json:
        out.item({"holdfast": __version__, "python": platform.python_version(), "platform": platform.platform()})
    else:
        out.line(f"holdfast {__version__}")
        out.line((f"Python {platform.python_version()} on {platform.platform()}", "dim"))
