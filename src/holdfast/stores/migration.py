"""Migrations: numbered SQL files beside a store, each one step from a version of its schema to the next."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import msgspec

from holdfast.core.ports import SchemaStatus


class Migration(msgspec.Struct, frozen=True):
    """One step from a version to the next."""

    version: int
    name: str
    script: str


def migrations_of(package: str) -> list[Migration]:
    """All there are in a package, in order. The file name begins with the version it leads to."""
    scripts = [file for file in (files(package) / "migrations").iterdir() if file.name.endswith(".sql")]
    found = [
        Migration(int(file.name.partition("_")[0]), file.name.removesuffix(".sql"), file.read_text("utf-8"))
        for file in scripts
    ]
    return sorted(found, key=lambda migration: migration.version)


def status_at(current: int, known: Sequence[Migration]) -> SchemaStatus:
    """What is to be done to a schema of this version, if all of these are known."""
    pending = tuple(migration.name for migration in known if migration.version > current)
    return SchemaStatus(current=current, wanted=known[-1].version, pending=pending)
