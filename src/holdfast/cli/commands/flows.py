"""Commands for flows: `holdfast flows`.

They compile files, report mistakes like a compiler, try flows out without a store, and register and compare versions.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, assert_never

import click

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.command import command, group, store_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.output import Cell, Output, Table, ago, cleaned, spoken, stamp
from holdfast.cli.payloads import parse_json, parse_object, parse_pair, read_text
from holdfast.cli.session import actor, in_session, store_now
from holdfast.cli.view import error_lines, numbered
from holdfast.core.clock import SECOND, Micros, SystemClock, moment
from holdfast.core.errors import FlowRefused
from holdfast.engine.namespaces import VERSION_SHOWN, FlowInfo
from holdfast.flows.compiler import compile_flow
from holdfast.flows.play import Played, PlayedArrival, StubError, StubSequence, play
from holdfast.flows.program import Program
from holdfast.flows.requests import Continued, FlowRaised, FlowReturned

_ENDINGS = (".py", ".flow")


@group("flows")
def flows() -> None:
    """Flows: workflows whose program is text in the store. These commands never import your application."""


# Files


@command("check", "holdfast flows check access.request.v1.py", "holdfast flows check flows/*.py --json")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def check(out: Output, files: Sequence[str]) -> ExitCode:
    """Compile files and print all mistakes, each with its place and what to write instead.

    It needs no store. The exit code is 1 if a file has a mistake.
    """
    found = [_compiled(name) for name in files]
    if out.is_json:
        out.items([_file_json(file) for file in found])
    for file in found:
        if file.refused is not None and not out.is_json:
            _report_mistakes(out, file)
        elif file.program is not None:
            out.talk(f"{cleaned(file.name)}: a flow, version {file.program.version[:VERSION_SHOWN]}")
    return ExitCode.FAILED if any(file.refused is not None for file in found) else ExitCode.OK


class _FlowFile(NamedTuple):
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


def _compiled(name: str) -> _FlowFile:
    """Read and compile a file."""
    source = read_text(name, "the flow")
    try:
        return _FlowFile(name, source, compile_flow(source), None)
    except FlowRefused as refused:
        return _FlowFile(name, source, None, refused)


def _file_json(file: _FlowFile) -> dict[str, Any]:
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


def _report_mistakes(out: Output, file: _FlowFile) -> None:
    """Write the mistakes of a file to stdout: place and message, the source line with a caret, and the advice."""
    assert file.refused is not None
    lines = file.source.split("\n")
    for mistake in file.refused.mistakes:
        text = lines[mistake.line - 1] if 0 < mistake.line <= len(lines) else ""
        out.line(
            (f"{cleaned(file.name)}:{mistake.line}:{mistake.column}: ", "title"), (cleaned(mistake.message), "bad")
        )
        if text.strip():
            indent = len(text) - len(text.lstrip())
            out.line(f"    {cleaned(text.strip())[:200]}")
            out.line((f"    {' ' * max(0, mistake.column - 1 - indent)}^", "bad"))
        out.line((f"    {cleaned(mistake.advice)}", "dim"))
    if (more := file.refused.total - len(file.refused.mistakes)) > 0:
        out.line(f"{cleaned(file.name)}: and {more} more")


def _refused(out: Output, file: _FlowFile) -> ExitCode:
    if out.is_json:
        out.item(_file_json(file))
    else:
        _report_mistakes(out, file)
    return ExitCode.FAILED


# Trials


@command(
    "run",
    'holdfast flows run greet.v1.py --input \'{"name": "zoe"}\' --stub mail.v1=1',
    "holdfast flows run access.request.v1.py --message 'decision={\"approved\": true}@60' --trace",
)
@click.argument("file", metavar="FILE")
@click.option("--input", "payload", metavar="JSON", help="The payload: JSON, @file, or - for stdin.  [default: {}]")
@click.option(
    "--stub", "stubs", multiple=True, metavar="TYPE=JSON", help="The result of calls of a type; repeat it for the next."
)
@click.option("--fail", "failures", multiple=True, metavar="TYPE=MESSAGE", help="Let calls of a type fail.")
@click.option(
    "--message", "messages", multiple=True, metavar="NAME=JSON[@SECONDS]", help="A message that arrives; repeatable."
)
@click.option(
    "--event", "events", multiple=True, metavar="TOPIC=JSON[@SECONDS]", help="An event that arrives; repeatable."
)
@click.option("--trace", is_flag=True, help="Print what the flow asks for and what happens, line by line.")
def run(
    out: Output,
    file: str,
    *,
    payload: str | None,
    stubs: Sequence[str],
    failures: Sequence[str],
    messages: Sequence[str],
    events: Sequence[str],
    trace: bool,
) -> ExitCode:
    """Try a flow on a virtual clock, without a store, and print its result.

    Calls are answered by stubs at once, and time jumps to the next deadline or arrival. SECONDS counts from the start;
    without it, a message or event arrives as soon as the flow waits for it. The exit code is 10 if the flow fails, 12
    if it waits for something that never comes, and 1 if the file has mistakes.
    """
    found = _compiled(file)
    if found.program is None:
        return _refused(out, found)
    now = SystemClock().now()
    arrivals = [
        *_parse_arrivals(messages, "--message", now, is_event=False),
        *_parse_arrivals(events, "--event", now, is_event=True),
    ]
    text = json.dumps(parse_object([] if payload is None else [payload]))
    played = play(found.program, found.source, text, _parse_stubs(stubs, failures), arrivals=arrivals, now=now)
    return _report_trial(out, played, now, has_trace=trace)


def _parse_stubs(stubs: Sequence[str], failures: Sequence[str]) -> dict[str, Any]:
    """Parse `TYPE=JSON`, where a repeated type answers in this order, and `TYPE=MESSAGE` of calls that fail."""
    answers: dict[str, list[Any]] = {}
    for text in stubs:
        type, value = parse_pair(text, "--stub")
        answers.setdefault(type, []).append(parse_json(value, f"the stub of {type}", '; write a string as "text"'))
    for text in failures:
        type, message = parse_pair(text, "--fail")
        answers.setdefault(type, []).append(StubError(message=message))
    return {type: given[0] if len(given) == 1 else StubSequence(tuple(given)) for type, given in answers.items()}


def _parse_arrivals(texts: Iterable[str], option: str, now: Micros, *, is_event: bool) -> list[PlayedArrival]:
    """Parse `NAME=JSON` or `NAME=JSON@SECONDS`. Without seconds, it arrives when the flow waits for it."""
    found = []
    for text in texts:
        name, rest = parse_pair(text, option)
        value, mark, seconds = rest.rpartition("@")
        at = None
        if mark and _is_number(seconds) and _is_json(value):
            at, rest = now + round(float(seconds) * SECOND), value
        payload = parse_json(rest, f"the payload of {name}", '; write a string as "text"')
        found.append(PlayedArrival(name, payload, at, is_event=is_event))
    return found


def _is_number(text: str) -> bool:
    whole, _, rest = text.partition(".")
    return whole.isdecimal() and (not rest or rest.isdecimal())


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _report_trial(out: Output, played: Played, began: Micros, *, has_trace: bool) -> ExitCode:
    """Write how a trial ended. Returns its exit code."""
    outcome = played.outcome
    if outcome is None:
        code = ExitCode.STILL_GOING
    else:
        code = ExitCode.RUN_FAILED if isinstance(outcome, FlowRaised) else ExitCode.OK
    if out.is_json:
        out.item(_trial_json(played, began))
        return code
    if has_trace:
        out.lines((cleaned(line),) for line in played.trace)
    took = f"after {spoken(moment(played.now) - moment(began))}, {played.instructions:,} instructions"
    match outcome:
        case FlowReturned(result):
            out.line(cleaned(result))
            out.talk(f"returned {took}")
        case FlowRaised(error):
            out.talk(f"failed {took}")
            out.lines(error_lines(error, is_verbose=True))
        case Continued(payload):
            out.line(cleaned(payload))
            out.talk(f"continued as new with this payload {took}")
        case None:
            what = "; ".join(map(cleaned, played.waits))
            out.talk(f"still waits {took}: {what or 'it made too many steps'}")
            out.talk("pass what it waits for with --message or --event")
        case _:
            assert_never(outcome)
    return code


def _trial_json(played: Played, began: Micros) -> dict[str, Any]:
    words = {FlowReturned: "returned", FlowRaised: "failed", Continued: "continued"}
    outcome = played.outcome
    return {
        "outcome": None if outcome is None else words[type(outcome)],
        "result": json.loads(outcome.result) if isinstance(outcome, FlowReturned) else None,
        "payload": json.loads(outcome.payload) if isinstance(outcome, Continued) else None,
        "error": played.error,
        "waits": list(played.waits),
        "seconds": (played.now - began) / SECOND,
        "instructions": played.instructions,
        "trace": list(played.trace),
    }


# The store


@command(
    "register",
    "holdfast flows register access.request.v1.py",
    "holdfast flows register request.py --type access.request.v1 --by ada",
)
@click.argument("file", metavar="FILE")
@click.option("--type", "type_", metavar="TYPE", help="The type of its runs.  [default: the file name without .py]")
@click.option("--by", metavar="NAME", help="Who registers it.  [default: cli: and your login]")
def register(out: Output, file: str, *, type_: str | None, by: str | None) -> ExitCode:
    """Register a flow: new runs of its type execute this version. Runs that exist keep theirs.

    Registering the newest version again changes nothing. The exit code is 1 if the file has mistakes.
    """
    found = _compiled(file)
    if found.program is None:
        return _refused(out, found)

    async def work(hf: Holdfast) -> ExitCode:
        flow = await hf.flows.register(Path(file), type=type_ or found.type, by=actor() if by is None else by)
        name = f"{cleaned(flow.type)} version {flow.version[:VERSION_SHOWN]}"
        out.answer(flow, f"registered {name}" if flow.is_new else f"{name} was registered already; nothing changed")
        return ExitCode.OK

    return in_session(out.settings, work, may_create=True)


@store_command("ls", "holdfast flows ls", "holdfast flows ls access.request.v1", "holdfast flows ls 'access.*'")
@click.argument("type_", metavar="[TYPE]", required=False, shell_complete=completing.types)
async def ls(out: Output, hf: Holdfast, type_: str | None) -> None:
    """List the flows with their newest version, or all versions of a TYPE. TYPE may be a family such as 'access.*'."""
    known = await hf.flows.list(type_)
    is_one = type_ is not None and not type_.endswith("*")
    shown = [flow for flow in known if is_one or flow.is_newest]
    counts = None if is_one else Counter(flow.type for flow in known)
    of = "" if type_ is None else f" of {cleaned(type_)}"
    nothing = f"there are no flows{of}; `holdfast flows register FILE` registers one"
    out.listing(shown, _table(shown, counts, await store_now(hf)), nothing)


@store_command("show", "holdfast flows show access.request.v1", "holdfast flows show access.request.v1 --version 78a1")
@click.argument("type_", metavar="TYPE", shell_complete=completing.types)
@click.option("--version", metavar="V", help="The beginning of a version.  [default: the newest]")
async def show(out: Output, hf: Holdfast, type_: str, version: str | None) -> None:
    """Print the program of a flow. Redirected to a file, it is exactly the text that was registered."""
    flow = await hf.flows.get(type_, version)
    if out.is_json:
        out.item(flow)
        return
    out.talk(f"{cleaned(flow.type)} version {flow.version}{' (newest)' if flow.is_newest else ''}")
    out.talk(f"registered {stamp(flow.registered_at)}{f' by {cleaned(flow.by)}' if flow.by else ''}")
    if out.is_rich:
        out.lines(numbered(flow.source, {}))
    else:
        click.echo(flow.source, nl=not flow.source.endswith("\n"))


@command(
    "diff",
    "holdfast flows diff access.request.v1 78a1",
    "holdfast flows diff access.request.v1 78a1 9c20",
    "holdfast flows diff access.request.v1.py",
)
@click.argument("what", metavar="TYPE|FILE", shell_complete=completing.types)
@click.argument("versions", nargs=-1, metavar="[V1 [V2]]")
@click.option("--type", "type_", metavar="TYPE", help="The type of FILE.  [default: its name without .py]")
def diff(out: Output, what: str, versions: Sequence[str], type_: str | None) -> ExitCode:
    """Compare two versions of a flow, or its newest version with a FILE that is not registered yet.

    V2 is the newest version by default. The exit code is 0 even if they differ; --json says if the meaning is the same.
    """
    is_file = Path(what).is_file()
    if len(versions) > (1 if is_file else 2) or not (versions or is_file):
        raise Refusal("compare TYPE V1 [V2], or FILE, or FILE V1")
    file = _compiled(what) if is_file else None
    if file is not None and file.program is None:
        return _refused(out, file)

    async def work(hf: Holdfast) -> ExitCode:
        name = type_ or (what if file is None else file.type)
        old = await hf.flows.get(name, versions[0] if versions else None)
        if file is not None and file.program is not None:
            _write_diff(out, old, cleaned(file.name), file.source, file.program.version)
        else:
            new = await hf.flows.get(name, versions[1] if len(versions) > 1 else None)
            _write_diff(out, old, f"{new.type} {new.version[:VERSION_SHOWN]}", new.source, new.version)
        return ExitCode.OK

    return in_session(out.settings, work)


for one in (check, register, ls, show, diff, run):
    flows.add_command(one)


# Output


def _table(flows: Sequence[FlowInfo], counts: Counter[str] | None, now: datetime) -> Table:
    """Return a row for each flow. `counts` are the numbers of registrations by type; None lists versions of one."""
    rows: list[dict[str, Cell]] = [
        {
            "type": cleaned(flow.type),
            "version": flow.version[:VERSION_SHOWN],
            **(
                {"versions": str(counts[flow.type])}
                if counts
                else {"newest": ("yes", "good") if flow.is_newest else ""}
            ),
            "registered": (ago(flow.registered_at, now), "dim"),
            "by": cleaned(flow.by),
            "description": cleaned(flow.description),
        }
        for flow in flows
    ]
    return Table.of(rows, numbers=("versions",), cut="description")


def _write_diff(out: Output, old: FlowInfo, name: str, source: str, version: str) -> None:
    old_name = f"{cleaned(old.type)} {old.version[:VERSION_SHOWN]}"
    lines = list(difflib.unified_diff(old.source.splitlines(), source.splitlines(), old_name, name, lineterm=""))
    if out.is_json:
        out.item({"old": old.version, "new": version, "is_same": old.version == version, "diff": lines})
        return
    for line in lines:
        style = "dim" if line.startswith(("---", "+++", "@@")) else {"+": "good", "-": "bad"}.get(line[:1], "")
        out.line((cleaned(line), style))
    if old.version == version:
        out.talk("the meaning is the same" if lines else "they are the same")
