"""Commands that look after a store: `doctor`, `workers`, `prune` and `migrate`."""

from __future__ import annotations

import asyncio
import platform
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence

import click

from holdfast.app import Holdfast, session_of
from holdfast.cli.command import command, store_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.option import Settings, setting_options
from holdfast.cli.output import Cell, Output, Table, ago, cleaned, spoken
from holdfast.cli.session import check_exists, engine_for, opened, store_now
from holdfast.config import settings
from holdfast.config.secret import scrubbed
from holdfast.core.clock import SECOND, Micros, micros, moment
from holdfast.core.model import Run, WorkerRecord
from holdfast.core.ports import Finding, Pruned, SchemaStatus, Store
from holdfast.core.questions import CountRuns, FindOrphans, ListDueSchedules, ListTypes, Query
from holdfast.core.states import LIVE, RunState
from holdfast.core.wire import plain_form
from holdfast.engine.explain import alive as alive_among
from holdfast.engine.explain import is_handled, unhandled
from holdfast.engine.info import RunInfo
from holdfast.engine.lists import run_pages
from holdfast.stores import migrations
from holdfast.worker.pruner import bites

_NAMED = 5
"""Maximum number of runs or schedules that a finding names."""

_RUNS_READ = 20_000
_SKEW_SECONDS = 1.0
_LATE: Micros = 60 * SECOND

_MARKS = {"ok": ("✓", "good"), "warning": ("!", "wait"), "problem": ("✗", "bad")}
_KINDS = {True: "compatible: older workers go on", False: "not compatible: older workers are refused"}
_MANY = 100_000


# Doctor


@command("doctor", "holdfast doctor", "holdfast doctor --strict --json")
@click.option("--strict", is_flag=True, help="Treat warnings as problems.")
def doctor(out: Output, *, strict: bool) -> ExitCode:
    """Check the store, the clock, the workers, the schedules and all live runs.

    The exit code is 1 if there is a problem, with --strict also if there is a warning.
    """
    found = asyncio.run(_examine(out.settings))
    if out.is_json:
        out.items(found)
    else:
        _write_findings(out, found)
    levels = {finding.level for finding in found}
    is_bad = "problem" in levels or (strict and "warning" in levels)
    return ExitCode.FAILED if is_bad else ExitCode.OK


async def _examine(settings: Settings) -> list[Finding]:
    hf = engine_for(settings)
    check_exists(hf)
    if (trouble := migrations.trouble(session_of(hf).store.schema())) is not None:
        # The other checks need the schema of this version.
        return [Finding.problem("schema", trouble)]
    async with opened(settings) as hf, hf:
        return await findings(hf)


def _write_findings(out: Output, found: Sequence[Finding]) -> None:
    width = max(len(finding.subject) for finding in found)
    for finding in found:
        out.line(_MARKS[finding.level], f" {finding.subject:<{width}}  ", cleaned(finding.text))
    counts = {level: sum(finding.level == level for finding in found) for level in ("problem", "warning")}
    if not any(counts.values()):
        out.talk("everything is in order")
    else:
        out.talk(", ".join(f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items() if count))


