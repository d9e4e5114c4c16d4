"""The store port stays small, and the store kit needs no driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from holdfast.core import commands, questions
from holdfast.core.commands import AnyCommand, Command
from holdfast.core.ports import Store
from holdfast.core.questions import AnyAwaited, AnyListing, AnyStat
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore

MEMBER_LIMIT = 22
CAPABILITIES = {"database", "transfer"}
UNIONS: dict[str, tuple[Any, Any]] = {
    "commands": (AnyCommand, Command),
    "stats": (AnyStat, questions.Stat),
    "listings": (AnyListing, questions.Listing),
    "changes": (AnyAwaited, questions.Awaited),
}


def members(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_the_port_has_few_members() -> None:
    assert members(Store) >= CAPABILITIES
    assert len(members(Store) - CAPABILITIES) <= MEMBER_LIMIT


@pytest.mark.parametrize("store", [MemoryStore, SqliteStore, PostgresStore], ids=lambda store: store.__name__)
def test_a_store_offers_the_port_and_nothing_else(store: type) -> None:
    forks = {"abandon"} if store is PostgresStore else set()  # called first in a forked child

    assert members(store) - forks == members(Store)


@pytest.mark.parametrize("name", UNIONS)
def test_a_union_is_closed(name: str) -> None:
    union, base = UNIONS[name]
    kinds = [kind for module in (commands, questions) for kind in vars(module).values() if isinstance(kind, type)]
    named = {kind for kind in kinds if issubclass(kind, base)} - {base, commands.Control, questions.Pages}

    assert set(get_args(union)) == named


@pytest.mark.parametrize("command", get_args(AnyCommand), ids=lambda kind: kind.__name__)
def test_every_command_carries_its_actor(command: Any) -> None:
    assert "by" in command.__struct_fields__


def test_the_store_kit_imports_no_driver() -> None:
    kit = Path(__file__).parents[2] / "src" / "holdfast" / "stores" / "workspace"
    modules = [f"holdfast.stores.workspace.{path.stem}" for path in kit.glob("*.py") if path.stem != "__init__"]
    probe = subprocess.run(
        [sys.executable, "-c", f"import sys, {', '.join(modules)}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert probe.returncode == 0, probe.stderr
    assert {"apsw", "psycopg", "redis", "sqlite3"}.isdisjoint(probe.stdout.split())
