"""Random programs of the whole vocabulary come to the end that an interpreter says, whatever crashes.

`HOLDFAST_VOCABULARY=5000` plays that many instead of a few hundred; `python -m tests.crash.explore` plays more of each.
A failure names its seed, its program and the command that repeats it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.model import Entry
from holdfast.runner import inbox, looping, mapping, operation, rollback
from holdfast.runner.branches import Branches
from holdfast.runner.child import Child
from holdfast.runner.history import History
from holdfast.runner.turn import Turn
from holdfast.testing.postgres import Databases
from holdfast.testing.programs.effects import NOTHING, Check, Effect, Maybe, Par, Seq
from holdfast.testing.programs.interpreter import Interpreter
from holdfast.testing.programs.performer import Performer
from tests.crash import explore
from tests.crash.explore import Mismatch

PROGRAMS = int(os.environ.get("HOLDFAST_VOCABULARY", "400"))
BATCHES = 8

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]


@pytest.fixture(autouse=True)
def impatient_committer(monkeypatch: Patch) -> None:
    """Have the committer try again at once: it waits in real time."""
    monkeypatch.setattr("holdfast.worker.committer._FIRST_PAUSE_SECONDS", 0.0)


@pytest.mark.timeout(max(60, PROGRAMS))
@pytest.mark.parametrize("batch", range(BATCHES))
async def test_random_programs_come_to_the_end_that_an_interpreter_says(
    batch: int, tmp_path: Path, postgres_databases: Databases
) -> None:
    for seed in range(batch, PROGRAMS, BATCHES):
        await explore.explore(seed, tmp_path, databases=postgres_databases)


def test_a_seed_always_grows_the_same_program() -> None:
    assert [explore.program_of(seed) for seed in range(20)] == [explore.program_of(seed) for seed in range(20)]


def test_programs_use_the_whole_vocabulary() -> None:
    def kinds(node: Any) -> set[str]:
        if isinstance(node, dict):
            return set().union(*map(kinds, node.values()))
        if not isinstance(node, list):
            return set()
        name = {node[0]} if node and isinstance(node[0], str) else set()
        return name.union(*map(kinds, node))

    grown = set().union(*(kinds(explore.program_of(seed)) for seed in range(PROGRAMS)))
    known = {name[1:] for name in vars(Performer) if hasattr(Interpreter, name) and not name.startswith("__")}
    assert known - grown == {"branches"}


# The comparison can fail: each of these breaks a promise, and is found


def undo_goes_forwards(patch: Patch) -> None:
    plain = rollback.Undoing._undo_functions
    patch.setattr(rollback.Undoing, "_undo_functions", lambda self: plain(self)[::-1])


def undo_forgets_the_first(patch: Patch) -> None:
    plain = rollback.Undoing._undo_functions
    patch.setattr(rollback.Undoing, "_undo_functions", lambda self: plain(self)[:-1])


def pruning_takes_undo_along(patch: Patch) -> None:
    patch.setattr("holdfast.stores.memory.checkpoints._prune", _prune_everything)


def _prune_everything(record: Any, scope: str) -> None:
    for location in [at for at in record.entries if at == scope or at.startswith(f"{scope}/")]:
        del record.entries[location]


def a_race_names_the_last(patch: Patch) -> None:
    patch.setattr(Branches, "_key_of", lambda self, _: list(self._tasks)[-1])


def a_join_does_not_fail_fast(patch: Patch) -> None:
    plain = Branches.join

    async def join(self: Branches, *, fail_fast: bool) -> Any:
        return await plain(self, fail_fast=False)

    patch.setattr(Branches, "join", join)


def a_loop_forgets_its_state(patch: Patch) -> None:
    plain = looping.Looping._resume

    async def resume(self: looping.Looping) -> tuple[int, Any]:
        number, _ = await plain(self)
        return number, self._first[1]

    patch.setattr(looping.Looping, "_resume", resume)


def a_map_mixes_up_its_results(patch: Patch) -> None:
    plain = mapping.ChildMap._collect
    patch.setattr(mapping.ChildMap, "_collect", lambda self, ends: plain(self, ends)[::-1])


def a_map_ignores_its_limit(patch: Patch) -> None:
    plain = Child.create
    patch.setattr(Child, "create", lambda self, **_: plain(self))


def a_timer_rings_early(patch: Patch) -> None:
    plain = operation.Pause.__init__

    def init(self: operation.Pause, location: str, *, deadline: int, fire: Any = None) -> None:
        plain(self, location, deadline=deadline - 1_000, fire=fire)

    patch.setattr(operation.Pause, "__init__", init)


def a_failure_is_told_as_another(patch: Patch) -> None:
    plain = History.pop_replay

    def pop(self: History) -> tuple[Any, Entry]:
        asked, entry = plain(self)
        return asked, replace(entry, error=entry.error and replace(entry.error, message="another"))

    patch.setattr(History, "pop_replay", pop)


def a_step_is_not_written_by_itself(patch: Patch) -> None:
    plain = Turn._settle_step

    def settle(self: Turn, call: Any, *args: Any, **outcome: Any) -> None:
        call.options = replace(call.options, ephemeral=True)
        plain(self, call, *args, **outcome)

    patch.setattr(Turn, "_settle_step", settle)


def messages_come_last_first(patch: Patch) -> None:
    plain = inbox.Inbox._seek

    def seek(self: inbox.Inbox, asked: Any) -> None:
        self._arrivals = dict(sorted(self._arrivals.items(), reverse=True))
        plain(self, asked)

    patch.setattr(inbox.Inbox, "_seek", seek)


def the_past_is_undone_too(patch: Patch) -> None:
    patch.setattr("holdfast.stores.memory.checkpoints.Renew", type("Never", (), {}))


MUTANTS: dict[Mutant, tuple[str, ...]] = {
    undo_goes_forwards: ("rollback",),
    undo_forgets_the_first: ("rollback",),
    pruning_takes_undo_along: ("loop",),
    a_race_names_the_last: ("race",),
    a_join_does_not_fail_fast: ("join",),
    a_loop_forgets_its_state: ("loop",),
    a_map_mixes_up_its_results: ("map",),
    a_map_ignores_its_limit: ("map", "sleep"),
    a_timer_rings_early: ("sleep",),
    a_failure_is_told_as_another: ("broken",),
    a_step_is_not_written_by_itself: ("step",),
    messages_come_last_first: ("inbox",),
    the_past_is_undone_too: ("rollback",),
}
"""What is broken, and the operations that a program needs to show it."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
async def test_what_is_broken_is_found(mutant: Mutant, monkeypatch: Patch, tmp_path: Path) -> None:
    mutant(monkeypatch)
    monkeypatch.setattr(explore, "PLAY_SECONDS", 1.0)
    for seed in range(2_000):
        grown = json.dumps(explore.program_of(seed))
        if all(f'["{word}"' in grown for word in MUTANTS[mutant]):
            try:
                await explore.explore(seed, tmp_path)
            except Mismatch:
                return
    raise AssertionError("no program shows it")


