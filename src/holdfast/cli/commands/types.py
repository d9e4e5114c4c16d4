"""Commands for the types of runs: `holdfast types`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli.command import group, store_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.output import Cell, Line, Output, Table, ago, cleaned, spoken
from holdfast.cli.session import store_now
from holdfast.cli.view import step_lines
from holdfast.core.intent import matches_type
from holdfast.core.length import parse_length
from holdfast.core.wire import plain_form
from holdfast.engine.info import TypeInfo, WorkerInfo

NONE = "none"
"""The word that removes a limit."""


@group("types")
def types() -> None:
    """The types of runs: their limits, their last worker, and whether they are enabled."""


_names_argument = click.argument("names", nargs=-1, required=True, metavar="TYPE...")


@store_command("ls", "holdfast types ls", "holdfast types ls 'billing.*' --json")
@click.argument("pattern", required=False)
async def ls(out: Output, hf: Holdfast, pattern: str | None) -> None:
    """List the types that have rules, runs or a worker."""
    found = [one for one in await hf.types.list() if pattern is None or matches_type(one.name, pattern)]
    nothing = "there are no types yet; a worker registers its types when it starts"
    out.listing(found, _table(found, await store_now(hf)), nothing)


@store_command("show", "holdfast types show shop.signup.v1", "holdfast types show shop.signup.v1 --json")
@click.argument("name", metavar="TYPE")
async def show(out: Output, hf: Holdfast, name: str) -> None:
    """Show one type: its settings, its limits, its runs, the workers that execute it, and the steps of a pipeline."""
    known = next((one for one in await hf.types.list() if one.name == name), None)
    if known is None:
        raise Refusal(f"there is no type {name}; `holdfast types ls` lists the types", ExitCode.NOT_FOUND)
    workers = [worker for worker in await hf.workers.list() if name in worker.types]
    if out.is_json:
        out.item({**plain_form(known), "workers": workers})
    else:
        out.lines(_lines(known, workers, await store_now(hf)))


@store_command(
    "enable", "holdfast types enable billing.invoice.v1", "holdfast types enable 'billing.*'", may_create=True
)
@_names_argument
async def enable(out: Output, hf: Holdfast, names: Sequence[str]) -> None:
    """Let workers claim runs of these types again. TYPE may be a family such as 'billing.*'."""
    await _switch(out, hf, names, enabled=True)


@store_command(
    "disable", "holdfast types disable billing.invoice.v1", "holdfast types disable 'billing.*'", may_create=True
)
@_names_argument
async def disable(out: Output, hf: Holdfast, names: Sequence[str]) -> None:
    """Stop all workers from claiming runs of these types. Runs that workers hold continue; new starts are accepted.

    TYPE may be a family such as 'billing.*', which means all types of the family that are known now.
    """
    await _switch(out, hf, names, enabled=False)


@store_command(
    "set",
    "holdfast types set billing.invoice.v1 --concurrency 5 --per-key tenant=2",
    "holdfast types set notify.email.v1 --rate 100/60s --retention 7d",
    "holdfast types set notify.email.v1 --rate none",
    may_create=True,
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
async def set_rules(out: Output, hf: Holdfast, name: str, **options: Any) -> None:
    """Limit or describe a type. The change applies to all workers at once.

    Options that are not given do not change; `none` removes a limit. --per-key replaces all limits by tag. Runs beyond
    a limit are parked, and continue in their order.
    """
    change = {name: parse(options[name]) for name, parse in _PARSERS.items() if options[name] not in (None, ())}
    if not change:
        raise Refusal("nothing to set; give --concurrency, --per-key, --rate, --retention, --description or --runtime")
    await hf.types.set(name, **change)
    (known,) = [one for one in await hf.types.list() if one.name == name]
    if out.is_json:
        out.item(known)
    else:
        kept = "" if known.retention is None else f"; kept for {spoken(known.retention)} after the end"
        out.line(f"{cleaned(name)}: {_limits(known) or 'no limits'}{kept}")
        _warn_if_unknown(out, known)


for one in (ls, show, enable, disable, set_rules):
    types.add_command(one)


async def _switch(out: Output, hf: Holdfast, names: Sequence[str], *, enabled: bool) -> None:
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
        return
    for one in after:
        live = f"; {_live(one):,} of its runs have not ended" if _live(one) and not enabled else ""
        out.line(f"{cleaned(one.name)} is {'enabled' if enabled else 'disabled'}{live}")
        _warn_if_unknown(out, one)


def _warn_if_unknown(out: Output, known: TypeInfo) -> None:
    """Warn about an unknown type: it may be a typo, or the type of a future worker."""
    if known.last_seen_at is None and not known.counts:
        out.talk(f"type {cleaned(known.name)} is unknown so far: it has no run and no worker")


# Parsing


def _concurrency(text: str) -> int | None:
    if text == NONE:
        return None
    if not text.isdecimal():
        raise Refusal(f"--concurrency {text!r}: write a whole number, or {NONE}")
    return int(text)


def _per_key(texts: Sequence[str]) -> dict[str, int] | None:
    return None if tuple(texts) == (NONE,) else dict(map(_of_tag, texts))


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


def _retention(text: str) -> timedelta | None:
    return None if text == NONE else _length(text, "--retention")


def _length(text: str, option: str) -> timedelta:
    try:
        return parse_length(text)
    except ValueError as error:
        raise Refusal(f"{option}: {error}") from None


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "concurrency": _concurrency,
    "per_key": _per_key,
    "rate": _rate,
    "retention": _retention,
    "description": str,
    "runtime": str,
}
"""Turns an option of `types set` into a keyword argument of `hf.types.set`."""


# Output


def _limits(known: TypeInfo) -> str:
    """Describe the limits of a type in a few words."""
    words = [] if known.concurrency is None else [f"{known.concurrency:,} at once"]
    words += [f"{count:,} per {cleaned(tag)}" for tag, count in sorted(known.per_key.items())]
    if known.rate is not None:
        count, period = known.rate
        words.append(f"{count:,} in {spoken(period)}")
    return ", ".join(words)


def _lines(known: TypeInfo, workers: Sequence[WorkerInfo], now: datetime) -> Iterator[Line]:
    """Yield everything about a type, for `show`."""
    yield (cleaned(known.name), "title"), "  ", ("enabled", "good") if known.enabled else ("disabled", "bad")
    counts = [f"{count:,} {state.value}" for state, count in known.counts.items() if count]
    kept = "as the worker says" if known.retention is None else f"for {spoken(known.retention)} after the end"
    by = f"by worker {cleaned(known.last_worker or '')}"
    facts = {
        "about": cleaned(known.description),
        "runtime": cleaned(known.runtime),
        "limits": _limits(known) or "none",
        "kept": kept,
        "runs": ", ".join(counts) or "none",
        "parked": f"{known.parked:,}" if known.parked else "",
        "seen": "never" if known.last_seen_at is None else f"{ago(known.last_seen_at, now)}, {by}",
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


def _live(known: TypeInfo) -> int:
    return sum(count for state, count in known.counts.items() if not state.is_end)


def _table(found: Sequence[TypeInfo], now: datetime) -> Table:
    rows: list[dict[str, Cell]] = [
        {
            "type": cleaned(one.name),
            "state": ("on", "good") if one.enabled else ("off", "bad"),
            "runtime": cleaned(one.runtime),
            "live": f"{_live(one):,}",
            "parked": (f"{one.parked:,}", "wait" if one.parked else ""),
            "limits": _limits(one),
            "seen": (ago(one.last_seen_at, now) if one.last_seen_at is not None else "never", "dim"),
            "description": cleaned(one.description),
        }
        for one in found
    ]
    return Table.of(rows, numbers=("live", "parked"), cut="description")
