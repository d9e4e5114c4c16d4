"""Files of flows: reads and compiles them, and reports their mistakes like a compiler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.cli.exits import Refusal
from holdfast.cli.output import Output, cleaned
from holdfast.cli.table import Line
from holdfast.core.errors import FlowRefused, Mistake
from holdfast.flows import Program, compile_flow

_ENDINGS = (".py", ".flow")


class FlowFile(NamedTuple):
    """The text of a file, and its program or the error that has its mistakes."""

    name: str
    source: str
    program: Program | None
    refused: FlowRefused | None

    @property
    def type(self) -> str:
        """The type under which it is registered by default: the name of the file without its ending."""
        name = Path(self.name).name
        return next((name.removesuffix(end) for end in _ENDINGS if name.endswith(end)), name)


def compiled(name: str) -> FlowFile:
    """Read and compile a file."""
    try:
        source = Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Refusal(f"there is no file {name!r}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Refusal(f"cannot read the flow {name!r}: {reason}") from error
    try:
        return FlowFile(name, source, compile_flow(source), None)
    except FlowRefused as refused:
        return FlowFile(name, source, None, refused)


def file_json(file: FlowFile) -> dict[str, Any]:
    """Return the result of a compilation as JSON."""
    program, refused = file.program, file.refused
    return {
        "file": file.name,
        "type": file.type,
        "version": None if program is None else program.version,
        "description": None if program is None else program.description,
        "mistakes": [] if refused is None else refused.mistakes,
        "total": 0 if refused is None else refused.total,
    }


def report_mistakes(out: Output, file: FlowFile) -> None:
    """Write the mistakes of a file to stdout: place and message, the source line with a caret, and the advice."""
    assert file.refused is not None
    lines = file.source.split("\n")
    for mistake in file.refused.mistakes:
        text = lines[mistake.line - 1] if 0 < mistake.line <= len(lines) else ""
        out.lines(_mistake_lines(file.name, mistake, text))
    if (more := file.refused.total - len(file.refused.mistakes)) > 0:
        out.line(f"{cleaned(file.name)}: and {more} more")


def _mistake_lines(name: str, mistake: Mistake, text: str) -> Iterator[Line]:
    place = f"{cleaned(name)}:{mistake.line}:{mistake.column}"
    yield (f"{place}: ", "title"), (cleaned(mistake.message), "bad")
    if text.strip():
        indent = len(text) - len(text.lstrip())
        shown = cleaned(text.strip())[:200]
        yield (f"    {shown}",)
        yield ((f"    {' ' * max(0, mistake.column - 1 - indent)}^", "bad"),)
    yield ((f"    {cleaned(mistake.advice)}", "dim"),)
