"""Steps for tests: two more for each kind of store, the first compatible, the second not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from holdfast.core.ports import Report, SchemaStep, Store
from holdfast.stores.kv import KeyValueStore, migrations
from holdfast.stores.kv.driver import Driver
from holdfast.stores.migrations import Migration, Migrations
from holdfast.stores.postgres import PostgresStore, sql_files
from holdfast.stores.redis import RedisDriver
from holdfast.stores.sqlite import SqliteStore, schema

B = TypeVar("B")

KINDS = ("sqlite", "postgres", "redis")


def extended(known: Migrations[B], first: B, second: B, count: int = 2) -> Migrations[B]:
    """Return the known steps and one or two more."""
    bodies = {"colour": first, "price": second}
    more = [
        Migration(
            SchemaStep(number=known.number + place, name=name, about=f"add {name}", is_compatible=place == 1), body
        )
        for place, (name, body) in enumerate(list(bodies.items())[:count], 1)
    ]
    return Migrations(known.baseline, [*known.all, *more])


def of_sqlite(count: int = 2) -> Migrations[str]:
    first = (
        "alter table run add column colour text; update run set colour = 'red'; create index colours on run (colour);"
    )
    return extended(schema.migrations(), first, "create table price (id integer); update run set priority = 7;", count)


def of_postgres(count: int = 2) -> Migrations[str]:
    first = "alter table runs add column colour text; update runs set colour = 'red';"
    return extended(sql_files.migrations(), first, "create table prices (id integer)", count)


async def _paint(driver: Driver, report: Report) -> None:
    def change(head: Mapping[str, bytes]) -> Mapping[str, bytes]:
        return {} if "colour" in head else {"colour": b"red"}

    await migrations.change_runs(driver, change, report)


async def _price(driver: Driver, report: Report) -> None:
    await migrations.change_runs(driver, lambda head: {} if "price" in head else {"price": b"1"}, report)


def of_key_values(count: int = 2) -> Migrations[migrations.StepFunction]:
    return extended(migrations.MIGRATIONS, _paint, _price, count)


def store_of(kind: str, place: str, count: int) -> Store:
    """Return a store whose code knows this many steps more than ours."""
    if kind == "sqlite":
        return SqliteStore(Path(place), steps=of_sqlite(count))
    if kind == "postgres":
        return PostgresStore(place, steps=of_postgres(count))
    steps = of_key_values(count)
    return KeyValueStore(lambda: RedisDriver(place, number=steps.number), steps=steps)


def ignore(_line: Any) -> None:
    """A report that nobody reads."""
