"""Migrations: the numbered steps of a schema, and the rules for them that all stores share.

A store is made as its *baseline* and all steps after it. A step declares in its first line whether it is *compatible*:
workers of the number before it go on. After a step that is not, the store refuses them. So a store has two numbers: its
own, and the lowest one whose code may still use it (`compatible_from`). Code with a lower number than the store decides
by the second one, because it does not know the steps that came after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Generic, TypeVar

from holdfast.core.clock import Micros
from holdfast.core.errors import SchemaOutOfDate
from holdfast.core.ports import AppliedStep, Finding, SchemaStatus, SchemaStep, installed_version
from holdfast.stores.sql_text import filled_in

B = TypeVar("B")

_NAME = re.compile(r"(\d{4})-([a-z0-9-]+)\.sql")
_HEAD = re.compile(r"-- (compatible|incompatible): (.+)\n")


@dataclass(frozen=True)
class Migration(Generic[B]):
    """A step and how to apply it: a text in SQL, or a function."""

    step: SchemaStep
    body: B

    def compatible_from(self, before: int) -> int:
        """Return the lowest number whose code may use a store after this step, if it was `before`."""
        return before if self.step.is_compatible else self.step.number

    def applied(self, at: Micros) -> AppliedStep:
        """Return what a store records about this step."""
        return AppliedStep(number=self.step.number, name=self.step.name, at=at, version=installed_version())


class Migrations(Generic[B]):
    """The steps of one kind of store, in the order of their numbers, which follow each other from the baseline on."""

    def __init__(self, baseline: int, migrations: Sequence[Migration[B]]) -> None:
        assert [one.step.number for one in migrations] == [baseline + 1 + at for at in range(len(migrations))]
        self.baseline = baseline
        self.all = tuple(migrations)

    @property
    def number(self) -> int:
        """The schema number of a store that has gone through all steps."""
        return self.baseline + len(self.all)

    def after(self, current: int) -> tuple[Migration[B], ...]:
        """Return the steps that a store with this number has yet to go through."""
        return self.all[current - self.baseline :] if current >= self.baseline else ()

    def status(
        self, current: int, compatible_from: int | None = None, applied: Sequence[AppliedStep] = ()
    ) -> SchemaStatus:
        """Return the status of a store with these numbers and this record."""
        return SchemaStatus(
            current=current,
            wanted=self.number,
            compatible_from=compatible_from or current,
            pending=tuple(one.step for one in self.after(current)),
            applied=tuple(applied),
        )


def sql_migrations(baseline: int, folder: Traversable, constants: Mapping[str, str]) -> Migrations[str]:
    """Read the steps of a store on SQL from their files: `0008-record-of-steps.sql`.

    The first line of a file says if the step is compatible, and what it does: `-- compatible: keep a record of steps`.
    """
    found: list[Migration[str]] = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        text = filled_in(file.read_text("utf-8"), constants)
        name, head = _NAME.fullmatch(file.name), _HEAD.match(text)
        assert name is not None, f"{file.name}: expected a name such as 0008-record-of-steps.sql"
        assert head is not None, f"{file.name}: expected a first line such as -- compatible: keep a record of steps"
        step = SchemaStep(number=int(name[1]), name=name[2], about=head[2], is_compatible=head[1] == "compatible")
        found.append(Migration(step, text))
    return Migrations(baseline, found)


def check(found: SchemaStatus, where: str, *, may_migrate: bool = False) -> None:
    """Refuse a store that this code cannot use. An empty store is accepted, and with `may_migrate` an older one.

    Raises:
        SchemaOutOfDate: The message says what to do.

    """
    refusal = _refusal(found)
    if refusal is not None and (is_newer(found) or not (may_migrate and found.pending)):
        raise SchemaOutOfDate(f"{where} has {refusal}")


def trouble(found: SchemaStatus) -> str | None:
    """Return the problem with the schema of a store in use, or None if this code can use it."""
    return "the store has no schema; create it with `holdfast migrate`" if found.current == 0 else _refusal(found)


def is_newer(found: SchemaStatus) -> bool:
    """Return True if the store went through a step that this code does not know and is not compatible with."""
    return (found.compatible_from or found.current) > found.wanted


def finding_of_schema(found: SchemaStatus, where: str = "") -> Finding:
    """Return the schema number of a store for the check-up, with the last step that it records."""
    if (problem := trouble(found)) is not None:
        return Finding.problem("schema", problem)
    text = f"number {found.current}{where}"
    if found.current > found.wanted:
        text += f", of a newer version of holdfast that is compatible with number {found.wanted}"
    if found.applied:
        last = found.applied[-1]
        text += f"; its last step, {last.name}, was applied by holdfast {last.version}"
    return Finding.ok("schema", text)


def _refusal(found: SchemaStatus) -> str | None:
    """Return both schema numbers and what to do, or None if this code can use the store."""
    needs = f"this version needs number {found.wanted}: "
    if is_newer(found):
        return (
            f"schema number {max(found.current, found.compatible_from)}, made by a newer version of holdfast; {needs}"
            "use the newer version here, or restore a backup of the store; a store cannot go back"
        )
    if found.pending:
        return (
            f"schema number {found.current}, made by an older version of holdfast; {needs}run `holdfast migrate` "
            "(`holdfast migrate --plan` shows the steps), or set HOLDFAST_MIGRATE=auto"
        )
    if 0 < found.current < found.wanted:
        return (
            f"schema number {found.current}, made by an older version of holdfast, which has no steps here; {needs}"
            "export with the old version, import with the new one (`holdfast export > runs.jsonl` with the version "
            "that made the store, then `holdfast import runs.jsonl` with this one into an empty store)"
        )
    return None
