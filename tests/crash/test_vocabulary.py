"""Random programs of the whole vocabulary end as an interpreter predicts, with any crashes.

`HOLDFAST_VOCABULARY=5000` plays that many instead of a few hundred; `python -m tests.crash.explore` plays more of each.
A failure names its seed, its program and the command that repeats it.
"""

from __future__ import annotations

from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from tests.crash import explore
from tests.duration import lasting
from tests.plugin.tiers import amount
from tests.postgres import Databases
from tests.programs.effects import NOTHING, Check, Effect, Maybe, Par, Seq
from tests.programs.interpreter import Interpreter
from tests.programs.performer import Performer

PROGRAMS = amount(short=40, long=320, variable="HOLDFAST_VOCABULARY")
BATCHES = amount(short=8, long=32)


@pytest.fixture(autouse=True)
def impatient_committer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the committer retry at once, because it waits in real time."""
    monkeypatch.setattr("holdfast.worker.committer.pauses", lambda: repeat(0.0))


@pytest.mark.both_tiers
@lasting(PROGRAMS / BATCHES)
@pytest.mark.parametrize("batch", range(BATCHES))
async def test_random_programs_end_as_the_interpreter_predicts(
    batch: int, tmp_path: Path, postgres_databases: Databases
) -> None:
    for seed in range(batch, PROGRAMS, BATCHES):
        await explore.explore(seed, tmp_path, databases=postgres_databases)


def test_a_seed_always_generates_the_same_program() -> None:
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


# These tests show that the comparison can fail; `tests/mutants` has bugs that simulations of such programs find.


def wrong(tree: Any, *begun: str, crashes: int = 0) -> bool:
    return bool(Check([("", name) for name in begun], crashes=crashes).problems([tree]))


def test_a_ledger_is_checked_for_order_and_number() -> None:
    a, b, c = (Effect("", name) for name in "abc")
    assert not wrong(Seq((a, Par((b, c)))), "a", "c", "b")
    assert wrong(Seq((a, Par((b, c)))), "c", "a", "b")
    assert wrong(Seq((a, b)), "a")
    assert wrong(Seq((a, b)), "a", "a", "b")
    assert wrong(NOTHING, "a")


def test_after_a_crash_a_body_may_be_repeated_but_not_after_the_next_has_started() -> None:
    a, b = Effect("", "a"), Effect("", "b")
    assert not wrong(Seq((a, b)), "a", "a", "b", crashes=1)
    assert wrong(Seq((a, b)), "a", "b", "a", crashes=1)
    assert not wrong(Seq((Effect("", "a", is_firm=False), b)), "a", "b", "a", crashes=1)


def test_an_operation_that_was_cut_off_has_happened_up_to_some_point() -> None:
    a, b = Effect("", "a"), Effect("", "b")
    assert not wrong(Maybe(Seq((a, b))))
    assert not wrong(Maybe(Seq((a, b))), "a")
    assert wrong(Maybe(Seq((a, b))), "b")
    assert wrong(Maybe(Seq((a, b))), "b", "a")
