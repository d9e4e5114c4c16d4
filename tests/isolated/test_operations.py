"""The operations that an isolated run must have: loops with trimming, joins, races, messages, rollback, versions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast import Break, Context, Continue, Holdfast, Rollback, RunState, isolated
from holdfast.core.clock import SECOND
from holdfast.isolated.driver import Writes
from holdfast.isolated.layout import HISTORY, METADATA, NAMES, OUTBOX, WORKFLOW, pack, unpack
from holdfast.testing import Harness, VirtualClock
from tests.isolated.recording_namespace import RecordingNamespace
from tests.isolated.world import contents_of


def kinds(writes: Writes) -> list[Any]:
    return [unpack(key)[0] for key, _ in writes]


async def echo(number: int) -> int:
    return number


async def alarm(namespace: isolated.DictionaryNamespace) -> datetime | None:
    return namespace.alarm_at


async def locations(namespace: isolated.DictionaryNamespace) -> list[str]:
    return sorted((await contents_of(namespace, "run")).entries)


async def test_a_loop_keeps_the_newest_iterations_in_the_namespace() -> None:
    hf, namespace = Holdfast("memory://"), RecordingNamespace()

    @hf.workflow("loop")
    async def loop(ctx: Context) -> int:
        async def once(ctx: Context, state: int) -> Continue[int] | Break[int]:
            fetched = await ctx.step("fetch", lambda: state + 1)
            return Break(fetched) if fetched == 25 else Continue(fetched)

        found = await ctx.loop("process", once, 0, keep=3, every=5)
        await ctx.receive("go")
        return found

    await isolated.advance(namespace, hf, "run", type="loop")
    async with Harness(hf) as h:
        run = await h.start("loop")
        await h.settle()
        in_memory = sorted(entry.location for entry in await run.history())
    assert await locations(namespace) == in_memory
    assert "process/~1/fetch" not in in_memory
    assert len(await namespace.list(pack((NAMES,)))) == 3  # process, ~ and fetch


async def test_a_join_runs_its_branches_and_one_batch_writes_results_that_come_together() -> None:
    hf, namespace = Holdfast("memory://"), RecordingNamespace()

    @hf.workflow("join")
    async def join(ctx: Context) -> dict[str, str]:
        async def user(ctx: Context) -> str:
            return await ctx.step("user", lambda: "ada")

        async def posts(ctx: Context) -> str:
            return await ctx.step("posts", lambda: "two")

        return await ctx.join("fetch-all", {"user": user, "posts": posts})

    end = await isolated.advance(namespace, hf, "run", type="join")
    assert end.result == {"user": "ada", "posts": "two"}
    assert await locations(namespace) == ["fetch-all/posts/posts", "fetch-all/user/user"]


async def test_a_race_with_a_timeout_sets_the_alarm_and_ends_when_it_is_due() -> None:
    hf, namespace, clock = Holdfast("memory://"), RecordingNamespace(), VirtualClock()

    @hf.workflow("race")
    async def race(ctx: Context) -> list[Any]:
        async def work(ctx: Context) -> Any:
            return await ctx.receive("done")

        async def timeout(ctx: Context) -> None:
            await ctx.sleep(5)

        return list(await ctx.race("limit", {"work": work, "timeout": timeout}))

    first = await isolated.advance(namespace, hf, "run", type="race", clock=clock)
    assert first.state is RunState.SUSPENDED
    assert first.alarm_at is not None
    assert first.alarm_at == namespace.alarm_at
    clock.pass_to(clock.now() + 5 * SECOND)
    end = await isolated.advance(namespace, hf, "run", clock=clock)
    assert (end.state, end.result, end.alarm_at) == (RunState.SUCCEEDED, ["timeout", None], None)
    assert await alarm(namespace) is None


async def test_messages_are_received_in_the_order_of_their_ids_and_once() -> None:
    hf, namespace = Holdfast("memory://"), RecordingNamespace()

    @hf.workflow("listen")
    async def listen(ctx: Context) -> list[Any]:
        return [await ctx.receive("item") for _ in range(3)]

    await isolated.advance(namespace, hf, "run", type="listen")
    await namespace.set(*isolated.message("2", "item", "second"))
    await namespace.set(*isolated.message("1", "item", "first"))
    await isolated.advance(namespace, hf, "run")
    await namespace.set(*isolated.message("1", "item", "first"))  # the sender did not get the answer, and repeats
    await isolated.advance(namespace, hf, "run")
    await namespace.set(*isolated.message("3", "item", "third"))
    end = await isolated.advance(namespace, hf, "run")
    assert end.result == ["first", "second", "third"]


async def test_a_message_that_came_before_the_deadline_beats_it_even_if_the_host_is_late() -> None:
    hf, namespace, clock = Holdfast("memory://"), RecordingNamespace(), VirtualClock()

    @hf.workflow("listen")
    async def listen(ctx: Context) -> Any:
        return await ctx.receive("item", timeout=10)

    waiting = await isolated.advance(namespace, hf, "run", type="listen", clock=clock)
    assert waiting.alarm_at is not None
    await namespace.set(*isolated.message("1", "item", "in time", at=waiting.alarm_at.replace(second=9)))
    clock.pass_to(clock.now() + 60 * SECOND)
    assert (await isolated.advance(namespace, hf, "run", clock=clock)).result == "in time"


async def test_a_rollback_undoes_finished_steps_in_reverse_order() -> None:
    hf, namespace = Holdfast("memory://"), RecordingNamespace()
    undone: list[str] = []

    @hf.workflow("trip")
    async def trip(ctx: Context) -> None:
        await ctx.step("hotel", lambda: "h", undo=undone.append)
        await ctx.step("flight", lambda: "f", undo=undone.append)
        raise Rollback("no car")

    end = await isolated.advance(namespace, hf, "run", type="trip")
    assert (end.state, undone) == (RunState.FAILED, ["f", "h"])
    assert end.error is not None
    assert "no car" in end.error.message


async def test_versions_and_removed_entries_work() -> None:
    hf, namespace = Holdfast("memory://"), RecordingNamespace()

    @hf.workflow("changed")
    async def changed(ctx: Context) -> Any:
        ctx.removed("old", "step")
        found = ctx.version("price", 2)
        await ctx.receive("go")
        return found

    await isolated.advance(namespace, hf, "run", type="changed")
    await namespace.set(*isolated.message("1", "go"))
    assert (await isolated.advance(namespace, hf, "run")).result == 2


async def test_a_step_writes_its_entry_its_metadata_and_the_seal() -> None:
    hf, namespace = Holdfast("memory://"), RecordingNamespace()

    @hf.workflow("steps")
    async def steps(ctx: Context) -> None:
        for number in range(3):
            await ctx.step("same", echo, number)

    await isolated.advance(namespace, hf, "run", type="steps")
    # The lease; a step each, with two new names; and the end with the last step.
    assert [kinds(writes).count(HISTORY) for writes in namespace.batches] == [0, 1, 1, 1]
    assert sorted(kinds(namespace.batches[2])) == [NAMES, HISTORY, WORKFLOW, WORKFLOW, METADATA]  # opening and seal
    assert sorted(kinds(namespace.batches[1])) == [NAMES, HISTORY, WORKFLOW, WORKFLOW, METADATA]


async def test_an_advance_that_finds_nothing_new_writes_nothing() -> None:
    hf, namespace = Holdfast("memory://"), RecordingNamespace()

    @hf.workflow("listen")
    async def listen(ctx: Context) -> Any:
        await ctx.step("one", lambda: 1)
        return await ctx.receive("item")

    before = await isolated.advance(namespace, hf, "run", type="listen")
    namespace.batches.clear()
    assert await isolated.advance(namespace, hf, "run") == before
    assert namespace.batches == []


async def test_a_run_that_stands_still_is_not_read_whole() -> None:
    hf, namespace = Holdfast("memory://"), RecordingNamespace()

    @hf.workflow("listen")
    async def listen(ctx: Context) -> Any:
        for number in range(50):
            await ctx.step("one", echo, number)
        return await ctx.receive("item")

    await isolated.advance(namespace, hf, "run", type="listen")
    namespace.reads.clear()
    await isolated.advance(namespace, hf, "run")
    assert {unpack(key)[0] for key in namespace.reads} == {WORKFLOW}


async def test_a_replay_writes_no_entry_again() -> None:
    hf, namespace = Holdfast("memory://"), RecordingNamespace()
    executed: list[int] = []

    @hf.workflow("listen")
    async def listen(ctx: Context) -> Any:
        for number in range(20):
            await ctx.step("one", executed.append, number)
        await ctx.receive("item")
        return await ctx.receive("item")

    await isolated.advance(namespace, hf, "run", type="listen")
    namespace.batches.clear()
    await namespace.set(*isolated.message("1", "item"))
    namespace.batches.clear()
    await isolated.advance(namespace, hf, "run")
    assert executed == list(range(20))
    assert [kinds(writes).count(HISTORY) for writes in namespace.batches] == [1]  # lease and message in one batch


async def test_an_ended_run_returns_its_end_and_writes_nothing() -> None:
    hf, namespace = Holdfast("memory://"), RecordingNamespace()

    @hf.workflow("short")
    async def short(ctx: Context) -> str:
        ctx.emit("done", 1)
        return "over"

    end = await isolated.advance(namespace, hf, "run", type="short")
    assert len(namespace.batches) == 1
    await namespace.set(*isolated.message("1", "late"))
    namespace.batches.clear()
    assert await isolated.advance(namespace, hf, "run") == end
    assert namespace.batches == []
    await isolated.delivered(namespace, [item.id for item in end.outbox])
    assert (await isolated.advance(namespace, hf, "run")).outbox == ()
    assert await namespace.list(pack((OUTBOX,))) == []
