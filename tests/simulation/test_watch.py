"""The watch: each forbidden change is made to a store's state here, and must be detected."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from holdfast.core.checkpoint import Block, Checkpoint, Suspend
from holdfast.core.clock import SECOND, Micros
from holdfast.core.commands import EmitEvents, Recover, Rewind, SendMessages
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import Entry, EntryKind, EntryState, Rate, TypeRule
from holdfast.runner.operation import StepCall, StepOptions
from holdfast.runner.step_info import StepInfo
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory.state import State
from holdfast.testing.clock import VirtualClock
from holdfast.testing.contract import arrange
from holdfast.testing.simulation.watch import Violation, Watch
from tests.simulation import crowd


@dataclass
class Scene:
    """A store whose state is watched."""

    clock: VirtualClock
    store: MemoryStore
    state: State
    watch: Watch

    def wait(self, span: Micros) -> None:
        self.clock.pass_to(self.clock.now() + span)

    async def lost(self) -> Checkpoint:
        """A write of a worker whose run another one holds by now."""
        lease = await arrange.held(self.store)
        self.wait(2 * arrange.LEASE)
        await arrange.claim_one(self.store, worker=arrange.OTHER_WORKER)
        return arrange.checkpoint_for(lease)


@pytest.fixture
def scene() -> Scene:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    state = store._state
    return Scene(clock, store, state, Watch(state, clock.now, clock.now))


async def test_an_ordinary_life_is_not_a_violation(scene: Scene) -> None:
    lease = await arrange.held(scene.store)
    scene.watch.wrote("create", ())
    last = arrange.checkpoint_for(lease, arrange.succeed(), entries=(arrange.a_step(),))
    await arrange.write(scene.store, last)
    scene.watch.wrote("checkpoint", ([last],))

    scene.watch.finish()


async def test_a_message_or_event_under_an_old_token_is_detected(scene: Scene) -> None:
    lost = await scene.lost()
    await arrange.start(scene.store, arrange.an_intent(2))

    before_message = scene.watch.stale("checkpoint", ([lost],))
    await scene.store.apply(SendMessages(messages=[arrange.a_message(2)]))
    before_event = scene.watch.stale("checkpoint", ([lost],))
    await scene.store.apply(EmitEvents(events=[arrange.an_event()]))

    for kept in (before_message, before_event):
        with pytest.raises(Violation, match="I5: checkpoint under an old token changed other state"):
            scene.watch.check_stale(kept, "checkpoint")


async def test_a_value_that_is_set_under_an_old_token_is_detected(scene: Scene) -> None:
    lost = await scene.lost()

    kept = scene.watch.stale("checkpoint", ([lost],))
    scene.state.records[lost.run_id].values["progress"] = "1"

    with pytest.raises(Violation, match="I5: checkpoint under an old token changed run"):
        scene.watch.check_stale(kept, "checkpoint")


async def test_a_message_wait_that_ends_too_early_is_detected(scene: Scene) -> None:
    lease = await arrange.held(scene.store)
    scene.watch.wrote("create", ())
    waiting = arrange.for_message("go", deadline=scene.clock.now() + 60 * SECOND)
    checkpoint = arrange.checkpoint_for(lease, Suspend(), waits=(waiting,))
    await arrange.write(scene.store, checkpoint)
    scene.watch.wrote("checkpoint", ([checkpoint],))
    scene.wait(59 * SECOND)

    given_up = Entry(location="receive", kind=EntryKind.MESSAGE, state=EntryState.TIMED_OUT, position=1)
    scene.state.records[lease.run.id].entries["receive"] = given_up

    with pytest.raises(Violation, match=r"I7: .* fired 1\.000 s too early"):
        scene.watch.wrote("checkpoint", ([checkpoint],))


async def test_more_starts_than_a_rate_allows_are_detected(scene: Scene) -> None:
    for number in (1, 2):
        await arrange.held(scene.store, number)
    rate = Rate(count=1, period=60 * SECOND)
    scene.state.types[arrange.TYPE] = TypeRule(name=arrange.TYPE, rate=rate)

    with pytest.raises(Violation, match="I9: more than 1 runs"):
        scene.watch.wrote("create", ())


async def test_a_key_that_two_bodies_share_is_detected(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepInfo, "idempotency_key", "the same for all")
    call = StepCall("pay", print, (), None, StepOptions())  # type: ignore[arg-type]  # nothing is decoded

    scene.watch.body_begins(StepInfo("run", 0, "pay", 1), call, is_stale=True)

    with pytest.raises(Violation, match=r"I10: .*ship.* has the key of .*pay"):
        scene.watch.body_begins(StepInfo("run", 0, "ship", 1), call, is_stale=True)


@pytest.mark.parametrize("location", ["pay", "~undo/pay"])
async def test_a_key_that_outlives_an_undo_is_detected(scene: Scene, location: str) -> None:
    lease = await arrange.held(scene.store)
    scene.watch.wrote("create", ())
    call = StepCall(location, print, (), None, StepOptions())  # type: ignore[arg-type]  # nothing is decoded
    undone = arrange.a_step("~undo/pay", 2, kind=EntryKind.UNDO)
    await arrange.write(scene.store, arrange.checkpoint_for(lease, arrange.fail(), entries=(undone,)))
    scene.watch.wrote("checkpoint", ([],))
    run_id, generation = lease.run.id, lease.run.generation
    scene.watch.body_begins(StepInfo(run_id, generation, location, 1), call, is_stale=True)

    await scene.store.apply(Recover(run_id=run_id, id="r"))
    scene.watch.wrote("control", (Recover(run_id=run_id, id="r"),))

    scene.watch.body_begins(StepInfo(run_id, generation, location, 1), call, is_stale=True)
    with pytest.raises(Violation, match=rf"I10: .*{location}', 1\) has the key of .*{location}', 0\)"):
        scene.watch.body_begins(StepInfo(run_id, generation, location, 1), call, is_stale=False)
    scene.watch.body_begins(StepInfo(run_id, generation, location, 1, round=1), call, is_stale=False)


async def test_a_duplicate_of_a_child_is_detected_unless_its_parent_was_rewound(scene: Scene) -> None:
    lease = await arrange.held(scene.store)
    related = {"parent_id": lease.run.id, "parent_location": "call"}
    await arrange.write(scene.store, arrange.checkpoint_for(lease, entries=(arrange.a_step("a", 1),)))
    await arrange.start(scene.store, arrange.an_intent(2, **related))
    scene.watch.wrote("create", ())
    request = Rewind(run_id=lease.run.id, id="r", location="a", force=True)
    await scene.store.apply(request)
    scene.watch.wrote("control", (request,))
    await arrange.start(scene.store, arrange.an_intent(3, **related))
    scene.watch.wrote("create", ())
    await arrange.start(scene.store, arrange.an_intent(4, **related))

    with pytest.raises(Violation, match=f"I1: run {arrange.an_id(4)} is a twin of {arrange.an_id(3)}"):
        scene.watch.wrote("create", ())


async def test_a_run_that_kills_more_workers_than_allowed_is_detected(scene: Scene) -> None:
    deadly = await arrange.held(scene.store, type="deadly")

    def problems(killed: int) -> list[str]:
        return list(crowd.problems(scene.state, {(deadly.run.id, 0, "die"): killed}))

    assert problems(3) == []
    assert [problem.partition(":")[0] for problem in problems(4)] == ["I11"]


async def test_a_body_that_gets_another_mark_than_the_recorded_one_is_detected(scene: Scene) -> None:
    lease = await arrange.held(scene.store, type="limited")
    await arrange.write(
        scene.store, arrange.checkpoint_for(lease, entries=(arrange.a_step("work", result='"mark 1"'),))
    )
    marks = crowd.Marks()

    marks.received = [(lease.run.id, "mark 1")]
    assert list(crowd.differences(scene.state, marks)) == []
    marks.received = [(lease.run.id, "mark 2")]
    assert [text.partition(":")[0] for text in crowd.differences(scene.state, marks)] == ["I4"]


async def test_a_claim_that_is_missing_in_the_audit_is_detected(scene: Scene) -> None:
    lease = await arrange.held(scene.store)
    scene.watch.wrote("create", ())
    scene.state.records[lease.run.id].audit.clear()

    with pytest.raises(Violation, match=r"I12: .* was last claimed under token 1, but its audit says"):
        scene.watch.finish()


def diverged() -> Block:
    return Block(error=ErrorRecord(type="HistoryDiverged", message="it does not fit"), retry_at=1)


async def test_a_run_that_is_blocked_under_unchanged_code_is_detected(scene: Scene) -> None:
    lease = await arrange.held(scene.store)
    scene.watch.wrote("create", ())
    checkpoint = arrange.checkpoint_for(lease, diverged())
    await arrange.write(scene.store, checkpoint)

    with pytest.raises(Violation, match=r"I13: run .* is blocked though its code has not changed: it does not fit"):
        scene.watch.wrote("checkpoint", ([checkpoint],))


async def test_a_result_that_is_lost_with_a_block_is_detected(scene: Scene) -> None:
    watch = Watch(scene.state, scene.clock.now, scene.clock.now, may_misfit=True)
    lease = await arrange.held(scene.store)
    watch.wrote("create", ())
    checkpoint = arrange.checkpoint_for(lease, diverged())
    await arrange.write(scene.store, checkpoint)
    watch.told[lease.run.id, lease.run.token] = "charge"

    with pytest.raises(
        Violation, match=r"I13: run .* is blocked after charge, but the result of charge is not recorded"
    ):
        watch.wrote("checkpoint", ([checkpoint],))
