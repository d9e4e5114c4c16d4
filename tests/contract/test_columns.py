"""Every store keeps every field of runs, entries, arrivals and waits: when it is written first, and when it changes.

The values are made from the types of the fields, so a new field is tested from its declaration on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace

from holdfast.core.errors import ErrorRecord
from holdfast.core.model import FIXED, Arrival, Entry, EntryKind, Run, RunOptions, StoredColumn, Wait, columns_of
from holdfast.core.ports import Store
from holdfast.core.states import RunState
from holdfast.core.transfer import Dump, Restoration
from holdfast.stores.kv import KeyValueStore
from holdfast.stores.kv.dictionary import Dictionary, DictionaryDriver
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations.unit_of_work import UnitOfWork
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.unit_of_work import decide
from holdfast.stores.redis import redis_store
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.workspace.reads import RunRead

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

ID = "a-run"


def sample(column: StoredColumn, number: int) -> Any:
    """Return a value of a field that is not its default."""
    options = get_args(column.type)
    if column.scalar is bool:
        return not column.default
    if column.scalar is int:
        return 1_000 + number
    if column.is_enum:
        return list(column.type)[-1]
    if get_origin(column.type) is dict:
        return {"name of": column.field}
    if get_origin(column.type) is tuple:
        return (column.field, "ü")
    if issubclass(column.scalar, msgspec.Struct):
        return {ErrorRecord: ErrorRecord(type="Odd", message="ü"), RunOptions: RunOptions(max_run=5)}[column.scalar]
    return f"{column.field} ü" if not options else next(one for one in options if one != column.default)


def filled(kind: type[S], /, **given: Any) -> S:
    """Return a value with no field at its default, besides the given ones."""
    samples = {column.field: sample(column, number) for number, column in enumerate(columns_of(kind).values())}
    return kind(**{**samples, **given})


def full_run() -> Run:
    """Return a run that may be imported: it is paused, and no worker holds it."""
    return filled(Run, id=ID, state=RunState.PAUSED, worker=None)


def plain_run() -> Run:
    return Run(id=ID, type="t", state=RunState.PAUSED, payload="1", created_at=1, start_at=1, updated_at=1)


def changes() -> list[dict[str, Any]]:
    """Return each field of a run that may change, with its new value.

    The input changes only with the generation, and no generation goes back to an earlier one, so it comes last.
    """
    full, last = filled(Run), ("continued", "generation")
    fields = [field for field in columns_of(Run) if field not in (*FIXED, "key", *last)]
    return [*({field: getattr(full, field)} for field in fields), {field: getattr(full, field) for field in last}]


@pytest_asyncio.fixture(params=["memory", "sqlite", "postgres", "dictionary", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened = _store(request, tmp_path)
    await opened.open()
    yield opened
    await opened.close()


def _store(request: pytest.FixtureRequest, folder: Path) -> Store:
    match request.param:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return SqliteStore(folder / "runs.db")
        case "postgres":
            return PostgresStore(request.getfixturevalue("postgres_store_url"))
        case "dictionary":
            data = Dictionary()
            return KeyValueStore(lambda: DictionaryDriver(data))
        case _:
            return redis_store(request.getfixturevalue("redis_url"))


async def work(store: Store, operation: Callable[[UnitOfWork], T]) -> T:
    """Let an operation work on a unit of work of the store, and commit it."""
    match store:
        case MemoryStore():
            with store._locked() as unit:
                return operation(unit)
        case SqliteStore():
            return await store._writer.run(operation)
        case PostgresStore():
            return await store._write(
                lambda: decide(store._calls, [RunRead(ID)], lambda unit, _: operation(unit), None)
            )
        case KeyValueStore():
            return await store._apply(lambda unit, _: operation(unit))
        case _:
            raise AssertionError(store)


async def restore(store: Store, dump: Dump) -> None:
    transfer = store.transfer
    assert transfer is not None
    restored = await transfer.restore(Restoration(export_id="x", last_event=5_000, runs=(dump,)))
    assert [fate.outcome for fate in restored.fates] == ["restored"]


async def dumped(store: Store) -> Dump:
    transfer = store.transfer
    assert transfer is not None
    (dump,) = await transfer.dump([ID])
    return dump


def test_the_samples_leave_no_field_at_its_default() -> None:
    values = (filled(Run), filled(Entry), filled(Arrival), filled(Wait))

    left = [
        (type(value).__name__, column.field)
        for value in values
        for column in columns_of(type(value)).values()
        if getattr(value, column.field) == column.default
    ]
    assert left == []


async def test_a_run_comes_back_with_every_field(store: Store) -> None:
    run = full_run()

    await restore(store, Dump(run=run))

    assert (await dumped(store)).run == run


async def test_entries_arrivals_and_waits_come_back_with_every_field(store: Store) -> None:
    entry = filled(Entry, kind=EntryKind.STEP)
    arrival = filled(Arrival, number=1, ref="4000")
    wait = filled(Wait)

    await restore(store, Dump(run=full_run(), entries=(entry,), inbox=(arrival,), waits=(wait,)))

    found = await dumped(store)
    assert (found.entries, found.inbox, found.waits) == ((entry,), (arrival,), (wait,))


async def test_a_field_that_changes_alone_is_written(store: Store) -> None:
    await restore(store, Dump(run=plain_run()))
    wanted = [replace(plain_run(), **change) for change in changes()]
    found: list[Run | None] = []

    for run in wanted:
        await put(store, plain_run())
        await put(store, run)
        found.append(await work(store, lambda unit: unit.runs.whole(ID)))

    assert found == wanted


async def put(store: Store, run: Run) -> None:
    def operation(unit: UnitOfWork) -> None:
        assert unit.runs.whole(run.id) is not None  # an operation changes only what it has read
        unit.runs.put(run)

    await work(store, operation)
