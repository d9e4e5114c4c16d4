"""Commands for schedules: `holdfast schedules`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli.command import check_can_ask, command, group, store_command
from holdfast.cli.exits import ExitCode
from holdfast.cli.option import LENGTH, start_options, yes_option
from holdfast.cli.output import Cell, Output, Table, ago, cleaned, preview, spoken, stamp
from holdfast.cli.payloads import given_options, parse_object
from holdfast.cli.session import actor, in_session, store_now
from holdfast.cli.streams import despite
from holdfast.core.model import DEFAULT_PRIORITY
from holdfast.core.schedules import ScheduleOptions
from holdfast.core.wire import plain_form
from holdfast.engine.info import ScheduleInfo

_name_argument = click.argument("name")


@group("schedules")
def schedules() -> None:
    """Rules that start runs over time: at the times of a cron expression, or at a fixed interval."""


@store_command("ls", "holdfast schedules ls", "holdfast schedules ls --type 'billing.*' --json")
@click.option("--type", help="Only schedules of this type, or of a family such as 'billing.*'.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Maximum number of schedules."
)
async def ls(out: Output, hf: Holdfast, *, type: str | None, limit: int) -> None:
    """List the schedules by name, with the time at which each fires next."""
    known = await hf.schedules.list(type=type, limit=limit)
    nothing = "there are no schedules; create one with `holdfast schedules add`, or with `@hf.schedule` in code"
    out.listing(known, _table(known, await store_now(hf)), nothing)


@store_command("show", "holdfast schedules show nightly", "holdfast schedules show nightly --json")
@_name_argument
async def show(out: Output, hf: Holdfast, name: str) -> None:
    """Show a schedule: its rule, its state, and the next five times at which it fires."""
    schedule = await hf.schedules.get(name)
    if out.is_json:
        out.item(_with_times(schedule))
    else:
        _show(out, schedule, await store_now(hf))


@store_command("next", "holdfast schedules next nightly")
@_name_argument
async def next_times(out: Output, hf: Holdfast, name: str) -> None:
    """Print the next five times at which a schedule fires, in its own zone."""
    schedule = await hf.schedules.get(name)
    if out.is_json:
        out.items(schedule.upcoming)
    else:
        _show_times(out, schedule, await store_now(hf))


@command(
    "add",
    "holdfast schedules add nightly report.daily.v1 --cron '0 2 * * *' --zone Europe/Rome",
    'holdfast schedules add sync shop.sync.v1 --every 5m --overlap skip --payload \'{"shop": "north"}\'',
)
@_name_argument
@click.argument("type")
@click.option("--cron", metavar="EXPR", help="Five fields: minute, hour, day of the month, month, day of the week.")
@click.option("--every", type=LENGTH, help="A fixed interval from now on, such as 90s or 1h.")
@click.option("--zone", metavar="ZONE", help="The time zone of --cron, such as Europe/Rome.  [default: UTC]")
@click.option("--payload", metavar="JSON", default="{}", help="The payload of the runs: JSON, @file or - for stdin.")
@click.option(
    "--catch-up",
    type=click.Choice(["skip", "one", "all"]),
    default="one",
    show_default=True,
    help="After a time without workers: fire none, the last one, or all of the missed times.",
)
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip"]),
    default="allow",
    show_default=True,
    help="Fire or skip a time while an earlier run of the schedule has not ended.",
)
@click.option("--jitter", type=LENGTH, help="Spread the starts over this time.")
@start_options(ScheduleOptions)
def add(out: Output, name: str, type: str, *, payload: str, **options: Any) -> None:
    """Create or change a schedule, by --cron or --every, and show the next five times at which it fires.

    TYPE is the type of a workflow or task; no worker needs to know it yet. A schedule with the same NAME is replaced.
    A schedule that is declared in code is reset to the code whenever a worker starts.
    """
    arguments = parse_object([payload])
    given = given_options(options)

    async def work(hf: Holdfast) -> None:
        schedule = await hf.schedules.put(name, type, arguments, **{"by": actor()} | given)
        if out.is_json:
            out.item(_with_times(schedule))
            return
        _show_times(out, schedule, await store_now(hf))
        if schedule.is_paused:
            out.talk(f"{cleaned(name)} is paused; `holdfast schedules resume` resumes it")
        if not any(worker.is_alive for worker in await hf.workers.list()):
            out.talk("no worker is running yet; workers fire schedules (`holdfast worker MODULE:ATTR`)")

    in_session(out.settings, work, may_create=True)


@store_command("pause", "holdfast schedules pause nightly")
@_name_argument
async def pause(out: Output, hf: Holdfast, name: str) -> ExitCode:
    """Pause a schedule until it is resumed. The exit code is 6 if it was already paused."""
    await hf.schedules.get(name)
    return _report_change(out, name, "paused", is_done=await hf.schedules.pause(name))


@store_command("resume", "holdfast schedules resume nightly")
@_name_argument
async def resume(out: Output, hf: Holdfast, name: str) -> ExitCode:
    """Resume a paused schedule. It fires again from its next time on. The exit code is 6 if it was not paused."""
    await hf.schedules.get(name)
    return _report_change(out, name, "resumed", is_done=await hf.schedules.resume(name))


@store_command("trigger", "holdfast schedules trigger nightly")
@_name_argument
async def trigger(out: Output, hf: Holdfast, name: str) -> None:
    """Start a run of a schedule now, even if it is paused, and print its id. The times of the schedule stay."""
    await hf.schedules.get(name)
    run = await hf.schedules.trigger(name)
    with despite(f"run {run.id} was started"):
        out.answer({"name": name, "id": run.id}, run.id)


@command("rm", "holdfast schedules rm nightly", "holdfast schedules rm nightly --yes")
@_name_argument
@yes_option
def remove(out: Output, name: str, *, yes: bool) -> ExitCode:
    """Remove a schedule; its runs stay. A schedule that is declared in code comes back when a worker starts.

    On a terminal, the command asks once for confirmation; elsewhere it needs --yes.
    """
    check_can_ask("schedules rm", unless=yes)

    async def work(hf: Holdfast) -> ExitCode:
        schedule = await hf.schedules.get(name)
        if not yes:
            out.talk(f"  {cleaned(name)}  {_rule(schedule)}  {schedule.type}")
            if not click.confirm("Remove this schedule?", err=True):
                out.talk("nothing was removed")
                return ExitCode.FAILED
        if schedule.is_declared:
            out.talk(f"{cleaned(name)} is declared in code; remove it there too, or the next worker restores it")
        return _report_change(out, name, "removed", is_done=await hf.schedules.remove(name))

    return in_session(out.settings, work)


for one in (ls, show, next_times, add, pause, resume, trigger, remove):
    schedules.add_command(one)


def _report_change(out: Output, name: str, word: str, *, is_done: bool) -> ExitCode:
    if out.is_json:
        out.item({"name": name, word: is_done})
    elif is_done:
        out.line(f"{word} {cleaned(name)}")
    if not is_done:
        out.talk(f"{cleaned(name)} is already {word}; nothing was changed")
    return ExitCode.OK if is_done else ExitCode.CONFLICT


def _rule(schedule: ScheduleInfo) -> str:
    return f"every {spoken(schedule.every)}" if schedule.every is not None else f"{schedule.cron} {schedule.zone}"


def _table(schedules: Sequence[ScheduleInfo], now: datetime) -> Table:
    rows: list[dict[str, Cell]] = [
        {
            "name": cleaned(schedule.name),
            "type": cleaned(schedule.type),
            "when": _rule(schedule),
            "next": ("paused", "wait") if schedule.is_paused else _next(schedule, now),
            "last run": (schedule.last_run_id or "", "dim"),
            "skipped": str(schedule.skipped or ""),
        }
        for schedule in schedules
    ]
    return Table.of(rows, numbers=("skipped",)).without_empty_columns()


def _next(schedule: ScheduleInfo, now: datetime) -> Cell:
    return ("never", "bad") if schedule.next_at is None else (ago(schedule.next_at, now), "")


def _show(out: Output, schedule: ScheduleInfo, now: datetime) -> None:
    skipped = ""
    if schedule.last_skipped_slot is not None:
        last = stamp(schedule.last_skipped_slot)
        skipped = f"{schedule.skipped}, because an earlier run had not ended; last: {last}"
    facts = {
        "type": schedule.type,
        "when": _rule(schedule),
        "payload": preview(schedule.payload),
        "catch up": schedule.catch_up,
        "overlap": schedule.overlap,
        "jitter": spoken(schedule.jitter) if schedule.jitter else "",
        "priority": str(schedule.priority) if schedule.priority != DEFAULT_PRIORITY else "",
        "tags": " ".join(f"{name}={value}" for name, value in schedule.tags.items()),
        "created": f"{stamp(schedule.created_at)}{', by code' if schedule.is_declared else ''}",
        "last slot": "" if schedule.last_slot is None else stamp(schedule.last_slot),
        "last run": schedule.last_run_id or "",
        "skipped": skipped,
        "state": "paused" if schedule.is_paused else "",
    }
    out.line((cleaned(schedule.name), "title"))
    for name, fact in facts.items():
        if fact:
            out.line((f"  {name:<10}", "dim"), cleaned(fact))
    _show_times(out, schedule, now)


def _show_times(out: Output, schedule: ScheduleInfo, now: datetime) -> None:
    rows: list[dict[str, Cell]] = [
        {
            "next": when.strftime("%a %Y-%m-%d %H:%M:%S %Z"),
            "in UTC": "" if schedule.zone == "UTC" else when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
            "from now": (ago(when, now), "dim"),
        }
        for when in schedule.upcoming
    ]
    out.table(Table.of(rows).without_empty_columns())


def _with_times(schedule: ScheduleInfo) -> dict[str, Any]:
    return {**plain_form(schedule), "upcoming": schedule.upcoming}
