"""The migrations of key-value stores: one function for each number.

A function may be interrupted and repeated at any point, and may run twice at once. So it changes one run, or another
partition, per part, checks the version of what it changes, and finds out by itself what is left to do. `change_runs`
does this for runs. While a *compatible* step runs, workers of the number before it go on writing: the new code must be
able to read what they write. Before any other step the store refuses those workers and begins a new epoch, so that they
write nothing after it.

The partition `meta` has the number (`schema`), the lowest number whose code may use the store (`compatible_from`), and
a record of the steps (`steps`). A new store has all of them from the beginning.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.ports import AppliedStep, Report, SchemaStatus, SchemaStep
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import AllFields, Driver, Fields, Part, Partition, Range
from holdfast.stores.kv.names import MOVING_FIELDS
from holdfast.stores.migrations import Migration, Migrations, check

BASELINE = 2
"""The number of the layout before all steps."""

NUMBER_FIELD, OLDEST_FIELD, STEPS_FIELD = "schema", "compatible_from", "steps"
FIELDS = (NUMBER_FIELD, OLDEST_FIELD, STEPS_FIELD)
"""The fields of `meta` that a status needs."""

RUNS_AT_ONCE = 200

StepFunction = Callable[[Driver, Report], Awaitable[None]]
Change = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
"""Takes all fields of the head of a run, and returns those to write: none if the run is already as it should be."""

_steps = msgspec.json.Decoder(tuple[AppliedStep, ...])


async def _record_steps(_driver: Driver, _report: Report) -> None:
    """Nothing to change: the record begins with this step."""


async def _name_stop_requests(driver: Driver, report: Report) -> None:
    """Replace the flag for a pause in the moving parts of live runs."""
    place = MOVING_FIELDS.index("stop")

    def change(head: Mapping[str, bytes]) -> Mapping[str, bytes]:
        try:
            moving = msgspec.json.decode(head.get(names.MOVING, b"[]"), type=list[Any])
        except msgspec.MsgspecError:
            return {}  # readers mark such a run, and it must not stop the migration of the others
        if len(moving) <= place or not isinstance(moving[place], bool):
            return {}
        moving[place] = "pause" if moving[place] else None
        return {names.MOVING: msgspec.json.encode(moving)}

    await change_runs(driver, change, report)


def _step(number: int, name: str, about: str, function: StepFunction, *, compatible: bool) -> Migration[StepFunction]:
    return Migration(SchemaStep(number=number, name=name, about=about, is_compatible=compatible), function)


MIGRATIONS = Migrations(
    BASELINE,
    [
        _step(
            3,
            "record-of-steps",
            "keep a record of the steps that the store has gone through",
            _record_steps,
            compatible=True,
        ),
        _step(
            4, "stop-requests", "keep how the holder of a run is asked to stop", _name_stop_requests, compatible=False
        ),
    ],
)


def status_of(fields: Mapping[str, bytes], steps: Migrations[StepFunction]) -> SchemaStatus:
    """Return the status of a store from the fields of its partition `meta`."""
    number, oldest = (int(fields.get(field) or 0) for field in (NUMBER_FIELD, OLDEST_FIELD))
    return steps.status(number, oldest, _steps.decode(fields.get(STEPS_FIELD) or b"[]"))


async def load_status(driver: Driver, steps: Migrations[StepFunction]) -> tuple[SchemaStatus, int, Micros]:
    """Return the status of a store, the version of its partition `meta`, and the time."""
    loaded = await driver.load([Fields(names.META, FIELDS)])
    meta = cast("Partition", loaded.answers[0])
    return status_of(meta.fields, steps), meta.version, loaded.now


async def prepare(driver: Driver, steps: Migrations[StepFunction], report: Report | None) -> Micros:
    """Note the number in an empty store, or migrate an older one if progress can be reported. Return the time.

    Any number of processes may do this at once: each change is written by the first of them, and by no other.

    Raises:
        SchemaOutOfDate: This code cannot use the store. It stays unchanged.

    """
    while True:
        found, _, now = await load_status(driver, steps)
        check(found, "the store", may_migrate=report is not None)
        if found.current == 0:
            oldest = BASELINE
            for migration in steps.all:
                oldest = migration.compatible_from(oldest)
            made = tuple(migration.applied(now) for migration in steps.all)
            await _write(
                driver, steps, found, replace(found, current=steps.number, compatible_from=oldest, applied=made)
            )
        elif report is not None and found.pending:
            await _go_through(driver, steps, found, now, report)
        else:
            return now


async def _go_through(
    driver: Driver, steps: Migrations[StepFunction], found: SchemaStatus, now: Micros, report: Report
) -> None:
    """Go through the next step, or refuse older workers before it. The caller checks again afterwards."""
    migration = steps.after(found.current)[0]
    oldest = migration.compatible_from(found.compatible_from)
    if oldest != found.compatible_from:
        # First, so that no worker of an older number connects after the new epoch has begun.
        await _write(driver, steps, found, replace(found, compatible_from=oldest))
        return
    report(f"step {migration.step.number}: {migration.step.about}")
    if not migration.step.is_compatible:
        await driver.begin_epoch()
    await migration.body(driver, report)
    applied = (*found.applied, migration.applied(now))
    await _write(driver, steps, found, replace(found, current=migration.step.number, applied=applied))


async def _write(driver: Driver, steps: Migrations[StepFunction], before: SchemaStatus, after: SchemaStatus) -> None:
    """Write the numbers and the record, unless another process has changed them."""
    fields = {
        NUMBER_FIELD: b"%d" % after.current,
        OLDEST_FIELD: b"%d" % after.compatible_from,
        STEPS_FIELD: msgspec.json.encode(after.applied),
    }
    while True:  # until nothing else has changed the partition, such as a new epoch
        found, version, _ = await load_status(driver, steps)
        if found != before:
            return
        part = Part(checks={names.META: version}, puts={names.META: fields})
        if (await driver.commit([part])).refused[0] is None:
            return


async def change_runs(driver: Driver, change: Change, report: Report) -> None:
    """Change the heads of all runs, in batches. A run that another process changes meanwhile is changed again.

    Runs that are created meanwhile are not among them: the code that creates them has to write them as they should be.
    """
    after, count = "", 0
    while True:
        (members,) = (await driver.load([Range(names.ALL, low=after, limit=RUNS_AT_ONCE)])).answers
        listed = cast("list[str]", members)
        if not listed:
            return
        left = [member[names.TIME_DIGITS :] for member in listed]
        while left:
            left = await _change(driver, left, change)
        after, count = listed[-1] + "\0", count + len(listed)
        report(f"{count:,} runs")


async def _change(driver: Driver, run_ids: list[str], change: Change) -> list[str]:
    """Change some runs. Return those that have to be tried again."""
    loaded = (await driver.load([AllFields(names.head(run_id)) for run_id in run_ids])).answers
    heads = dict(zip(run_ids, cast("list[Partition]", loaded), strict=True))
    changes = {run_id: change(head.fields) for run_id, head in heads.items() if head.fields}
    parts = {
        run_id: Part(checks={names.head(run_id): heads[run_id].version}, puts={names.head(run_id): fields})
        for run_id, fields in changes.items()
        if fields
    }
    if not parts:
        return []
    refused = (await driver.commit(list(parts.values()))).refused
    return [run_id for run_id, name in zip(parts, refused, strict=True) if name is not None]
