"""The committer: which checkpoints share a commit, which commits run in parallel, and the handling of errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import repeat

import pytest

from holdfast.core.checkpoint import Checkpoint, Hold, Verdict, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.errors import StoreUnavailable
from holdfast.stores.memory import MemoryStore
from holdfast.testing.patience import guarded, until
from holdfast.worker.committer import BATCH_LIMIT, WORTH_A_COMMIT, WORTH_SHARE, Committer


class ScriptedStore(MemoryStore):
    """A store that keeps nothing, and answers batches on command, in any order."""

    def __init__(self, flushes: int) -> None:
        super().__init__()
        self.concurrent_checkpoints = flushes
        self.calls: list[tuple[list[str], asyncio.Future[Verdicts]]] = []

    def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> asyncio.Future[Verdicts]:  # type: ignore[override]
        answer: asyncio.Future[Verdicts] = asyncio.get_running_loop().create_future()
        self.calls.append(([checkpoint.run_id for checkpoint in checkpoints], answer))
        return answer

    @property
    def batches(self) -> list[list[str]]:
        """The runs of every batch so far."""
        return [runs for runs, _ in self.calls]

    async def answer(self, index: int, error: Exception | None = None, *, now: Micros = 1) -> None:
        """Answer a batch, and let all waiters react."""
        runs, future = self.calls[index]
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(Verdicts(verdicts=tuple(Verdict(run_id=run) for run in runs), now=now))
        await rounds()

    async def called(self, times: int) -> None:
        """Wait until there were this many batches."""
        await until(f"there were {times} batches", lambda: len(self.calls) >= times)


async def rounds() -> None:
    """Let the loop execute whatever is ready."""
    for _ in range(5):
        await asyncio.sleep(0)


class Run:
    """A run that always has something to write, and never checks whether the last checkpoint is written."""

    def __init__(self, id: str, rig: Rig) -> None:
        self.id = id
        self.taken = 0
        self.answers: list[Verdict | Exception] = []
        self._rig = rig

    def take_checkpoint(self) -> Checkpoint | None:
        assert len(self.answers) == self.taken, "its last checkpoint is in flight"
        self.taken += 1
        return Checkpoint(run_id=self.id, token=1, next=Hold(), seen=0)

    def on_written(self, verdict: Verdict) -> None:
        assert verdict.run_id == self.id
        if self.id in self._rig.broken:
            raise ValueError(f"{self.id} is broken")
        self.answers.append(verdict)
        if self.id in self._rig.again:
            self._rig.again.remove(self.id)
            self._rig.committer.add(self)

    def on_refused(self, error: Exception) -> None:
        self.answers.append(error)


class Rig:
    """A committer on a scripted store, and runs that write."""

    def __init__(self, flushes: int) -> None:
        self.store = ScriptedStore(flushes)
        self.is_alone = False
        self.times: list[Micros] = []
        self.again: list[str] = []
        self.broken: list[str] = []
        self.committer = Committer(self.store, self.times.append, lambda: self.is_alone)
        self.runs: dict[str, Run] = {}

    async def add(self, *ids: str) -> None:
        for id in ids:
            self.committer.add(self.runs.setdefault(id, Run(id, self)))
        await rounds()

    async def add_many(self, name: str, number: int) -> list[str]:
        """Return names of runs with a common prefix."""
        ids = [f"{name}{index}" for index in range(number)]
        await self.add(*ids)
        return ids

    def written(self) -> list[str]:
        return [id for id, run in self.runs.items() if run.answers]


# One at a time


async def test_checkpoints_ready_in_one_round_share_a_commit() -> None:
    rig = Rig(flushes=1)

    await rig.add("a", "b")

    assert rig.store.batches == [["a", "b"]]
    assert not rig.committer.is_idle


async def test_a_single_checkpoint_is_written_at_once() -> None:
    rig = Rig(flushes=1)
    rig.is_alone = True

    rig.committer.add(Run("a", rig))

    assert rig.store.batches == [["a"]]


async def test_with_one_flush_all_other_checkpoints_wait_for_the_answer() -> None:
    rig = Rig(flushes=1)
    rig.is_alone = True
    await rig.add("a")
    many = await rig.add_many("b", WORTH_A_COMMIT * 2)
    assert rig.store.batches == [["a"]]

    await rig.store.answer(0)

    assert rig.store.batches == [["a"], many]
    assert rig.written() == ["a"]


async def test_checkpoints_after_the_answers_share_the_next_commit() -> None:
    rig = Rig(flushes=1)
    await rig.add("a", "b")
    await rig.add("c")
    rig.again = ["a", "b"]

    await rig.store.answer(0)

    assert rig.store.batches == [["a", "b"], ["c", "a", "b"]]


async def test_a_batch_has_a_limit() -> None:
    rig = Rig(flushes=1)
    await rig.add_many("a", BATCH_LIMIT + 1)

    await rig.store.answer(0)

    assert list(map(len, rig.store.batches)) == [BATCH_LIMIT, 1]


# Two at a time


async def test_a_second_flush_waits_while_more_checkpoints_are_expected() -> None:
    rig = Rig(flushes=2)
    await rig.add("a")
    await rig.add("b", "c")
    assert rig.store.batches == [["a"]]

    await rig.store.answer(0)

    assert rig.store.batches == [["a"], ["b", "c"]]


async def test_a_second_flush_starts_when_no_more_checkpoints_are_expected() -> None:
    rig = Rig(flushes=2)
    await rig.add("a")
    await rig.add("b")

    rig.is_alone = True
    await rig.add("c")

    assert rig.store.batches == [["a"], ["b", "c"]]


async def test_a_second_flush_starts_when_enough_checkpoints_have_gathered() -> None:
    rig = Rig(flushes=2)
    await rig.add("a")
    few = await rig.add_many("b", WORTH_A_COMMIT - 1)
    assert len(rig.store.calls) == 1

    await rig.add("last")

    assert rig.store.batches == [["a"], [*few, "last"]]


@pytest.mark.parametrize(("in_flight", "goes"), [(WORTH_SHARE, True), (WORTH_SHARE + 1, False)])
async def test_a_small_batch_waits_for_the_answer_of_a_large_one(in_flight: int, goes: bool) -> None:
    rig = Rig(flushes=2)
    large = await rig.add_many("a", in_flight)
    rig.is_alone = True
    await rig.add("crumb")
    assert (len(rig.store.calls) == 2) is goes

    await rig.store.answer(0)

    assert rig.store.batches == [large, ["crumb"]]


async def test_at_most_as_many_batches_are_in_flight_as_the_store_supports() -> None:
    rig = Rig(flushes=2)
    rig.is_alone = True
    await rig.add("a")
    await rig.add("b")
    await rig.add("c")
    assert rig.store.batches == [["a"], ["b"]]

    await rig.store.answer(1)

    assert rig.store.batches == [["a"], ["b"], ["c"]]


async def test_checkpoints_beyond_one_batch_go_in_a_second_one() -> None:
    rig = Rig(flushes=2)

    await rig.add_many("a", BATCH_LIMIT * 2)

    assert list(map(len, rig.store.batches)) == [BATCH_LIMIT, BATCH_LIMIT]


async def test_a_large_batch_goes_in_halves_if_none_is_in_flight() -> None:
    """Then the runs of one half continue while the store writes the other half."""
    rig = Rig(flushes=2)
    ids = await rig.add_many("a", 2 * WORTH_A_COMMIT + 1)
    assert rig.store.batches == [ids[: WORTH_A_COMMIT + 1], ids[WORTH_A_COMMIT + 1 :]]

    rig.again += ids
    await rig.store.answer(0)
    await rig.store.answer(1)

    assert rig.store.batches[2:] == rig.store.batches[:2]


@pytest.mark.parametrize(("flushes", "count"), [(1, 2 * WORTH_A_COMMIT), (2, 2 * WORTH_A_COMMIT - 1)])
async def test_a_batch_is_whole_if_its_halves_are_not_worth_a_commit_each(flushes: int, count: int) -> None:
    rig = Rig(flushes=flushes)

    ids = await rig.add_many("a", count)

    assert rig.store.batches == [ids]


async def test_answers_may_come_in_any_order() -> None:
    rig = Rig(flushes=2)
    rig.is_alone = True
    await rig.add("a")
    await rig.add("b")

    await rig.store.answer(1, now=20)
    assert rig.written() == ["b"]
    await rig.store.answer(0, now=10)

    assert rig.written() == ["a", "b"]
    assert rig.times == [20, 10]
    assert rig.committer.is_idle


async def test_a_run_never_has_two_checkpoints_in_flight() -> None:
    rig = Rig(flushes=3)
    rig.is_alone = True
    await rig.add("a")
    await rig.add("b")
    await rig.add("a", "c")
    assert rig.store.batches == [["a"], ["b"], ["c"]]

    await rig.store.answer(2)
    assert len(rig.store.calls) == 3
    await rig.store.answer(0)

    assert rig.store.batches == [["a"], ["b"], ["c"], ["a"]]


async def test_a_run_that_waits_for_its_own_answer_is_not_idle() -> None:
    rig = Rig(flushes=2)
    rig.is_alone = True
    await rig.add("a")
    await rig.add("a")

    idle = []
    for index in range(2):
        await rig.store.answer(index)
        idle.append(rig.committer.is_idle)

    assert idle == [False, True]
    assert len(rig.runs["a"].answers) == 2


# Errors


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the committer retry at once, because it waits in real time."""
    monkeypatch.setattr("holdfast.worker.committer.pauses", lambda: repeat(0.0))


