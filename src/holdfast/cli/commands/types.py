"""`holdfast types`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.group import group
from holdfast.cli.lookup import store_now
from holdfast.cli.output import Output, cleaned
from holdfast.cli.plan import step_lines
from holdfast.cli.session import in_session
from holdfast.cli.table import Line, Table
from holdfast.cli.times import ago, spoken
from holdfast.core.intent import matches_type
from holdfast.core.length import parse_length
from holdfast.core.wire import plain_form
from holdfast.engine.store_info import TypeInfo, WorkerInfo

NONE = "none"
"""The word that removes a limit."""


@group("types")
def command() -> None:
    """The types of runs: their limits, their last worker, and whether they are enabled."""


@holdfast_command("ls", "holdfast types ls", "holdfast types ls 'billing.*' --json")
@click.argument("pattern", required=False)
def ls(out: Output, pattern: str | None) -> None:
    """List the types that have rules, runs or a worker."""

    async def work(hf: Holdfast) -> None:
        types = [one for one in await hf.types.list() if pattern is None or matches_type(one.name, pattern)]
        nothing = "there are no types yet; a worker registers its types when it starts"
        out.listing(types, _table(types, await store_now(hf)), nothing)

    in_session(out.settings, work)


@holdfast_command("show", "holdfast types show shop.signup.v1", "holdfast types show shop.signup.v1 --json")
@click.argument("name", metavar="TYPE")
def show(out: Output, name: str) -> None:
    """Show one type: its settings, its limits, its runs, the workers that execute it, and the steps of a pipeline."""

    async def work(hf: Holdfast) -> None:
        known = next((one for one in await hf.types.list() if one.name == name), None)
        if known is None:
            raise Refusal(f"there is no type {name}; `holdfast types ls` lists the types", ExitCode.NOT_FOUND)
        workers = [worker for worker in await hf.workers.list() if name in worker.types]
        if out.is_json:
            out.item({**plain_form(known), "workers": workers})
        else:
            out.lines(_lines(known, workers, await store_now(hf)))

    in_session(out.settings, work)


@holdfast_command("enable", "holdfast types enable billing.invoice.v1", "holdfast types enable 'billing.*'")
@click.argument("names", nargs=-1, required=True, metavar="TYPE...")
def enable(out: Output, names: Sequence[str]) -> ExitCode:
    """Let workers claim runs of these types again. TYPE may be a family such as 'billing.*'."""
    return _switch(out, names, enabled=True)


@holdfast_command("disable", "holdfast types disable billing.invoice.v1", "holdfast types disable 'billing.*'")
@click.argument("names", nargs=-1, required=True, metavar="TYPE...")
def disable(out: Output, names: Sequence[str]) -> ExitCode:
    """Stop all workers from claiming runs of these types. Runs that workers hold continue; new starts are accepted.

    TYPE may be a family such as 'billing.*', which means all types of the family that are known now.
    """
    return _switch(out, names, enabled=False)


@holdfast_command(
    "set",
    "holdfast types set billing.invoice.v1 --concurrency 5 --per-key tenant=2",
    "holdfast types set notify.email.v1 --rate 100/60s --retention 7d",
    "holdfast types set notify.email.v1 --rate none",
)
@click.argument("name", metavar="TYPE")
@click.option("--concurrency", metavar="N|none", help="Maximum number of runs at once.")
@click.option(
    "--per-key",
    multiple=True,
    metavar="TAG=N|none",
    help="Maximum number of runs at once with the same value of a tag; may be repeated.",
)
@click.option("--rate", metavar="N/TIME|none", help="Maximum number of runs that begin in any such time: 100/60s.")
@click.option("--retention", metavar="TIME|none", help="Keep runs for this time after their end, such as 30d.")
@click.option("--description", help="What the type is for.")
@click.option("--runtime", help="The language of its workers: python, go, …")
def set_rules(out: Output, name: str, **said: Any) -> None:
    """Limit or describe a type. The change applies to all workers at once.

    Options that are not given do not change; `none` removes a limit. --per-key replaces all limits by tag. Runs beyond
    a limit are parked, and continue in their order.
    """
    change = _change(**said)
    if not change:
        raise Refusal("nothing to set; give --concurrency, --per-key, --rate, --retention, --description or --runtime")

    async def work(hf: Holdfast) -> None:
        await hf.types.set(name, **change)
        (known,) = [one for one in await hf.types.list() if one.name == name]
        if out.is_json:
            out.item(known)
        else:
            out.line(f"{cleaned(name)}: {_limits(known) or 'no limits'}{_kept(known)}")
            _say_if_unseen(out, known)

    in_session(out.settings, work, may_create=True)


for one in (ls, show, enable, disable, set_rules):
    command.add_command(one)


def _switch(out: Output, names: Sequence[str], *, enabled: bool) -> ExitCode:
    async def work(hf: Holdfast) -> ExitCode:
        known = {one.name: one for one in await hf.types.list()}
        chosen: dict[str, None] = {}
        for name in names:
            found = [one for one in known if matches_type(one, name)] if name.endswith(".*") else [name]
            if not found:
                raise Refusal(f"no known type matches {name}; `holdfast types ls` lists the types", ExitCode.NOT_FOUND)
            chosen |= dict.fromkeys(found)
        for name in chosen:
            await hf.types.set(name, enabled=enabled)
        after = [one for one in await hf.types.list() if one.name in chosen]
        if out.is_json:
            out.items(after)
            return ExitCode.OK
        for one in after:
            waiting = sum(count for state, count in one.counts.items() if not state.is_end)
            live = f"; {waiting:,} of its runs have not ended" if waiting and not enabled else ""
            out.line(f"{cleaned(one.name)} is {'enabled' if enabled else 'disabled'}{live}")
            _say_if_unseen(out, one)
        return ExitCode.OK

    return in_session(out.settings, work, may_create=True)


def _say_if_unseen(out: Output, known: TypeInfo) -> None:
    """Warn about an unknown type: it may be a typo, or the type of a future worker."""
    if known.last_seen_at is None and not known.counts:
        out.talk(f"type {cleaned(known.name)} is unknown so far: it has no run and no worker")


# Parsing


def _change(
    *,
    concurrency: str | None,
    per_key: Sequence[str],
    rate: str | None,
    retention: str | None,
    description: str | None,
    runtime: str | None,
) -> dict[str, Any]:
    """Return the given options as keyword arguments of `types.set`."""
    change: dict[str, Any] = {}
    if concurrency is not None:
        change["concurrency"] = _number(concurrency, "--concurrency")
    if per_key:
        change["per_key"] = None if tuple(per_key) == (NONE,) else dict(map(_of_tag, per_key))
    if rate is not None:
        change["rate"] = _rate(rate)
    if retention is not None:
        change["retention"] = None if retention == NONE else _length(retention, "--retention")
    if description is not None:
        change["description"] = description
    if runtime is not None:
        change["runtime"] = runtime
    return change


def _number(text: str, option: str) -> int | None:
    if text == NONE:
        return None
    if not text.isdecimal():
        raise Refusal(f"{option} {text!r}: write a whole number, or {NONE}")
    return int(text)


def _of_tag(text: str) -> tuple[str, int]:
    tag, mark, number = text.rpartition("=")
    if not mark or not number.isdecimal():
        raise Refusal(f"--per-key {text!r}: write TAG=N, such as tenant=2, or {NONE}")
    return tag, int(number)


def _rate(text: str) -> tuple[int, timedelta] | None:
    if text == NONE:
        return None
    count, mark, period = text.partition("/")
    if not mark or not count.strip().isdecimal():
        raise Refusal(f"--rate {text!r}: write N/TIME, such as 100/60s, or {NONE}")
    return int(count), _length(period, "--rate")


def _length(text: str, option: str) -> timedelta:
    try:
        return parse_length(text)
    except ValueError as error:
        raise Refusal(f"{option}: {error}") from None


# Output


def _limits(known: TypeInfo) -> str:
    """Describe the limits of a type in a few words."""
    words = [] if known.concurrency is None else [f"{known.concurrency:,} at once"]
    words += [f"{count:,} per {cleaned(tag)}" for tag, count in sorted(known.per_key.items())]
    if known.rate is not None:
        count, period = known.rate
        words.append(f"{count:,} in {spoken(period)}")
    return ", ".join(words)


def _kept(known: TypeInfo) -> str:
    return "" if known.retention is None else f"; kept for {spoken(known.retention)} after the end"


def _lines(known: TypeInfo, workers: Sequence[WorkerInfo], now: datetime) -> Iterator[Line]:
    """Yield everything about a type, for `show`."""
    yield (cleaned(known.name), "title"), "  ", ("enabled", "good") if known.enabled else ("disabled", "bad")
    counts = [f"{count:,} {state.value}" for state, count in known.counts.items() if count]
    kept = "" if known.retention is None else f"for {spoken(known.retention)} after the end"
    facts = {
        "about": cleaned(known.description),
        "runtime": cleaned(known.runtime),
        "limits": _limits(known) or "none",
        "kept": kept or "as the worker says",
        "runs": ", ".join(counts) or "none",
        "parked": f"{known.parked:,}" if known.parked else "",
        "seen": _seen(known, now),
    }
    for word, text in facts.items():
        if text:
            yield (f"{word:<9}", "dim"), text
    for worker in workers:
        is_alive = ("alive", "good") if worker.is_alive else ("dead", "bad")
        heard = f"heard {ago(worker.heartbeat_at, now)}"
        yield ("worker   ", "dim"), cleaned(worker.name), "  ", is_alive, f"  {heard}, holds {worker.held:,} runs"
    if known.plan:
        yield from step_lines(known.plan)


def _seen(known: TypeInfo, now: datetime) -> str:
    if known.last_seen_at is None:
        return "never"
    return f"{ago(known.last_seen_at, now)}, by worker {cleaned(known.last_worker or '')}"


def _table(types: Sequence[TypeInfo], now: datetime) -> Table:
    return Table.of(
        (
            {
                "type": cleaned(one.name),
                "state": ("on", "good") if one.enabled else ("off", "bad"),
                "runtime": cleaned(one.runtime),
                "live": f"{sum(count for state, count in one.counts.items() if not state.is_end):,}",
                "parked": (f"{one.parked:,}", "wait" if one.parked else ""),
                "limits": _limits(one),
                "seen": (ago(one.last_seen_at, now) if one.last_seen_at is not None else "never", "dim"),
                "description": cleaned(one.description),
            }
            for one in types
        ),
        numbers=("live", "parked"),
        cut="description",
    )