def wrong(tree: Any, *begun: str, crashes: int = 0) -> bool:
    return bool(Check([("", name) for name in begun], crashes=crashes).problems([tree]))


def test_a_ledger_is_held_against_order_and_number() -> None:
    a, b, c = (Effect("", name) for name in "abc")
    assert not wrong(Seq((a, Par((b, c)))), "a", "c", "b")
    assert wrong(Seq((a, Par((b, c)))), "c", "a", "b")
    assert wrong(Seq((a, b)), "a")
    assert wrong(Seq((a, b)), "a", "a", "b")
    assert wrong(NOTHING, "a")


def test_after_a_crash_a_body_may_be_repeated_but_not_after_the_next_has_begun() -> None:
    a, b = Effect("", "a"), Effect("", "b")
    assert not wrong(Seq((a, b)), "a", "a", "b", crashes=1)
    assert wrong(Seq((a, b)), "a", "b", "a", crashes=1)
    assert not wrong(Seq((Effect("", "a", is_firm=False), b)), "a", "b", "a", crashes=1)


def test_what_was_cut_off_has_happened_up_to_some_point() -> None:
    a, b = Effect("", "a"), Effect("", "b")
    assert not wrong(Maybe(Seq((a, b))))
    assert not wrong(Maybe(Seq((a, b))), "a")
    assert wrong(Maybe(Seq((a, b))), "b")
    assert wrong(Maybe(Seq((a, b))), "b", "a")