@pytest.mark.usefixtures("impatient")
async def test_an_outage_is_logged_once_however_many_batches_are_in_flight(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "holdfast.worker")
    rig = Rig(flushes=2)
    rig.is_alone = True
    await rig.add("a")
    await rig.add("b")

    await rig.store.answer(0, StoreUnavailable("away"))
    await rig.store.answer(1, StoreUnavailable("away"))
    await rig.store.called(4)
    await rig.store.answer(2)
    await rig.store.answer(3)

    assert rig.store.batches == [["a"], ["b"], ["a"], ["b"]]
    assert rig.written() == ["a", "b"]
    assert told(caplog) == ["cannot write; trying again: away", "writing works again"]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines, without durations."""
    return [record.getMessage().partition(" after ")[0] for record in caplog.records]


@pytest.mark.usefixtures("impatient")
async def test_an_outage_that_ends_with_a_refusal_does_not_silence_the_next_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "holdfast.worker")
    rig = Rig(flushes=1)
    rig.is_alone = True
    await rig.add("a")
    await rig.store.answer(0, StoreUnavailable("away"))
    await rig.store.called(2)
    await rig.store.answer(1, ValueError("too large"))

    await rig.add("b")
    await rig.store.answer(2, StoreUnavailable("away again"))
    await rig.store.called(4)
    await rig.store.answer(3)

    assert told(caplog) == [
        "cannot write; trying again: away",
        "writing works again",
        "cannot write; trying again: away again",
        "writing works again",
    ]


@pytest.mark.usefixtures("impatient")
async def test_nothing_else_is_sent_while_a_batch_is_retried() -> None:
    rig = Rig(flushes=2)
    rig.is_alone = True
    await rig.add("a")
    await rig.store.answer(0, StoreUnavailable("away"))
    await rig.store.called(2)

    await rig.add("b")
    assert rig.store.batches == [["a"], ["a"]]
    await rig.store.answer(1)

    assert rig.store.batches == [["a"], ["a"], ["b"]]


def held_up() -> StoreUnavailable:
    error = StoreUnavailable("somebody has locked it")
    error.is_held_up = True
    return error


@pytest.mark.usefixtures("impatient")
async def test_a_checkpoint_that_is_held_up_delays_no_other() -> None:
    rig = Rig(flushes=1)
    await rig.add("a", "b", "c")
    await rig.store.answer(0, held_up())
    await rig.store.called(4)
    assert rig.store.batches[1:] == [["a"], ["b"], ["c"]]
    await rig.store.answer(1)
    await rig.store.answer(3)
    assert rig.written() == ["a", "c"]  # the one in between is still held up

    await rig.store.answer(2, held_up())
    await rig.store.called(5)
    await rig.add("d", "a")
    assert rig.store.batches[4:] == [["b"], ["d", "a"]]
    await rig.store.answer(5)
    await rig.add("b")  # its last checkpoint is in flight
    assert not rig.committer.is_idle
    await rig.store.answer(4)
    await rig.store.answer(6)

    assert rig.written() == ["a", "b", "c", "d"]
    assert rig.store.batches[6:] == [["b"]]
    assert rig.committer.is_idle


@pytest.mark.usefixtures("impatient")
async def test_a_single_checkpoint_that_is_held_up_delays_no_other() -> None:
    rig = Rig(flushes=1)
    await rig.add("a")
    await rig.store.answer(0, held_up())
    await rig.store.called(2)
    await rig.add("b")
    assert rig.store.batches == [["a"], ["a"], ["b"]]


@pytest.mark.usefixtures("impatient")
async def test_a_batch_that_is_held_up_after_an_outage_is_split_too() -> None:
    rig = Rig(flushes=1)
    await rig.add("a", "b")
    await rig.store.answer(0, StoreUnavailable("away"))
    await rig.store.called(2)
    await rig.store.answer(1, held_up())
    await rig.store.called(4)
    assert rig.store.batches == [["a", "b"], ["a", "b"], ["a"], ["b"]]
    await rig.store.answer(3)
    assert rig.written() == ["b"]
    await rig.committer.close()
    assert rig.committer.is_idle


async def test_a_refusal_affects_only_its_own_run_also_beside_another_flush() -> None:
    rig = Rig(flushes=2)
    await rig.add("a", "b")
    rig.is_alone = True
    await rig.add("c")
    error = ValueError("not this one")

    await rig.store.answer(0, error)
    await rig.store.answer(2)
    await rig.store.answer(3, error)
    await rig.store.answer(1)

    assert rig.store.batches == [["a", "b"], ["c"], ["a"], ["b"]]
    assert rig.runs["b"].answers == [error]
    assert rig.written() == ["a", "b", "c"]
    assert rig.committer.is_idle


async def test_a_run_that_fails_to_handle_its_answer_does_not_affect_others() -> None:
    rig, told = Rig(1), []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: told.append(str(about["exception"])))
    rig.broken = ["b"]
    await rig.add("a", "b", "c")
    await rig.store.answer(0)
    assert rig.written() == ["a", "c"]
    assert told == ["b is broken"]
    await rig.add("d")
    await rig.store.answer(1)
    assert rig.written() == ["a", "c", "d"]


async def test_a_store_that_raises_at_the_call_is_like_one_that_answers_with_an_error() -> None:
    class Refusing(ScriptedStore):
        def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> asyncio.Future[Verdicts]:  # type: ignore[override]
            raise ValueError("no")

    rig = Rig(flushes=2)
    rig.committer = Committer(Refusing(2), rig.times.append, lambda: True)

    await rig.add("a")
    await rig.add("b")

    assert [type(run.answers[0]) for run in rig.runs.values()] == [ValueError, ValueError]


# Closing


async def test_closing_abandons_batches_in_flight() -> None:
    rig = Rig(flushes=2)
    rig.is_alone = True
    await rig.add("a")
    await rig.add("b")
    await rig.add("c")

    await rig.committer.close()
    await rounds()

    assert all(future.cancelled() for _, future in rig.store.calls)
    assert rig.store.batches == [["a"], ["b"]]
    assert rig.written() == []


async def test_closing_ends_a_batch_that_is_retried() -> None:
    rig = Rig(flushes=2)
    rig.is_alone = True
    await rig.add("a")
    await rig.add("b")
    await rig.store.answer(0, StoreUnavailable("away"))

    await guarded("the committer is closed", rig.committer.close())
    await rounds()

    assert rig.store.batches == [["a"], ["b"]]


async def test_an_error_that_arrives_while_closing_is_not_retried() -> None:
    rig = Rig(flushes=1)
    await rig.add("a")
    rig.store.calls[0][1].set_exception(StoreUnavailable("away"))

    await rig.committer.close()
    await rounds()

    assert rig.store.batches == [["a"]]
    assert rig.committer.is_idle