async def findings(hf: Holdfast) -> list[Finding]:
    """Return all findings about an open store, good and bad."""
    store = session_of(hf).store
    workers, now = await store.workers(), await store.now()
    alive = alive_among(workers, now)
    own = list(await store.check())
    return [
        Finding.ok("python", f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"),
        Finding.ok("store", scrubbed(session_of(hf).url)),
        *own,
        await _clock(store),
        *_workers(workers, alive, now, own),
        *await _types(store, alive, now),
        await _orphans(store),
        await _schedules(store),
        *[finding async for finding in _runs(store, alive, now)],
    ]


async def _clock(store: Store) -> Finding:
    before = time.time()
    answered = await store.now() / SECOND
    after = time.time()
    skew = max(before - answered, answered - after, 0.0)
    if skew > _SKEW_SECONDS:
        return Finding.warning(
            "clock", f"this machine's clock and the store's clock differ by {spoken(skew)}; synchronize them with NTP"
        )
    return Finding.ok("clock", "this machine's clock agrees with the store's")


def _workers(
    workers: Sequence[WorkerRecord], alive: Sequence[WorkerRecord], now: Micros, own: Sequence[Finding]
) -> Iterator[Finding]:
    if any(finding.subject == "workers" for finding in own):
        return  # the store has reported about its workers itself
    for worker in workers:
        if worker not in alive:
            silence = spoken((now - worker.heartbeat_at) / SECOND)
            who = f"worker {worker.name} (pid {worker.pid} on {worker.host})"
            yield Finding.warning(
                "workers", f"{who} sent its last heartbeat {silence} ago; other workers take over its runs"
            )
    yield Finding.ok("workers", f"{len(alive)} alive")


async def _types(store: Store, alive: Sequence[WorkerRecord], now: Micros) -> list[Finding]:
    """Return findings about types with live runs that are disabled or that no worker handles."""
    due = {backlog.type: backlog for backlog in await unhandled(store, now)}
    off = {rule.name for rule in await store.catalog(ListTypes()) if not rule.is_enabled}
    found = []
    for type, states in (await store.stats(CountRuns())).items():
        live = sum(count for state, count in states.items() if not state.is_end)
        if not live:
            continue
        have = "has" if live == 1 else "have"
        if type in off:
            text = f"{type} is disabled, but {_many(live, 'run')} of this type {have} not ended"
            found.append(Finding.warning("types", f"{text}; `holdfast types enable {type}` enables it"))
        if is_handled(type, alive):
            continue
        text = f"no worker handles {type}: {_many(live, 'run')} {have} not ended"
        if type in due:
            count, age = due[type].count, spoken((now - due[type].since) / SECOND)
            text += f", {count:,} {'is' if count == 1 else 'are'} due, the oldest for {age}"
        found.append(Finding.warning("types", f"{text}; start a worker"))
    return found or [Finding.ok("types", "every type with live runs has a worker")]


async def _orphans(store: Store) -> Finding:
    """Return a finding about live runs that nothing will ever continue.

    Promise 8, no silent stop: each live run is claimed, ready, or waits for something named.
    """
    lost = await store.stats(FindOrphans(limit=_NAMED + 1))
    if not lost:
        return Finding.ok("orphans", "every live run is held, ready, or waits for something")
    return Finding.problem(
        "orphans",
        f"nothing will ever continue {_some(lost)}; this is a bug in holdfast, please report it; "
        "`holdfast cancel` ends these runs",
    )


async def _schedules(store: Store) -> Finding:
    due = await store.catalog(ListDueSchedules(limit=_NAMED))
    late = [one.name for one in due.schedules if one.next_at is not None and one.next_at < due.now - _LATE]
    if not late:
        return Finding.ok("schedules", "no schedule is overdue")
    names = ", ".join(late) + (" and perhaps more" if len(late) == _NAMED else "")
    return Finding.warning(
        "schedules",
        f"no worker fires {names}, due for more than {spoken(_LATE / SECOND)}; start a worker, or look for the reason "
        "in a worker's log",
    )


async def _runs(store: Store, alive: Sequence[WorkerRecord], now: Micros) -> AsyncIterator[Finding]:
    ready: list[Run] = []
    blocked: list[Run] = []
    odd: list[str] = []
    count = 0
    async for page in run_pages(store, Query(states=LIVE), _RUNS_READ):
        odd += [details.run.id for details in page if RunInfo.of(details).unreadable is not None]
        for run in (details.run for details in page):
            count += 1
            if run.state is RunState.BLOCKED:
                blocked.append(run)
            elif run.ready_at is not None and run.ready_at < now and not run.is_held:
                ready.append(run)
    if blocked:
        names = _some([run.id for run in blocked])
        yield Finding.warning(
            "blocked", f"{_many(len(blocked), 'run')} cannot continue: {names}; `holdfast explain` says why"
        )
    else:
        yield Finding.ok("blocked", "no run is blocked")
    if odd:
        words = f"{_many(len(odd), 'live run')} cannot be read: {_some(odd)}"
        yield Finding.warning("unreadable", f"{words}; `holdfast show` says why")
    yield _oldest(ready, alive, now)
    limit = f" (only the newest {_RUNS_READ:,} were checked)" if count >= _RUNS_READ else ""
    yield Finding.ok("runs", f"{_many(count, 'live run')}{limit}")


def _oldest(ready: Sequence[Run], alive: Sequence[WorkerRecord], now: Micros) -> Finding:
    if not ready:
        return Finding.ok("ready", "no run waits for a worker")
    oldest = min(ready, key=lambda run: run.ready_at or 0)
    age = now - (oldest.ready_at or now)
    text = f"{_many(len(ready), 'run')} ready; the oldest, {oldest.id}, for {spoken(age / SECOND)}"
    if age < _LATE:
        return Finding.ok("ready", text)
    advice = "start more workers" if alive else "no worker is alive: start one with `holdfast worker`"
    return Finding.warning("ready", f"{text}; {advice}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (" and more" if len(names) > _NAMED else "")


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


# Workers


@store_command("workers", "holdfast workers", "holdfast workers ls --json")
@click.argument("verb", type=click.Choice(["ls"]), default="ls", metavar="[ls]")
async def workers(out: Output, hf: Holdfast, verb: str) -> None:
    """List the workers that are alive, and those that died without a shutdown.

    SLOTS is the maximum number of runs of a worker, HELD the number that it holds now. A dead worker keeps its runs
    until other workers take them over.
    """
    del verb  # there is only one
    known, now = await hf.workers.list(), await store_now(hf)
    rows: list[dict[str, Cell]] = [
        {
            "name": cleaned(worker.name),
            "state": ("alive", "good") if worker.is_alive else ("dead", "bad"),
            "host": cleaned(worker.host),
            "pid": str(worker.pid),
            "slots": str(worker.concurrency),
            "held": str(worker.held),
            "up": spoken((now if worker.is_alive else worker.heartbeat_at) - worker.started_at),
            "heard": (ago(worker.heartbeat_at, now), "dim"),
            "types": ", ".join(worker.types),
        }
        for worker in known
    ]
    table = Table.of(rows, numbers=("pid", "slots", "held", "up"), cut="types")
    out.listing(known, table, "no worker is running; start one with `holdfast worker MODULE:ATTR`")


# Prune


@store_command("prune", "holdfast prune --dry-run", "holdfast prune", "holdfast prune --retention 7d")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@setting_options(settings.RETENTION)
async def prune(out: Output, hf: Holdfast, *, dry_run: bool) -> None:
    """Remove expired runs and events. Workers do this themselves, about once a minute.

    A run is removed when its retention after its end is over: the retention= of its start, that of its type, or 30
    days. A child is not removed before its parent has ended. Deleted runs are removed after a day.

    Events beyond the retention or limit of their topic are removed; those of a queue become dead letters. Records of
    taken queue events, ids of received messages and replies are removed after a day.
    """
    kept = micros(out.settings.configuration[settings.RETENTION])
    if dry_run:
        pruned = await session_of(hf).store.prune(_MANY, retention=kept, is_dry_run=True)
    else:
        pruned = await _prune(out, session_of(hf).store, kept)
    if out.is_json:
        out.item(pruned)
    else:
        _report_pruned(out, pruned, is_dry_run=dry_run)


async def _prune(out: Output, store: Store, kept: Micros) -> Pruned:
    """Prune bite by bite, with a progress bar on a terminal."""
    total = Pruned()
    expected = await store.prune(1, retention=kept, is_dry_run=True) if out.is_rich_for(sys.stderr) else total
    with out.counted("pruning", sum(expected.runs.values())) as count:
        async for pruned in bites(store, kept):
            total = total.plus(pruned)
            count(sum(pruned.runs.values()))
    return total


def _report_pruned(out: Output, pruned: Pruned, *, is_dry_run: bool) -> None:
    counts = {
        **{f"runs of {cleaned(type)}": count for type, count in pruned.runs.items()},
        "expired or surplus events": pruned.events,
        "queue events, now dead letters": pruned.dead_letters,
        "queue events that were taken": pruned.taken,
        "ids of received messages": pruned.receipts,
        "replies": pruned.replies,
        "definitions of flows": pruned.flows,
    }
    if not any(counts.values()):
        out.talk("there is nothing to prune")
    for what, count in counts.items():
        if count:
            out.line(f"{count:>9,}  {what}")
    if is_dry_run:
        out.talk("and more; nothing was changed" if pruned.has_more else "nothing was changed")


# Migrate


@command(
    "migrate", "holdfast migrate --plan", "holdfast migrate --check --json", "holdfast --url sqlite:///shop.db migrate"
)
@click.option("--plan", is_flag=True, help="Only show the steps that are pending; change nothing.")
@click.option("--check", is_flag=True, help="Only check; the exit code is 1 if the store does not fit this version.")
def migrate(out: Output, *, plan: bool, check: bool) -> ExitCode:
    """Create the schema of an empty store, or bring an older store to the schema number of this version.

    You can repeat the command, interrupt it, and run it twice at once: each step happens wholly or not at all. A store
    of a newer version of holdfast is refused and does not change.
    """
    if plan and check:
        raise Refusal("--plan and --check exclude each other")
    hf = engine_for(out.settings)
    store, shown = session_of(hf).store, scrubbed(session_of(hf).url)
    before = store.schema()
    if check:
        trouble = migrations.trouble(before)
        _show_schema(out, before, shown, trouble=trouble)
        return ExitCode.OK if trouble is None else ExitCode.FAILED
    migrations.check(before, shown, may_migrate=True)
    is_behind = before.current < before.wanted
    if is_behind and not plan:
        asyncio.run(_apply_steps(store, out))
        _show_schema(out, store.schema(), shown, before=before)
    else:
        _show_schema(out, before, shown)
    return ExitCode.OK


async def _apply_steps(store: Store, out: Output) -> None:
    await store.open(out.talk)
    await store.close()


def _show_schema(
    out: Output, found: SchemaStatus, shown: str, *, before: SchemaStatus | None = None, trouble: str | None = None
) -> None:
    """Show the numbers of a store. `before` is its status before the changes that were made."""
    done = [] if before is None else [step for step in found.applied if step.number > before.current]
    is_made = before is not None and before.current == 0
    if out.is_json:
        applied = [{**plain_form(step), "at": moment(step.at)} for step in found.applied]
        out.item({**plain_form(found), "applied": applied, "is_made": is_made, "trouble": trouble})
        return
    number = f"schema number {found.current}" if found.current else "no schema yet"
    out.line(f"{shown}: {number}, this version needs number {found.wanted}")
    if trouble is not None:
        out.line(f"  {trouble}")
    elif found.current == 0 or is_made:
        out.line(f"  {'created' if is_made else 'would create'} schema number {found.wanted}")
    for step in found.pending:
        out.line(f"  step {step.number}: {step.about} ({_KINDS[step.is_compatible]})")
    for one in [] if is_made else done:
        out.line(f"  applied step {one.number}, {one.name}")
    if not (trouble or found.pending or done or is_made or found.current == 0):
        out.talk("nothing to do")
