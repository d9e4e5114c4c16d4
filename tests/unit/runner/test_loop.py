"""Plain asyncio on the run loop: every form works, and its operations have stable locations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Generator
from contextlib import aclosing
from contextvars import ContextVar, copy_context
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from holdfast.core.location import Scope
from holdfast.runner.loop import LoopTimer, RunFuture, RunLoop, RunTask, current_run_loop, first_serial
from tests.unit.runner.loop_rig import Rig, StepError, evict_runs, run

__all__ = ["evict_runs"]  # a fixture that pytest finds by its name


def test_step_is_requested_and_its_result_comes_back() -> None:
    async def workflow(rig: Rig) -> str:
        return f"got {await rig.step('charge')}"

    rig = Rig(workflow)
    assert list(rig.pending) == []

    rig.start()
    assert list(rig.pending) == ["charge"]

    rig.finish("charge", 7)
    assert rig.root.result() == "got 7"


def test_gather_keeps_the_order_of_its_arguments_and_of_completion() -> None:
    async def branch(rig: Rig, name: str) -> str:
        result = await rig.step(name)
        rig.note(name)
        return f"<{result}>"

    async def workflow(rig: Rig) -> list[Any]:
        return list(await asyncio.gather(branch(rig, "a"), branch(rig, "b"), rig.step("c")))

    rig = Rig(workflow).start()
    assert list(rig.pending) == ["+1/a", "+2/b", "c"]  # the step's location was fixed at its call, in the root

    for location in ("c", "+2/b", "+1/a"):
        rig.finish(location, location)
    assert rig.trace == ["b", "a"]
    assert rig.root.result() == ["<+1/a>", "<+2/b>", "c"]


def test_siblings_continue_when_a_branch_of_gather_fails() -> None:
    async def workflow(rig: Rig) -> str:
        try:
            await asyncio.gather(rig.step("a"), rig.step("b"))
        except StepError:
            rig.note("failed")
        return str(await rig.step("c"))

    rig = Rig(workflow).start()
    rig.fail("a")

    assert rig.trace == ["failed"]
    assert list(rig.pending) == ["b", "c"]


def test_task_group_cancels_siblings_whose_cleanup_may_request_steps() -> None:
    async def careful(rig: Rig, name: str) -> None:
        try:
            await rig.step(name)
        finally:
            await rig.step(f"undo {name}")

    async def workflow(rig: Rig) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(rig.step("breaks"))
                group.create_task(careful(rig, "a"))
                group.create_task(careful(rig, "b"))
        except* StepError:
            rig.note("group failed")
        return "done"

    rig = Rig(workflow).start()
    assert list(rig.pending) == ["breaks", "+2/a", "+3/b"]

    rig.fail("breaks")
    assert list(rig.pending) == ["+2/undo a", "+3/undo b"]

    rig.finish("+3/undo b")
    rig.finish("+2/undo a")
    assert rig.trace == ["group failed"]
    assert rig.root.result() == "done"


@pytest.mark.parametrize("run_id", ["run-1", "another", "01JZ"])
def test_the_sets_of_wait_iterate_in_order_of_creation(run_id: str) -> None:
    async def workflow(rig: Rig) -> None:
        tasks = {asyncio.create_task(rig.step(name), name=name) for name in "abcdefgh"}
        await asyncio.sleep(0)
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        rig.note([task.get_name() for task in done], [task.get_name() for task in pending])

    orders = []
    for _ in range(3):
        rig = Rig(workflow, run_id=run_id).start()
        rig.finish("c")
        orders.append(rig.trace)

    assert orders[0][0][0] == ["c"]
    assert sorted(orders[0][0][1]) == list("abdefgh")
    assert orders[0] == orders[1] == orders[2]


def test_wait_with_a_timeout_returns_unfinished_tasks() -> None:
    async def workflow(rig: Rig) -> tuple[int, int]:
        tasks = [asyncio.create_task(rig.step(name)) for name in "ab"]
        done, pending = await asyncio.wait(tasks, timeout=5)
        return len(done), len(pending)

    rig = Rig(workflow).start()
    rig.finish("b")
    rig.fire()

    assert rig.root.result() == (1, 1)
    assert list(rig.pending) == ["a"]


def test_futures_of_gather_iterate_in_order_in_sets_too() -> None:
    async def workflow(rig: Rig) -> None:
        gathers = [asyncio.gather(rig.step(f"{n}")) for n in range(20)]
        numbers = {gathered: number for number, gathered in enumerate(gathers)}
        done, _ = await asyncio.wait(gathers)
        rig.note([numbers[gathered] for gathered in done])

    steps = [str(n) for n in range(20)]
    orders = [run(workflow, *steps).trace for _ in range(3)]

    assert orders[0] == orders[1] == orders[2]


def test_sleep_is_a_timer_with_a_location_and_time_stops_until_it_fires() -> None:
    async def workflow(rig: Rig) -> str:
        before = asyncio.get_running_loop().time()
        result = await asyncio.sleep(60, "slept")
        rig.note(before, asyncio.get_running_loop().time())
        await asyncio.sleep(30)
        return result

    rig = Rig(workflow).start()
    timer = rig.timers["~timer"]
    assert (timer.deadline, timer.fired, timer.when()) == (1_060.0, False, 1_060.0)

    rig.fire()
    assert timer.fired
    assert rig.trace == [(1_000.0, 1_060.0)]
    assert list(rig.timers) == ["~timer#2"]

    rig.fire()
    assert rig.root.result() == "slept"
    assert rig.cancelled_timers == [], "sleep cancels its timer after it fired; nobody should hear of that"


def test_sleeping_for_zero_seconds_makes_no_timer() -> None:
    async def workflow(rig: Rig) -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(-1)
        return "awake"

    rig = Rig(workflow).start()

    assert rig.root.result() == "awake"
    assert rig.timers == {}


def test_timeout_that_does_not_fire_is_cancelled_and_one_that_fires_cancels_the_step() -> None:
    async def workflow(rig: Rig) -> str:
        async with asyncio.timeout(10):
            await rig.step("quick")
        try:
            async with asyncio.timeout(10):
                await rig.step("slow")
        except TimeoutError:
            return "too slow"
        return "in time"

    rig = Rig(workflow).start()
    rig.finish("quick")
    assert rig.cancelled_timers == ["~timer"]
    assert list(rig.timers) == ["~timer#2"]

    rig.fire()
    assert rig.pending == {}
    assert rig.root.result() == "too slow"


def test_timeout_of_zero_abandons_the_step_within_one_drive() -> None:
    async def workflow(rig: Rig) -> str:
        try:
            async with asyncio.timeout(0):
                await rig.step("never")
        except TimeoutError:
            return "too slow"
        return "in time"

    rig = Rig(workflow).start()

    assert rig.root.result() == "too slow"
    assert rig.pending == {}
    assert rig.timers == {}


def test_of_two_timeouts_with_one_deadline_the_one_that_is_fed_first_wins() -> None:
    async def workflow(rig: Rig) -> str:
        try:
            async with asyncio.timeout(5):
                try:
                    async with asyncio.timeout(5):
                        await rig.step("slow")
                except TimeoutError:
                    return "inner"
        except TimeoutError:
            return "outer"
        return "in time"

    rig = Rig(workflow).start()
    rig.fire()  # the first created, at equal deadlines

    assert rig.root.result() == "outer"


def test_wait_for_keeps_the_scope_of_its_caller() -> None:
    async def branch(rig: Rig) -> str:
        await rig.step("a")
        return str(await rig.step("a"))

    async def workflow(rig: Rig) -> str:
        first = await asyncio.wait_for(branch(rig), 10)
        try:
            await asyncio.wait_for(rig.step("slow"), 10)
        except TimeoutError:
            rig.note("too slow")
        await asyncio.create_task(branch(rig))
        return first

    rig = Rig(workflow).start()
    assert list(rig.pending) == ["a"]
    rig.finish("a")
    assert list(rig.pending) == ["a#2"]
    rig.finish("a#2", "result")
    assert list(rig.timers) == ["~timer#2"]
    rig.fire()
    assert rig.trace == ["too slow"]
    assert list(rig.pending) == ["+1/a"], "the hidden task of wait_for takes no number"


def test_shielded_task_keeps_running() -> None:
    async def workflow(rig: Rig) -> str:
        inner = asyncio.create_task(rig.step("inner"))
        try:
            async with asyncio.timeout(1):
                await asyncio.shield(inner)
        except TimeoutError:
            rig.note("left")
        return str(await inner)

    rig = Rig(workflow).start()
    rig.fire()
    assert rig.trace == ["left"]

    rig.finish("inner", "late")
    assert rig.root.result() == "late"


def test_event_lock_and_semaphore_admit_waiters_in_order() -> None:
    async def entrant(rig: Rig, gate: asyncio.Lock | asyncio.Semaphore, name: str) -> None:
        async with gate:
            rig.note("in", name)
            await rig.step(name)

    async def workflow(rig: Rig) -> None:
        event = asyncio.Event()
        waiter = asyncio.create_task(event.wait())
        await rig.step("before")
        event.set()
        await waiter
        for gate in (asyncio.Lock(), asyncio.Semaphore(2)):
            await asyncio.gather(*[entrant(rig, gate, name) for name in "abc"])

    rig = run(workflow, "before", "+2/a", "+3/b", "+4/c")
    assert rig.trace == [("in", "a"), ("in", "b"), ("in", "c"), ("in", "a"), ("in", "b")]

    rig.finish("+6/b")
    assert rig.trace[-1] == ("in", "c")


def test_queue_condition_and_barrier() -> None:
    async def consumer(rig: Rig, queue: asyncio.Queue[str], name: str) -> None:
        while True:
            rig.note(name, await queue.get())
            queue.task_done()

    async def party(rig: Rig, barrier: asyncio.Barrier, name: str) -> None:
        await rig.step(name)
        rig.note(name, await barrier.wait())

    async def workflow(rig: Rig) -> None:
        queue: asyncio.Queue[str] = asyncio.Queue(1)
        consumers = [asyncio.create_task(consumer(rig, queue, name)) for name in ("one", "two")]
        for _ in range(3):
            await queue.put(await rig.step("make"))
        await queue.join()
        for task in consumers:
            task.cancel()

        condition = asyncio.Condition()

        async def watch() -> None:
            async with condition:
                await condition.wait()
                rig.note("notified")

        watcher = asyncio.create_task(watch())
        await rig.step("ready")
        async with condition:
            condition.notify_all()
        await watcher

        barrier = asyncio.Barrier(2)
        await asyncio.gather(party(rig, barrier, "x"), party(rig, barrier, "y"))

    rig = run(workflow, "make", "make#2", "make#3", "ready", "+5/y", "+4/x")

    assert rig.trace[:3] == [("one", "make"), ("two", "make#2"), ("one", "make#3")]
    assert rig.trace[3:] == ["notified", ("x", 1), ("y", 0)]
    assert rig.root.done()


def test_as_completed_starts_bare_coroutines_in_the_given_order() -> None:
    class Awaitable_:  # noqa: N801 - any awaitable that is not a coroutine
        def __init__(self, inner: Awaitable[Any]) -> None:
            self.inner = inner

        def __await__(self) -> Generator[Any, None, Any]:
            return self.inner.__await__()

    async def branch(rig: Rig, number: int) -> int:
        rig.note("start", number)
        return int(await rig.step("work"))

    async def workflow(rig: Rig) -> list[int]:
        task = asyncio.create_task(branch(rig, 100))
        given = [task, *[branch(rig, number) for number in range(20)], Awaitable_(branch(rig, 20))]
        return [await earliest for earliest in asyncio.as_completed(given)]

    rig = Rig(workflow).start()
    assert rig.trace == [("start", 100), *[("start", number) for number in range(21)]]
    assert list(rig.pending) == [f"+{n}/work" for n in range(1, 23)]

    order = [7, 3, 22, 1, *sorted(set(range(1, 23)) - {1, 3, 7, 22})]
    for number in order:
        rig.finish(f"+{number}/work", number)
    assert rig.root.result() == order


def test_a_fork_iterates_its_sets_in_the_same_order_as_its_origin() -> None:
    async def workflow(rig: Rig) -> None:
        tasks = [asyncio.create_task(rig.step("work"), name=f"{n}") for n in range(200)]
        chance = Random(1)
        for _ in range(1_000):
            rig.note([task.get_name() for task in set(chance.sample(tasks, chance.randint(2, 30)))])
        await asyncio.wait(tasks)

    first, second = Rig(workflow, run_id="origin").start(), Rig(workflow, run_id="fork").start()

    assert first_serial("origin") != first_serial("fork")
    assert first.trace == second.trace


def test_serial_numbers_differ_between_runs_and_are_used_as_hashes() -> None:
    bases = {first_serial(f"run-{n}") for n in range(1_000)}

    assert len(bases) > 990
    assert all(hash(base + 1) == base + 1 for base in bases)
    assert min(abs(a - b) for a, b in pairwise(sorted(bases))) >= 2**40


def test_tasks_and_futures_have_classes_of_the_run_and_identity_equality() -> None:
    async def workflow(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        task, first, second = asyncio.current_task(), loop.create_future(), loop.create_future()
        assert type(task) is RunTask
        assert type(first) is RunFuture
        assert (hash(task), hash(first), hash(second)) == tuple(first_serial("run-1") + n for n in (1, 2, 3))
        assert first != second
        assert first == first  # noqa: PLR0124 - identity is the point

    assert Rig(workflow).start().root.result() is None


def test_tasks_have_the_name_given_by_the_user_or_else_their_scope() -> None:
    async def name_of_task() -> str:
        task = asyncio.current_task()
        assert task is not None
        return task.get_name()

    async def nested() -> list[str]:
        return [await name_of_task(), await asyncio.create_task(name_of_task())]

    async def workflow(rig: Rig) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            named = group.create_task(name_of_task(), name="packer")
        return [await name_of_task(), named.result(), await asyncio.create_task(nested())]

    assert Rig(workflow).start().root.result() == ["root", "packer", ["+2", "+2/+1"]]


def test_scope_is_that_of_the_current_task_or_of_the_run_outside_tasks() -> None:
    async def workflow(rig: Rig) -> None:
        loop = current_run_loop()
        assert loop is rig.loop

        async def child() -> Scope:
            return loop.scope

        assert (await asyncio.create_task(child())).path == "+1/"
        loop.call_soon(lambda: rig.note(loop.scope.path))
        await asyncio.sleep(0)

    rig = Rig(workflow).start()

    assert rig.trace == [""]
    assert rig.loop.scope.path == ""
    assert rig.root.exception() is None


def test_timer_that_fired_can_still_be_stopped_before_its_callback_ran() -> None:
    async def workflow(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(5, rig.note, "rang")
        loop.call_later(5, timer.cancel)
        await rig.step("wait")

    rig = Rig(workflow).start()
    ringing, stopping = rig.timers.values()

    def both() -> None:
        rig.loop.fire(stopping)
        rig.loop.fire(ringing)

    rig.loop.now = 1_005.0
    rig.loop.drive(both)

    assert rig.trace == []
    assert ringing.cancelled()
    assert rig.cancelled_timers == []


def test_firing_a_timer_twice_or_after_its_cancellation_does_nothing() -> None:
    timers: list[LoopTimer] = []

    async def workflow(rig: Rig) -> None:
        timers.extend(rig.loop.call_at(1_000 + n, rig.note, f"rang {n}") for n in (1, 2))
        timers[1].cancel()
        await rig.step("wait")

    rig = Rig(workflow).start()
    for timer in [*timers, *timers]:
        rig.loop.drive(partial(rig.loop.fire, timer))

    assert rig.trace == ["rang 1"]


def test_callbacks_can_be_cancelled_and_run_in_their_context() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    async def workflow(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        variable.set("at call")
        loop.call_soon(lambda: rig.note(variable.get()))
        handle = loop.call_soon(rig.note, "cancelled")
        handle.cancel()
        assert handle.cancelled()
        other = copy_context()
        other.run(variable.set, "given")
        loop.call_soon(lambda: rig.note(variable.get()), context=other)
        variable.set("later")
        await asyncio.sleep(0)

    assert Rig(workflow).start().trace == ["at call", "given"]


def test_context_variables_of_the_driver_do_not_leak_in_and_branches_do_not_share_theirs() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    variable.set("of the driver")

    async def branch(value: str) -> str:
        before = variable.get()
        variable.set(value)
        await asyncio.sleep(0)
        return f"{before}, {variable.get()}"

    async def workflow(rig: Rig) -> list[str]:
        at_first = variable.get()
        variable.set("root")
        return [at_first, *await asyncio.gather(branch("one"), branch("two")), variable.get()]

    rig = Rig(workflow).start()

    assert rig.root.result() == ["unset", "root, one", "root, two", "root"]


async def _numbers(rig: Rig) -> AsyncIterator[int]:
    try:
        for number in range(10):
            await rig.step("next")
            yield number
    finally:
        rig.note("closed")


def test_generator_left_half_way_is_closed_at_the_end_and_not_when_it_is_collected() -> None:
    async def workflow(rig: Rig) -> None:
        async for number in _numbers(rig):
            rig.note(number)
            break
        await rig.step("after")

    rig = run(workflow, "next")
    assert rig.trace == [0]
    assert list(rig.pending) == ["after"]

    rig.finish("after")
    assert rig.trace == [0]

    rig.loop.evict()
    assert rig.trace == [0, "closed"]


def test_aclosing_closes_a_generator_in_time() -> None:
    async def workflow(rig: Rig) -> None:
        async with aclosing(_numbers(rig)) as numbers:  # type: ignore[type-var]
            async for number in numbers:
                rig.note(number)
                break
        rig.note("after")

    assert run(workflow, "next").trace == [0, "closed", "after"]


def test_finished_tasks_and_generators_are_not_kept() -> None:
    async def nothing() -> None: ...

    async def one() -> AsyncIterator[int]:
        yield 1

    async def workflow(rig: Rig) -> None:
        for _ in range(1_000):
            await asyncio.create_task(nothing())
            async for _ in one():
                pass
        await rig.step("last")

    rig = Rig(workflow).start()

    assert len(rig.loop._tasks) < 100
    assert len(rig.loop._generators) < 100
    assert rig.loop.unfinished == [rig.root]


def test_unreferenced_task_is_not_collected() -> None:
    async def background(rig: Rig) -> None:
        await asyncio.get_running_loop().create_future()

    async def workflow(rig: Rig) -> None:
        asyncio.create_task(background(rig))  # noqa: RUF006 - forgetting it is the point
        await rig.step("wait")

    rig = Rig(workflow).start()

    assert [task.get_name() for task in rig.loop.unfinished] == ["root", "+1"]


def test_time_does_not_go_back() -> None:
    async def workflow(rig: Rig) -> None: ...

    loop = Rig(workflow).start().loop
    loop.now = 1_000.0
    with pytest.raises(ValueError, match="must not go back"):
        loop.now = 999.0

    assert loop.time() == 1_000.0


def test_a_timer_needs_an_instant() -> None:
    async def workflow(rig: Rig) -> None:
        asyncio.get_running_loop().call_later(float("nan"), rig.note)

    assert isinstance(Rig(workflow).start().root.exception(), ValueError)


def test_only_code_of_a_run_has_a_current_run_loop() -> None:
    async def elsewhere() -> RunLoop | None:
        return current_run_loop()

    assert current_run_loop() is None
    assert asyncio.run(elsewhere()) is None
