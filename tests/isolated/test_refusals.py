"""Bad drivers and foreign namespaces: a typed error, nothing written, and the run can be advanced again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Context, Holdfast, InvalidRequest, RunState, SchemaOutOfDate, UnknownWorkflow, Unreadable, isolated
from holdfast.isolated.layout import HEADER, HISTORY, MESSAGES, NamespaceHeader, encode, pack
from tests.isolated.recording_namespace import RecordingNamespace


def application() -> Holdfast:
    hf = Holdfast("memory://")

    @hf.workflow("two")
    async def two(ctx: Context) -> list[int]:
        return [await ctx.step("one", lambda: 1), await ctx.step("two", lambda: 2)]

    @hf.workflow("listen")
    async def listen(ctx: Context) -> Any:
        await ctx.step("one", lambda: 1)
        return await ctx.receive("item", timeout=60)

    @hf.workflow("table")
    async def table(ctx: Context) -> None:
        await ctx.tx("write", lambda connection: None)

    return hf


@pytest.mark.parametrize("call", ["list", "batch", "get", "set_alarm", "clear_alarm"])
async def test_a_driver_that_raises_is_named_and_the_run_goes_on_later(call: str) -> None:
    hf, namespace = application(), RecordingNamespace()
    namespace.fail = {call}
    with pytest.raises(isolated.DriverFailed, match=rf"driver\.{call}: raised OSError: the disk is full") as raised:
        await isolated.advance(namespace, hf, "run", type="two")
    assert raised.value.call == call
    namespace.fail = set()
    assert (await isolated.advance(namespace, hf, "run", type="two")).result == [1, 2]


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_a_lost_batch_is_noticed_and_the_run_goes_on_later(lost: int) -> None:
    hf, namespace = application(), RecordingNamespace()
    namespace.drop = lambda number: number == lost
    with pytest.raises(isolated.DriverFailed, match=r"driver\.batch: returned, but its writes are not there"):
        await isolated.advance(namespace, hf, "run", type="two")
    assert len(namespace.batches) == lost
    assert (await isolated.advance(namespace, hf, "run", type="two")).result == [1, 2]


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_batch_that_was_written_in_part_is_noticed(number: int) -> None:
    undisturbed = RecordingNamespace()
    await isolated.advance(undisturbed, application(), "run", type="two")
    whole = len(undisturbed.batches[number - 1])
    for torn in range(1, whole):
        hf, namespace = application(), RecordingNamespace()
        namespace.tear_at, namespace.torn = number, torn
        with pytest.raises(isolated.DriverFailed, match=r"driver\.batch: raised OSError"):
            await isolated.advance(namespace, hf, "run", type="two")
        before = dict(namespace.data)
        with pytest.raises(Unreadable):
            await isolated.advance(namespace, hf, "run", type="two")
        assert namespace.data == before


async def test_a_batch_of_which_nothing_was_written_can_be_repeated() -> None:
    hf, namespace = application(), RecordingNamespace()
    namespace.tear_at = 2
    with pytest.raises(isolated.DriverFailed):
        await isolated.advance(namespace, hf, "run", type="two")
    assert (await isolated.advance(namespace, hf, "run", type="two")).result == [1, 2]


async def test_no_step_executes_before_its_lease_is_written() -> None:
    hf, namespace, executed = Holdfast("memory://"), RecordingNamespace(), list[int]()

    @hf.workflow("eager")
    async def eager(ctx: Context) -> None:
        await ctx.step("one", executed.append, 1)

    namespace.fail = {"batch"}
    with pytest.raises(isolated.DriverFailed):
        await isolated.advance(namespace, hf, "run", type="eager")
    assert executed == []
    namespace.fail = set()
    await isolated.advance(namespace, hf, "run", type="eager")
    assert executed == [1]


async def test_keys_out_of_order_are_refused() -> None:
    hf, namespace = application(), RecordingNamespace()
    await isolated.advance(namespace, hf, "run", type="listen")
    before = dict(namespace.data)
    namespace.listed = lambda keys: list(reversed(keys))
    with pytest.raises(isolated.DriverFailed, match=r"driver\.list: .* not in byte order"):
        await isolated.advance(namespace, hf, "run")
    assert namespace.data == before
    namespace.listed = lambda keys: keys
    assert (await isolated.advance(namespace, hf, "run")).state is RunState.SUSPENDED


@pytest.mark.parametrize(
    ("strange", "found"),
    [(None, "NoneType instead of a list of keys"), (["key"], "str where a key"), ([(b"key", b"value")], "tuple where")],
)
async def test_a_list_of_something_else_is_refused(strange: Any, found: str) -> None:
    hf, namespace = application(), RecordingNamespace()
    namespace.listed = lambda keys: strange
    with pytest.raises(isolated.DriverFailed, match=rf"driver\.list: returned {found}"):
        await isolated.advance(namespace, hf, "run", type="two")


class RecordsNamespace(isolated.DictionaryNamespace):
    """A driver whose author expected a batch of objects."""

    async def batch(self, writes: Any) -> None:
        for write in writes:
            self.data[write.key] = write.value


class NoDeleteNamespace(isolated.DictionaryNamespace):
    """A driver that keeps None as the value of a key that a batch deletes."""

    async def batch(self, writes: Any) -> None:
        self.data |= dict(writes)


async def test_a_driver_that_expects_another_batch_is_told_what_a_batch_is() -> None:
    with pytest.raises(isolated.DriverFailed, match=r"driver\.batch: raised AttributeError: .* a list of pairs"):
        await isolated.advance(RecordsNamespace(), application(), "run", type="two")


async def test_a_driver_that_does_not_delete_is_told_what_a_batch_is() -> None:
    hf, namespace = Holdfast("memory://"), NoDeleteNamespace()

    @hf.workflow("listen")
    async def listen(ctx: Context) -> Any:
        await ctx.receive("one")
        await ctx.sleep(3600)

    await isolated.advance(namespace, hf, "run", type="listen")
    await namespace.set(*isolated.message("1", "one"))
    await isolated.advance(namespace, hf, "run")
    await namespace.set(*isolated.message("2", "other"))
    with pytest.raises(isolated.DriverFailed, match=r"driver\.get: returned None .* the value None deletes the key"):
        await isolated.advance(namespace, hf, "run")


async def test_an_object_that_is_no_driver_is_refused() -> None:
    driver: Any = {}
    with pytest.raises(InvalidRequest, match="dict is not a driver of a namespace: it has no method list, batch"):
        await isolated.advance(driver, application(), "run", type="two")


async def test_a_driver_without_coroutines_is_named() -> None:
    namespace: Any = RecordingNamespace()
    namespace.list = lambda prefix: []
    with pytest.raises(isolated.DriverFailed, match=r"driver\.list: raised TypeError"):
        await isolated.advance(namespace, application(), "run", type="two")


async def test_a_lost_delivery_is_noticed() -> None:
    hf, namespace = Holdfast("memory://"), RecordingNamespace()

    @hf.workflow("tell")
    async def tell(ctx: Context) -> None:
        ctx.emit("news", 1)

    end = await isolated.advance(namespace, hf, "run", type="tell")
    namespace.drop = lambda number: True
    with pytest.raises(
        isolated.DriverFailed, match=r"driver\.batch: returned, but a key that it deletes is still there"
    ):
        await isolated.delivered(namespace, [end.outbox[0].id])
    assert (await isolated.advance(namespace, hf, "run")).outbox == end.outbox


@pytest.mark.parametrize("ids", ["start:a", [1], [isolated.OutboxItem(id="a", kind="emit", name="news")]])
async def test_ids_of_another_kind_are_refused(ids: Any) -> None:
    with pytest.raises(InvalidRequest, match="expected"):
        await isolated.delivered(isolated.DictionaryNamespace(), ids)


async def test_a_payload_that_does_not_fit_is_refused_before_anything_is_written() -> None:
    namespace = isolated.DictionaryNamespace()
    with pytest.raises(InvalidRequest, match="payload of 'two' does not fit"):
        await isolated.advance(namespace, application(), "run", type="two", payload={"wrong": 1})
    assert namespace.data == {}


async def test_a_second_advance_at_the_same_time_is_refused() -> None:
    hf, namespace, executed = Holdfast("memory://"), RecordingNamespace(), list[int]()

    @hf.workflow("once")
    async def once(ctx: Context) -> int:
        async def body() -> None:
            executed.append(1)
            with pytest.raises(InvalidRequest, match="run is being advanced already, and a namespace has one writer"):
                await isolated.advance(namespace, hf, "run")

        await ctx.step("one", body)
        return len(executed)

    assert (await isolated.advance(namespace, hf, "run", type="once")).result == 1
    assert (await isolated.advance(namespace, hf, "run")).result == 1


async def test_a_workflow_instead_of_the_name_of_its_type_is_refused() -> None:
    function: Any = application().workflow("other")(lambda ctx: None)
    with pytest.raises(InvalidRequest, match="expected the name of the type"):
        await isolated.advance(isolated.DictionaryNamespace(), application(), "run", type=function)


async def test_the_namespace_of_another_run_is_refused() -> None:
    hf, namespace = application(), RecordingNamespace()
    await isolated.advance(namespace, hf, "run", type="listen")
    before = dict(namespace.data)
    with pytest.raises(InvalidRequest, match="belongs to run run, not to other"):
        await isolated.advance(namespace, hf, "other", type="listen")
    assert namespace.data == before


async def test_another_schema_number_is_refused() -> None:
    hf, namespace = application(), RecordingNamespace()
    await isolated.advance(namespace, hf, "run", type="listen")
    namespace.data[HEADER] = encode(NamespaceHeader(schema=99, run_id="run"))
    before = dict(namespace.data)
    with pytest.raises(SchemaOutOfDate, match="schema 99"):
        await isolated.advance(namespace, hf, "run")
    assert namespace.data == before


async def test_an_entry_that_is_missing_is_noticed() -> None:
    hf, namespace = application(), RecordingNamespace()
    await isolated.advance(namespace, hf, "run", type="listen")
    for key in [key for key in namespace.data if key.startswith((pack((HISTORY,)), pack((5,))))]:
        del namespace.data[key]
    with pytest.raises(Unreadable, match="a batch of the driver was not atomic"):
        await isolated.advance(namespace, hf, "run")


@pytest.mark.parametrize(
    "key", [b"", b"garbage", b"\xff", pack((9, 1)), pack((HISTORY, 0)), pack(("users", "ada")), pack((4, 99))]
)
async def test_keys_that_holdfast_did_not_write_are_refused(key: bytes) -> None:
    hf, namespace = application(), RecordingNamespace()
    await namespace.set(key, b"value")
    namespace.batches.clear()
    with pytest.raises(Unreadable):
        await isolated.advance(namespace, hf, "run", type="two")
    assert (namespace.data, namespace.batches) == ({key: b"value"}, [])


async def test_mail_that_is_garbage_is_refused() -> None:
    hf, namespace = application(), RecordingNamespace()
    await namespace.set(pack((MESSAGES, "1")), b"garbage")
    with pytest.raises(Unreadable):
        await isolated.advance(namespace, hf, "run", type="two")


@given(st.data())
async def test_a_damaged_namespace_is_refused_or_read_and_never_half_written(data: st.DataObject) -> None:
    hf, namespace = application(), RecordingNamespace()
    await isolated.advance(namespace, hf, "run", type="listen")
    key = data.draw(st.sampled_from(sorted(namespace.data)))
    if data.draw(st.booleans()):
        namespace.data[key] = data.draw(st.binary(max_size=20))
    else:
        namespace.data[data.draw(st.binary(max_size=20))] = namespace.data.pop(key)
    before = dict(namespace.data)
    namespace.batches.clear()
    try:
        await isolated.advance(namespace, hf, "run")
    except (Unreadable, SchemaOutOfDate, InvalidRequest):
        assert (namespace.data, namespace.batches) == (before, [])


async def test_a_run_that_does_not_exist_needs_a_type() -> None:
    with pytest.raises(InvalidRequest, match="no run run in this namespace yet"):
        await isolated.advance(isolated.DictionaryNamespace(), application(), "run")


async def test_an_unknown_type_is_refused_before_anything_is_written() -> None:
    namespace = isolated.DictionaryNamespace()
    with pytest.raises(UnknownWorkflow):
        await isolated.advance(namespace, application(), "run", type="three")
    assert namespace.data == {}


async def test_another_type_than_that_of_the_run_is_refused() -> None:
    hf, namespace = application(), isolated.DictionaryNamespace()
    await isolated.advance(namespace, hf, "run", type="listen")
    with pytest.raises(InvalidRequest, match="has the type 'listen', not 'two'"):
        await isolated.advance(namespace, hf, "run", type="two")


@pytest.mark.parametrize("option", ["key", "reuse", "priority", "retention", "limit", "cron", "queue"])
async def test_what_needs_a_shared_store_is_refused_with_the_reason(option: str) -> None:
    options: Any = {option: "x"}
    with pytest.raises(InvalidRequest, match=rf"advance\({option}=…\): .* this needs a store"):
        await isolated.advance(isolated.DictionaryNamespace(), application(), "run", type="two", **options)


async def test_a_transaction_is_refused_with_the_reason() -> None:
    end = await isolated.advance(isolated.DictionaryNamespace(), application(), "run", type="table")
    assert end.error is not None
    assert "cannot hold your tables" in end.error.message


def scheduled() -> Holdfast:
    hf = Holdfast("memory://")

    @hf.schedule("0 3 * * *", name="nightly")
    @hf.workflow("cleanup")
    async def cleanup(ctx: Context) -> int:
        return 1

    @hf.workflow("parent")
    async def parent(ctx: Context) -> int:
        return await ctx.call(cleanup)

    return hf


async def test_a_type_with_a_declared_schedule_is_refused_with_the_reason() -> None:
    namespace = isolated.DictionaryNamespace()
    with pytest.raises(InvalidRequest, match="declared with the schedule 'nightly', which starts runs in a store"):
        await isolated.advance(namespace, scheduled(), "run", type="cleanup")
    assert namespace.data == {}


async def test_a_child_may_have_a_type_with_a_declared_schedule() -> None:
    hf = scheduled()
    waiting = await isolated.advance(isolated.DictionaryNamespace(), hf, "run", type="parent")
    (item,) = waiting.outbox
    end = await isolated.advance(isolated.DictionaryNamespace(), hf, item.run_id or "", start=item)
    assert end.result == 1


async def test_a_child_keeps_its_priority_and_retention_for_the_host() -> None:
    hf = Holdfast("memory://")

    @hf.workflow("parent")
    async def parent(ctx: Context) -> None:
        await ctx.start("child", priority=7, retention=60, tags={"shop": "1"})

    (item,) = (await isolated.advance(isolated.DictionaryNamespace(), hf, "run", type="parent")).outbox
    assert item.intent is not None
    assert (item.intent.priority, item.intent.tags) == (7, {"shop": "1"})


async def test_a_type_that_may_be_a_flow_is_refused_with_the_reason() -> None:
    with pytest.raises(UnknownWorkflow, match="A flow cannot run in a namespace, because its text is in a store"):
        await isolated.advance(isolated.DictionaryNamespace(), application(), "run", type="access.grant")


async def test_no_store_is_opened(tmp_path: Any) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path}/store.db")

    @hf.workflow("short")
    async def short(ctx: Context) -> int:
        return 1

    assert (await isolated.advance(isolated.DictionaryNamespace(), hf, "run", type="short")).result == 1
    assert list(tmp_path.iterdir()) == []
