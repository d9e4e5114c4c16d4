"""`holdfast flows`."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import click

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.actor import actor
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.flow_files import FlowFile, compiled, file_json, report_mistakes
from holdfast.cli.flow_program import numbered
from holdfast.cli.flow_trial import check_input, parse_arrivals, parse_stubs, report_trial
from holdfast.cli.group import group
from holdfast.cli.lookup import store_now
from holdfast.cli.output import Output, cleaned
from holdfast.cli.payloads import parse_object
from holdfast.cli.session import in_session
from holdfast.cli.table import Cell, Line, Table
from holdfast.cli.times import ago, stamp
from holdfast.core.clock import SystemClock
from holdfast.engine.flows import VERSION_SHOWN, FlowInfo


@group("flows")
def command() -> None:
    """Flows: workflows whose program is text in the store. These commands never import your application."""


# Files


@holdfast_command(
    "check",
    "holdfast flows check access.request.v1.py",
    "holdfast flows check flows/*.py --json",
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def check(out: Output, files: Sequence[str]) -> ExitCode:
    """Compile files and print all mistakes, each with its place and what to write instead.

    It needs no store. The exit code is 1 if a file has a mistake.
    """
    found = [compiled(name) for name in files]
    if out.is_json:
        out.items([file_json(file) for file in found])
    for file in found:
        if file.refused is not None and not out.is_json:
            report_mistakes(out, file)
        elif file.program is not None:
            out.talk(f"{cleaned(file.name)}: a flow, version {file.program.version[:VERSION_SHOWN]}")
    return ExitCode.FAILED if any(file.refused is not None for file in found) else ExitCode.OK


@holdfast_command(
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
    from holdfast.flows import play

    found = compiled(file)
    if found.program is None:
        return _refused(out, found)
    now = SystemClock().now()
    arrivals = [
        *parse_arrivals(messages, "--message", now, is_event=False),
        *parse_arrivals(events, "--event", now, is_event=True),
    ]
    text = check_input(parse_object([] if payload is None else [payload]))
    played = play(found.program, found.source, text, parse_stubs(stubs, failures), arrivals=arrivals, now=now)
    return report_trial(out, played, now, has_trace=trace)


def _refused(out: Output, file: FlowFile) -> ExitCode:
    if out.is_json:
        out.item(file_json(file))
    else:
        report_mistakes(out, file)
    return ExitCode.FAILED


# The store


@holdfast_command(
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
    found = compiled(file)
    if found.program is None:
        return _refused(out, found)

    async def work(hf: Holdfast) -> ExitCode:
        flow = await hf.flows.register(Path(file), type=type_ or found.type, by=actor() if by is None else by)
        name = f"{cleaned(flow.type)} version {flow.version[:VERSION_SHOWN]}"
        out.answer(flow, f"registered {name}" if flow.is_new else f"{name} was registered already; nothing changed")
        return ExitCode.OK

    return in_session(out.settings, work, may_create=True)


@holdfast_command("ls", "holdfast flows ls", "holdfast flows ls access.request.v1", "holdfast flows ls 'access.*'")
@click.argument("type_", metavar="[TYPE]", required=False, shell_complete=completing.types)
def ls(out: Output, type_: str | None) -> None:
    """List the flows with their newest version, or all versions of a TYPE. TYPE may be a family such as 'access.*'."""

    async def work(hf: Holdfast) -> None:
        known = await hf.flows.list(type_)
        is_one = type_ is not None and not type_.endswith("*")
        shown = [flow for flow in known if is_one or flow.is_newest]
        counts = None if is_one else Counter(flow.type for flow in known)
        of = "" if type_ is None else f" of {cleaned(type_)}"
        nothing = f"there are no flows{of}; `holdfast flows register FILE` registers one"
        out.listing(shown, _table(shown, counts, await store_now(hf)), nothing)

    in_session(out.settings, work)


@holdfast_command(
    "show", "holdfast flows show access.request.v1", "holdfast flows show access.request.v1 --version 78a1"
)
@click.argument("type_", metavar="TYPE", shell_complete=completing.types)
@click.option("--version", metavar="V", help="The beginning of a version.  [default: the newest]")
def show(out: Output, type_: str, version: str | None) -> None:
    """Print the program of a flow. Redirected to a file, it is exactly the text that was registered."""

    async def work(hf: Holdfast) -> None:
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

    in_session(out.settings, work)


@holdfast_command(
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
    file = compiled(what) if is_file else None
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
    command.add_command(one)


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
    out.lines(_coloured(lines))
    if old.version == version:
        out.talk("the meaning is the same" if lines else "they are the same")


def _coloured(lines: Sequence[str]) -> Iterator[Line]:
    for line in lines:
        style = "dim" if line.startswith(("---", "+++", "@@")) else {"+": "good", "-": "bad"}.get(line[:1], "")
        yield ((cleaned(line), style),)
