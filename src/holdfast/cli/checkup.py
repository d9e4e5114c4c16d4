"""The check-up behind `holdfast doctor`: findings about the store, its workers and its runs."""

from __future__ import annotations

import platform
import time
from collections.abc import AsyncIterator, Iterator, Sequence

from holdfast.app import Holdfast, session_of
from holdfast.cli.times import spoken
from holdfast.config.secret import scrubbed
from holdfast.core.clock import SECOND, Micros
from holdfast.core.model import Run, WorkerRecord
from holdfast.core.ports import Finding
from holdfast.core.questions import CountRuns, FindOrphans, ListDueSchedules, ListTypes, Query
from holdfast.core.states import LIVE, RunState
from holdfast.engine.info import RunInfo
from holdfast.engine.liveness import alive as alive_among
from holdfast.engine.liveness import is_handled, unhandled
from holdfast.engine.paging import run_pages

_NAMED = 5
"""Maximum number of runs or schedules that a finding names."""

_RUNS_READ = 20_000
_SKEW_SECONDS = 1.0
_LATE: Micros = 60 * SECOND


async def findings(hf: Holdfast) -> list[Finding]:
    """Return all findings about an open store, good and bad."""
    workers = await session_of(hf).store.workers()
    now = await session_of(hf).store.now()
    alive = alive_among(workers, now)
    own = list(await session_of(hf).store.check())
    return [
        Finding.ok("python", f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"),
        Finding.ok("store", scrubbed(session_of(hf).url)),
        *own,
        await _clock(hf),
        *_workers(workers, alive, now, own),
        *await _types(hf, alive, now),
        await _orphans(hf),
        await _schedules(hf),
        *[finding async for finding in _runs(hf, alive, now)],
    ]


async def _clock(hf: Holdfast) -> Finding:
    before = time.time()
    told = await session_of(hf).store.now() / SECOND
    after = time.time()
    skew = max(before - told, told - after, 0.0)
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


async def _types(hf: Holdfast, alive: Sequence[WorkerRecord], now: Micros) -> list[Finding]:
    """Return findings about types with live runs that are disabled or that no worker handles."""
    due = {backlog.type: backlog for backlog in await unhandled(session_of(hf).store, now)}
    off = {rule.name for rule in await session_of(hf).store.catalog(ListTypes()) if not rule.is_enabled}
    found = []
    for type, states in (await session_of(hf).store.stats(CountRuns())).items():
        live = sum(count for state, count in states.items() if not state.is_end)
        if not live:
            continue
        if type in off:
            text = f"{type} is disabled, but {_many(live, 'run')} of this type {_have(live)} not ended"
            found.append(Finding.warning("types", f"{text}; `holdfast types enable {type}` enables it"))
        if is_handled(type, alive):
            continue
        text = f"no worker handles {type}: {_many(live, 'run')} {_have(live)} not ended"
        if type in due:
            count, age = due[type].count, spoken((now - due[type].since) / SECOND)
            text += f", {count:,} {'is' if count == 1 else 'are'} due, the oldest for {age}"
        found.append(Finding.warning("types", f"{text}; start a worker"))
    return found or [Finding.ok("types", "every type with live runs has a worker")]


async def _orphans(hf: Holdfast) -> Finding:
    """Return a finding about live runs that nothing will ever continue.

    Promise 8, no silent stop: each live run is claimed, ready, or waits for something named.
    """
    lost = await session_of(hf).store.stats(FindOrphans(limit=_NAMED + 1))
    if not lost:
        return Finding.ok("orphans", "every live run is held, ready, or waits for something")
    more = " and more" if len(lost) > _NAMED else ""
    return Finding.problem(
        "orphans",
        f"nothing will ever continue {', '.join(lost[:_NAMED])}{more}; this is a bug in holdfast, please report it; "
        "`holdfast cancel` ends these runs",
    )


async def _schedules(hf: Holdfast) -> Finding:
    due = await session_of(hf).store.catalog(ListDueSchedules(limit=_NAMED))
    late = [one.name for one in due.schedules if one.next_at is not None and one.next_at < due.now - _LATE]
    if not late:
        return Finding.ok("schedules", "no schedule is overdue")
    names = ", ".join(late) + (" and perhaps more" if len(late) == _NAMED else "")
    return Finding.warning(
        "schedules",
        f"no worker fires {names}, due for more than {spoken(_LATE / SECOND)}; start a worker, or look for the reason "
        "in a worker's log",
    )


async def _runs(hf: Holdfast, alive: Sequence[WorkerRecord], now: Micros) -> AsyncIterator[Finding]:
    ready: list[Run] = []
    blocked: list[Run] = []
    odd: list[str] = []
    count = 0
    async for page in run_pages(session_of(hf).store, Query(states=LIVE), _RUNS_READ):
        odd += [details.run.id for details in page if RunInfo.of(details).unreadable is not None]
        for run in (details.run for details in page):
            count += 1
            if run.state is RunState.BLOCKED:
                blocked.append(run)
            elif run.ready_at is not None and run.ready_at < now and not run.is_held:
                ready.append(run)
    if blocked:
        names = ", ".join(run.id for run in blocked[:_NAMED])
        more = " and more" if len(blocked) > _NAMED else ""
        yield Finding.warning(
            "blocked", f"{_many(len(blocked), 'run')} cannot continue: {names}{more}; `holdfast explain` says why"
        )
    else:
        yield Finding.ok("blocked", "no run is blocked")
    if odd:
        more = " and more" if len(odd) > _NAMED else ""
        yield Finding.warning(
            "unreadable",
            f"{_many(len(odd), 'live run')} cannot be read: {', '.join(odd[:_NAMED])}{more}; `holdfast show` says why",
        )
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


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _have(count: int) -> str:
    return "has" if count == 1 else "have"
