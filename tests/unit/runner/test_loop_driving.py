"""Driving a run: state that is taken over and restored, wherever the run is driven from."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from holdfast.runner.loop import current_run_loop
from tests.unit.runner.loop_rig import Rig, evict_runs, run

__all__ = ["evict_runs"]  # a fixture that pytest finds by its name

OUTER_LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


async def two_steps(rig: Rig) -> list[str]:
    async with asyncio.timeout(10):
        return list(await asyncio.gather(rig.step("a"), rig.step("b")))


@pytest.mark.parametrize("new_loop", OUTER_LOOPS, ids=lambda new: new.__module__.split(".")[0])
def test_runs_are_driven_from_a_callback_of_the_workers_loop(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    outer = new_loop()
    rig = Rig(two_steps)
    seen = []

    def drive() -> None:
        rig.start()
        seen.append(asyncio.get_running_loop())
        outer.call_soon(finish)

    def finish() -> None:
        for name in "ba":
            rig.finish(name, name)
        outer.stop()

    outer.call_soon(drive)
    try:
        outer.run_forever()
    finally:
        outer.close()

    assert rig.root.result() == ["a", "b"]
    assert seen == [outer]


@pytest.mark.parametrize("new_loop", OUTER_LOOPS, ids=lambda new: new.__module__.split(".")[0])
def test_runs_can_also_be_driven_and_evicted_inside_a_task(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def worker() -> tuple[bool, bool]:
        mine = asyncio.current_task()
        rig = run(two_steps, "a", "b")
        same_after_drive = asyncio.current_task() is mine
        other = Rig(two_steps).start()
        other.loop.evict()
        await asyncio.sleep(0)
        return rig.root.done(), same_after_drive and asyncio.current_task() is mine

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(worker()) == (True, True)


def test_drives_do_not_nest() -> None:
    errors = []

    async def inner(rig: Rig) -> None: ...

    async def workflow(rig: Rig) -> None:
        other = Rig(inner, run_id="other")
        for act in (rig.loop.drive, rig.loop.evict, other.loop.drive, other.loop.evict):
            with pytest.raises(RuntimeError, match="drives do not nest") as caught:
                act()
            errors.append(str(caught.value))
        await rig.step("goes on")

    rig = run(workflow, "goes on")

    assert rig.root.exception() is None
    assert errors[0] == "drives do not nest: run run-1 inside <RunLoop of run run-1>"
    assert errors[2] == "drives do not nest: run other inside <RunLoop of run run-1>"


def test_a_run_has_one_root_and_timers_fire_inside_drives_only() -> None:
    async def workflow(rig: Rig) -> None:
        await asyncio.sleep(1)

    rig = Rig(workflow).start()
    extra = workflow(rig)
    with pytest.raises(RuntimeError, match="already has a root task"):
        rig.loop.spawn(extra)
    extra.close()
    with pytest.raises(RuntimeError, match="only inside a drive"):
        rig.loop.fire(rig.timers["~timer"])


def test_running_loop_and_generator_hooks_are_restored() -> None:
    def first(_: object) -> None: ...

    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(first, first)
    try:
        rig = Rig(two_steps).start()
        rig.loop.evict()
        assert tuple(sys.get_asyncgen_hooks()) == (first, first)
        assert asyncio._get_running_loop() is None
        assert not rig.loop.is_running()
    finally:
        sys.set_asyncgen_hooks(*before)


def test_generators_of_a_run_are_invisible_to_the_outer_loop() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def workflow(rig: Rig) -> None:
        async for _ in numbers():
            break
        await rig.step("wait")

    async def worker() -> int:
        outer = asyncio.get_running_loop()
        Rig(workflow).start()
        return len(outer._asyncgens)  # type: ignore[attr-defined]

    assert asyncio.run(worker()) == 0


def test_error_in_the_action_propagates_and_everything_is_restored() -> None:
    rig = Rig(two_steps).start()
    with pytest.raises(ZeroDivisionError):
        rig.loop.drive(lambda: 1 // 0)  # type: ignore[arg-type]

    assert current_run_loop() is None
    assert list(rig.pending) == ["a", "b"]


def test_exit_of_the_root_is_a_failure_of_the_run_only() -> None:
    async def workflow(rig: Rig) -> None:
        await rig.step("a")
        sys.exit(3)

    rig = run(workflow, "a")

    assert isinstance(rig.root.exception(), SystemExit)
    assert rig.loop.system_exit is rig.root.exception()
    assert current_run_loop() is None


def test_exit_of_a_branch_is_kept_whatever_the_others_do() -> None:
    async def leaving(rig: Rig) -> None:
        await rig.step("a")
        sys.exit("enough")

    async def workflow(rig: Rig) -> str:
        branch = asyncio.create_task(leaving(rig))
        await asyncio.wait([branch])
        assert isinstance(branch.exception(), SystemExit)
        return str(await rig.step("b"))

    rig = run(workflow, "+1/a", "b")

    assert rig.root.result() == "b"
    assert rig.loop.system_exit is not None
    assert rig.loop.system_exit.code == "enough"


def test_interrupt_propagates_and_everything_is_restored() -> None:
    async def workflow(rig: Rig) -> None:
        await rig.step("a")
        raise KeyboardInterrupt

    rig = Rig(workflow).start()
    with pytest.raises(KeyboardInterrupt):
        rig.finish("a")

    assert current_run_loop() is None
    assert isinstance(rig.root.exception(), KeyboardInterrupt)
    rig.loop.evict()


def test_never_retrieved_failure_is_logged_with_the_run(caplog: pytest.LogCaptureFixture) -> None:
    async def failing() -> None:
        raise ValueError("lost")

    async def workflow(rig: Rig) -> None:
        task = asyncio.create_task(failing())
        await asyncio.sleep(0)
        del task
        # Create enough new tasks for the finished one to be pruned.
        await asyncio.gather(*[asyncio.sleep(0) for _ in range(100)])
        await rig.step("wait")

    Rig(workflow).start()

    [record] = caplog.records
    assert record.name == "holdfast.workflow"
    assert record.getMessage() == "run run-1: RunTask exception was never retrieved (ValueError)"
    assert vars(record)["run_id"] == "run-1"


def test_debug_mode_of_the_process_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")

    assert run(two_steps, "b", "a").root.result() == ["a", "b"]
