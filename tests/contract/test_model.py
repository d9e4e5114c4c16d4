"""Every store answers like the model, whatever is done to it; and the machine that says so notices what is wrong.

`HOLDFAST_MODEL_EXAMPLES=2000 pytest tests/contract/test_model.py` looks longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from holdfast.core.checkpoint import Checkpoint, ClaimRequest, LeaseRequest, Verdict
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, Entry, Lease, Message
from holdfast.core.ports import Sent, Store
from holdfast.stores.memory import MemoryStore, _Record
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.contract import SettableClock
from tests.contract.machine import StoreMachine

EXAMPLES = int(os.environ.get("HOLDFAST_MODEL_EXAMPLES", "50"))
STEPS = 50


def drive(open_other: Callable[[SettableClock], Store], like: settings) -> None:
    class Machine(StoreMachine):
        def __init__(self) -> None:
            super().__init__(open_other)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            like,
            stateful_step_count=STEPS,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(60 + EXAMPLES * 2)
def test_the_sqlite_store_answers_like_the_model(tmp_path: Path) -> None:
    numbers = count()

    drive(lambda clock: SqliteStore(tmp_path / f"{next(numbers)}.db", clock=clock), settings(max_examples=EXAMPLES))


def test_the_model_answers_like_itself() -> None:
    drive(lambda clock: MemoryStore(clock=clock), settings(max_examples=10))


# The machine is worth what it finds: each of these stores has one bug.


class WithoutFence(MemoryStore):
    def _apply(self, checkpoint: Checkpoint, now: Micros) -> Verdict:
        record = self._records.get(checkpoint.run_id)
        token = record.run.token if record else 0
        return super()._apply(replace(checkpoint, token=token), now)


class ParksWithoutLooking(MemoryStore):
    def _apply(self, checkpoint: Checkpoint, now: Micros) -> Verdict:
        return super()._apply(replace(checkpoint, seen=1_000), now)


class OverwritesEntries(MemoryStore):
    def _record(self, record: _Record, entry: Entry, now: Micros) -> None:
        record.entries.pop(entry.location, None)
        super()._record(record, entry, now)


class ForgetsCrashes(MemoryStore):
    def _lease(self, record: _Record, by: ClaimRequest | LeaseRequest, now: Micros) -> Lease:
        record.run = replace(record.run, worker=None)
        return super()._lease(record, by, now)


class ForgetsReceipts(MemoryStore):
    def _consume(self, record: _Record, numbers: Sequence[int], now: Micros) -> None:
        super()._consume(record, numbers, now)
        record.receipts.clear()


class SendsToTheDead(MemoryStore):
    def _deliver_message(self, message: Message, now: Micros) -> Sent:
        return replace(super()._deliver_message(message, now), refused=None)


class WakesNobody(MemoryStore):
    def _deliver(self, record: _Record, arrival: Arrival, now: Micros) -> None:
        ready_at = record.run.ready_at
        super()._deliver(record, arrival, now)
        record.run = replace(record.run, ready_at=ready_at)


class LeavesChildrenAlone(MemoryStore):
    def _bury(self, record: _Record, now: Micros) -> None:
        run = record.run
        record.run = replace(run, id="nobody's parent")
        super()._bury(record, now)
        record.run = run


@pytest.mark.parametrize(
    "broken",
    [
        WithoutFence,
        ParksWithoutLooking,
        OverwritesEntries,
        ForgetsCrashes,
        ForgetsReceipts,
        SendsToTheDead,
        WakesNobody,
        LeavesChildrenAlone,
    ],
)
def test_the_machine_notices(broken: type[MemoryStore]) -> None:
    assert {name for name in vars(broken) if not name.startswith("__")} <= set(dir(MemoryStore)), "breaks nothing"
    # The same examples each time, so that it is found each time; and no search for the shortest one.
    like = settings(max_examples=2_000, derandomize=True, database=None, phases=[Phase.generate], print_blob=False)

    with pytest.raises(AssertionError):
        drive(lambda clock: broken(clock=clock), like)
