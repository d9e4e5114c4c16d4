"""Requests to other runs: children, messages, events, replies and cancels leave through the outbox, once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import ChildFailed, Context, Holdfast, InvalidRequest, RunState, isolated
from holdfast.core.clock import SECOND
from tests.isolated.world import World


def kinds(end: isolated.Advanced) -> list[tuple[str, str]]:
    return [(item.kind, item.name) for item in end.outbox]


async def test_a_child_starts_through_the_outbox_and_its_end_comes_back() -> None:
    hf, parent, child = Holdfast("memory://"), isolated.DictionaryNamespace(), isolated.DictionaryNamespace()

    @hf.workflow("child")
    async def small(ctx: Context, number: int) -> int:
        return number * 2

    @hf.workflow("parent")
    async def large(ctx: Context) -> int:
        return await ctx.call(small, 21)

    waiting = await isolated.advance(parent, hf, "parent", type="parent")
    (item,) = waiting.outbox
    assert (item.kind, item.name, item.payload) == ("start", "child", {"number": 21})
    assert item.run_id is not None
    end = await isolated.advance(child, hf, item.run_id, start=item)
    await isolated.delivered(parent, [item.id])
    for _ in range(2):  # at least once
        await parent.set(*isolated.child_ended(item.run_id, state=end.state, result=end.result, error=end.error))
    last = await isolated.advance(parent, hf, "parent")
    assert (last.state, last.result, last.outbox) == (RunState.SUCCEEDED, 42, ())


async def test_the_outbox_keeps_its_items_until_they_are_delivered() -> None:
    hf, namespace = Holdfast("memory://"), isolated.DictionaryNamespace()

    @hf.workflow("talk")
    async def talk(ctx: Context) -> None:
        ctx.send("other", "hello", 1)
        ctx.emit("news", 2)
        await ctx.receive("go")
        ctx.send("other", "bye", 3)

    first = await isolated.advance(namespace, hf, "run", type="talk")
    assert kinds(first) == [("send", "hello"), ("emit", "news")]
    await isolated.delivered(namespace, [first.outbox[0].id])
    await namespace.set(*isolated.message("1", "go"))
    second = await isolated.advance(namespace, hf, "run")
    assert kinds(second) == [("emit", "news"), ("send", "bye")]
    assert second.outbox[0].id == first.outbox[1].id


async def test_a_child_with_a_wrong_payload_fails_so_that_its_parent_hears_of_it() -> None:
    hf, parent, child = Holdfast("memory://"), isolated.DictionaryNamespace(), isolated.DictionaryNamespace()

    @hf.workflow("child")
    async def small(ctx: Context, number: int) -> int:
        return number

    @hf.workflow("parent")
    async def large(ctx: Context) -> str:
        try:
            return str(await ctx.call("child", {"number": "many"}))
        except ChildFailed as failure:
            return failure.kind

    (item,) = (await isolated.advance(parent, hf, "parent", type="parent")).outbox
    assert item.run_id is not None
    end = await isolated.advance(child, hf, item.run_id, start=item)
    await parent.set(*isolated.child_ended(item.run_id, state=end.state, result=end.result, error=end.error))
    last = await isolated.advance(parent, hf, "parent")

    assert (end.state, last.result) == (RunState.FAILED, "failed")


async def test_an_item_may_be_cleared_twice_at_once() -> None:
    hf = Holdfast("memory://")

    @hf.workflow("talk")
    async def talk(ctx: Context) -> None:
        ctx.emit("news", 1)

    class Yielding(isolated.DictionaryNamespace):
        async def get(self, key: bytes) -> bytes | None:
            await asyncio.sleep(0)
            return await super().get(key)

    namespace = Yielding()
    (item,) = (await isolated.advance(namespace, hf, "run", type="talk")).outbox

    await asyncio.gather(*(isolated.delivered(namespace, [item.id]) for _ in range(2)))

    assert (await isolated.advance(namespace, hf, "run")).outbox == ()


async def test_children_of_a_map_start_as_slots_become_free() -> None:
    hf, namespace = Holdfast("memory://"), isolated.DictionaryNamespace()

    @hf.workflow("child")
    async def small(ctx: Context, number: int) -> int:
        return number

    @hf.workflow("parent")
    async def large(ctx: Context) -> list[int]:
        return await ctx.map(small, [(number,) for number in range(3)], limit=2)

    first = await isolated.advance(namespace, hf, "run", type="parent")
    assert [item.payload["number"] for item in first.outbox] == [0, 1]
    await isolated.delivered(namespace, [item.id for item in first.outbox])
    await namespace.set(*isolated.child_ended(first.outbox[0].run_id or "", state="succeeded", result=0))
    second = await isolated.advance(namespace, hf, "run")
    assert [item.payload["number"] for item in second.outbox] == [2]
    for item, number in ((first.outbox[1], 1), (second.outbox[0], 2)):
        await namespace.set(*isolated.child_ended(item.run_id or "", state="succeeded", result=number))
    assert (await isolated.advance(namespace, hf, "run")).result == [0, 1, 2]


async def test_a_failed_child_raises_in_its_parent() -> None:
    hf = Holdfast("memory://")

    @hf.workflow("child")
    async def small(ctx: Context) -> None:
        raise LookupError("not there")

    @hf.workflow("parent")
    async def large(ctx: Context) -> str:
        try:
            await ctx.call(small)
        except ChildFailed as error:
            return f"{error.kind}: {error.message}"
        return ""

    world = World(hf)
    world.start("parent", "parent", {})
    await world.play()
    assert world.ends["parent"].result == "failed: not there"


async def test_the_end_of_a_parent_cancels_its_children() -> None:
    hf = Holdfast("memory://")

    @hf.workflow("child")
    async def small(ctx: Context) -> None:
        await ctx.receive("never")

    @hf.workflow("parent")
    async def large(ctx: Context) -> None:
        await ctx.start(small, on_close="cancel")
        await ctx.sleep(5)

    world = World(hf)
    world.start("parent", "parent", {})
    await world.play()
    (child_id,) = world.ends.keys() - {"parent"}
    assert world.ends[child_id].state is RunState.CANCELLED


async def test_a_cancelled_run_undoes_its_steps() -> None:
    hf, namespace, undone = Holdfast("memory://"), isolated.DictionaryNamespace(), list[str]()

    @hf.workflow("book")
    async def book(ctx: Context) -> None:
        await ctx.step("hotel", lambda: "h", undo=undone.append)
        await ctx.receive("never")

    await isolated.advance(namespace, hf, "run", type="book")
    await namespace.set(*isolated.cancel("1", "changed my mind"))
    end = await isolated.advance(namespace, hf, "run")
    assert (end.state, undone) == (RunState.CANCELLED, ["h"])
    assert end.error is not None
    assert end.error.message == "changed my mind"


async def test_an_event_that_came_before_the_wait_is_not_lost_and_a_repeat_is_dropped() -> None:
    hf, namespace = Holdfast("memory://"), isolated.DictionaryNamespace()

    @hf.workflow("watch")
    async def watch(ctx: Context) -> list[Any]:
        await ctx.receive("go")
        return [await ctx.wait_event("prices"), await ctx.wait_event("prices")]

    await isolated.advance(namespace, hf, "run", type="watch")
    await namespace.set(*isolated.event("1", "prices", 10))
    await isolated.advance(namespace, hf, "run")
    await namespace.set(*isolated.event("1", "prices", 10))
    await namespace.set(*isolated.message("1", "go"))
    await isolated.advance(namespace, hf, "run")
    await namespace.set(*isolated.event("2", "prices", 20))
    assert (await isolated.advance(namespace, hf, "run")).result == [10, 20]


async def test_a_reply_and_undelivered_messages_leave_through_the_outbox() -> None:
    hf, namespace = Holdfast("memory://"), isolated.DictionaryNamespace()

    @hf.workflow("answer")
    async def answer(ctx: Context) -> None:
        message = await ctx.receive_message("question")
        message.reply(message.payload + 1)

    await namespace.set(*isolated.message("1", "question", 41))
    await namespace.set(*isolated.message("2", "question", 7))
    end = await isolated.advance(namespace, hf, "run", type="answer", undelivered="dead_letter")
    assert {(item.kind, item.name, item.payload) for item in end.outbox} == {
        ("reply", "1", 42),
        ("undelivered", "question", 7),
    }


async def test_a_delayed_run_is_written_and_begins_with_its_alarm() -> None:
    hf, namespace = Holdfast("memory://"), isolated.DictionaryNamespace()

    @hf.workflow("later")
    async def later(ctx: Context) -> int:
        return 1

    world = World(hf, make=lambda _: namespace)
    world.start("run", "later", {}, delay=60)
    await world.settle()
    assert (await world.contents("run")).run is not None
    assert not world.ends
    began = world.clock.now()
    await world.play()
    assert (world.ends["run"].result, world.clock.now() - began) == (1, 60 * SECOND)


async def test_the_start_item_of_another_run_is_refused() -> None:
    item = isolated.OutboxItem(id="start:a", kind="start", name="child", run_id="a")
    with pytest.raises(InvalidRequest, match="expected an item of kind start"):
        await isolated.advance(isolated.DictionaryNamespace(), Holdfast("memory://"), "b", start=item)


@pytest.mark.parametrize("state", ["running", "nonsense"])
def test_a_child_ends_only_in_an_end_state(state: str) -> None:
    with pytest.raises(InvalidRequest, match="expected succeeded, failed or cancelled"):
        isolated.child_ended("child", state=state)


async def test_a_child_that_was_cancelled_elsewhere_is_cancelled_for_its_parent() -> None:
    hf, namespace = Holdfast("memory://"), isolated.DictionaryNamespace()

    @hf.workflow("parent")
    async def parent(ctx: Context) -> list[str]:
        try:
            await ctx.call("elsewhere")
        except ChildFailed as error:
            return [error.kind, error.message]
        return []

    (item,) = (await isolated.advance(namespace, hf, "run", type="parent")).outbox
    await namespace.set(*isolated.child_ended(item.run_id or "", state="cancelled", error="too late"))
    assert (await isolated.advance(namespace, hf, "run")).result == ["cancelled", "too late"]


def test_mail_that_could_not_be_read_is_not_made() -> None:
    wrong: Any = 5
    with pytest.raises(InvalidRequest, match="expected the error of Advanced, or a text"):
        isolated.child_ended("child", state="failed", error=wrong)
    with pytest.raises(InvalidRequest, match="expected a text"):
        isolated.cancel("1", wrong)
    with pytest.raises(InvalidRequest, match="a mail id is a string"):
        isolated.message("", "name")
