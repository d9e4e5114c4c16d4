"""Rows that cannot be decoded because they were edited by hand: each is marked, and harms no other run."""

# ruff: noqa: S608 - statements are put together from constants of ours

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from msgspec.structs import replace

from holdfast import Context, Registry, RunInfo, RunState, Unreadable
from holdfast.app import session_of
from holdfast.core.questions import EndsOf
from holdfast.stores.memory import MemoryStore
from holdfast.testing.harness import Harness
from tests.redis.damage import damage_entries, damage_run, is_json
from tests.stage import Stage, complaints, url_for

app = Registry()
producer = Registry()


@app.workflow("shop.order.v1")
async def order(ctx: Context, number: int) -> int:
    return await ctx.step("double", lambda: number * 2)


@app.task("shop.label.v1")
def label(number: int) -> int:
    return number


@app.workflow("shop.wait.v1")
async def wait(ctx: Context) -> Any:
    return await ctx.receive("go")


Edit = Callable[[str, str], None]
"""An edit of a run on the Redis server of a URL."""


class Damage:
    """An edit of one row: the statement for each store, and the field that names it."""

    def __init__(
        self,
        field: str,
        sqlite: str = "",
        postgres: str = "",
        memory: dict[str, Any] | None = None,
        *,
        redis: Edit | None = None,
    ) -> None:
        self.field = field
        self.statements = {"sqlite": sqlite, "postgres": postgres}
        self.memory = memory
        self.redis = redis

    def kinds(self) -> list[str]:
        """The stores that can have such a row."""
        others = {"memory": self.memory is not None, "redis": self.redis is not None}
        return [kind for kind, text in {**self.statements, **others}.items() if text]

    def do(self, stage: Stage, store: Any, run_id: str) -> None:
        if stage.kind == "memory":
            assert isinstance(store, MemoryStore)
            assert self.memory is not None
            record = store._state.records[run_id]
            store._state.put_run(record, replace(record.run, **self.memory))
        elif stage.kind == "sqlite":
            connection = apsw.Connection(str(stage.database))
            connection.set_busy_timeout(30_000)
            connection.execute(self.statements["sqlite"], (run_id,))
            connection.close()
        elif stage.kind == "redis":
            assert self.redis is not None
            self.redis(stage.url, run_id)
        else:
            with psycopg.connect(stage.url, autocommit=True) as other:
                other.execute(self.statements["postgres"].encode(), (run_id,))


def json_damage(column: str, value: str, sqlite_table: str = "run", key: str = "id") -> Damage:
    memory = {column: value} if column in ("payload", "result") else None
    return Damage(
        column,
        f"update {sqlite_table} set {column} = '{value}' where {key} = ?",
        f"update holdfast.runs set {column} = '{value}' where id = %s",
        memory,
        redis=on_redis(column, value),
    )


def on_redis(column: str, value: str) -> Edit | None:
    """Return the edit of one value; None if it would make the values beside it unreadable too."""
    text = json.dumps(value) if column in ("state", "result") else value
    return partial(damage_run, column=column, value=text) if column == "payload" or is_json(text) else None


DEEP = "[" * 2_000 + "]" * 2_000
INTENT = {"sqlite_table": "intent", "key": "run_id"}

PENDING: dict[str, Damage] = {
    "body is no JSON": Damage("body", redis=partial(damage_run, column="body", value="oops")),
    "body that is nested deeply": Damage("body", redis=partial(damage_run, column="body", value=DEEP)),
    "payload is no JSON": json_damage("payload", "oops", **INTENT),
    "number out of range": json_damage("payload", '{"number": 1e400}', **INTENT),
    "lone surrogate": json_damage("payload", r'{"number": "\ud800"}', **INTENT),
    "too many digits": json_damage("payload", '{"number": ' + "1" * 5_000 + "}", **INTENT),
    "options are no JSON": json_damage("options", "oops", **INTENT),
    "options of another kind": json_damage("options", '{"max_run": "long"}', **INTENT),
    "error is no JSON": json_damage("error", "oops"),
    "error of another kind": json_damage("error", '{"type": 5}'),
    "error with a number out of range": json_damage("error", '{"type": "E", "message": "m", "attempts": 1e400}'),
    "error with a lone surrogate": json_damage("error", r'"\ud800"'),
    "error that is nested deeply": json_damage("error", DEEP),
    "options with a lone surrogate": json_damage("options", r'{"seed": "\ud800"}', **INTENT),
    "options that are nested deeply": json_damage("options", DEEP, **INTENT),
    "slots with a lone surrogate": json_damage("slots", r'["\ud800"]'),
    "slots that are nested deeply": json_damage("slots", DEEP),
    "slots are no JSON": json_damage("slots", "oops"),
    "tags are no JSON": Damage("tags", "update intent set tags = 'oops' where run_id = ?"),
    "tags of another kind": Damage(
        "tags",
        """update intent set tags = '{"a": 1}' where run_id = ?""",
        """update holdfast.runs set tags = '{"a": 1}' where id = %s""",
        redis=on_redis("tags", '{"a": 1}'),
    ),
    "unknown state": json_damage("state", "done"),
    "instant beyond all dates": Damage(
        "created_at",
        "update run set created_at = 9000000000000000000 where id = ?",
        "update holdfast.runs set created_at = 9000000000000000000 where id = %s",
        redis=on_redis("created_at", "9000000000000000000"),
    ),
    "ready before all dates": Damage(
        "ready_at",
        "update run set ready_at = -4611686018427387904 where id = ?",
        "update holdfast.runs set ready_at = '-infinity' where id = %s",
        {"ready_at": -4611686018427387904},
        redis=on_redis("ready_at", "-4611686018427387904"),
    ),
    "type is no text": Damage(
        "type", "update run set type = cast(x'ff' as text) where id = ?", redis=on_redis("type", "5")
    ),
    "key is no text": Damage(
        "key", "update run set key = cast(x'ff' as text) where id = ?", redis=on_redis("key", "5")
    ),
    "priority is no number": Damage(
        "priority", "update run set priority = 'high' where id = ?", redis=on_redis("priority", '"high"')
    ),
    "token is no number": Damage("token", "update run set token = 'x' where id = ?", redis=on_redis("token", '"x"')),
}

ENDED: dict[str, Damage] = {
    "result is no JSON": json_damage("result", "{"),
    "result out of range": json_damage("result", "[1e999]"),
    "end with another error": json_damage("error", "oops"),
    "end beyond all dates": Damage(
        "updated_at",
        "update run set updated_at = 'yesterday' where id = ?",
        "update holdfast.runs set updated_at = 9000000000000000000 where id = %s",
        redis=on_redis("updated_at", "9000000000000000000"),
    ),
    "end before all dates": Damage(
        "finished_at",
        "update run set finished_at = -4611686018427387904 where id = ?",
        "update holdfast.runs set finished_at = -4611686018427387904 where id = %s",
        {"finished_at": -4611686018427387904},
        redis=on_redis("finished_at", "-4611686018427387904"),
    ),
}

WAITS = Damage(
    "waits",
    "update wait set names = 'oops' where run_id = ?",
    "update holdfast.waits set names = 'oops' where run_id = %s",
    redis=partial(damage_run, column="waits", value="oops"),
)

SURROGATE_WAITS = Damage(
    "waits",
    r"""update wait set names = '["\ud800"]' where run_id = ?""",
    r"""update holdfast.waits set names = '["\ud800"]' where run_id = %s""",
    redis=on_redis("waits", r'[{"location": "go", "kind": "message", "names": ["\ud800"]}]'),
)

HISTORY: dict[str, Damage] = {
    "entry with another error": Damage(
        "error",
        "update entry set error = 'oops' where run_id = ?",
        "update holdfast.entries set error = 'oops' where run_id = %s",
        redis=partial(damage_entries, values={"error": '{"type": 5}'}),
    ),
    "entry whose error has a lone surrogate": Damage(
        "error",
        r"""update entry set error = '"\ud800"' where run_id = ?""",
        r"""update holdfast.entries set error = '"\ud800"' where run_id = %s""",
        redis=partial(damage_entries, values={"error": r'"\ud800"'}),
    ),
    "entry of another kind": Damage(
        "kind",
        "update entry set kind = 'dance' where run_id = ?",
        "update holdfast.entries set kind = 'dance' where run_id = %s",
        redis=partial(damage_entries, values={"kind": '"dance"'}),
    ),
    "entry whose result is no JSON": Damage(
        "result",
        "update entry set result = 'oops' where run_id = ?",
        "update holdfast.entries set result = 'oops' where run_id = %s",
        redis=partial(damage_entries, values={"result": '"oops"'}),
    ),
}


def on_each_store(known: dict[str, Damage]) -> Callable[[Any], Any]:
    """Run a scenario with each damage on each store that allows it."""
    cases = [(name, kind) for name, damage in known.items() for kind in damage.kinds()]
    return pytest.mark.parametrize(
        ("kind", "damage"),
        [(kind, known[name]) for name, kind in cases],
        ids=[f"{kind}-{name.replace(' ', '_')}" for name, kind in cases],
    )


@pytest.fixture
def stage(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return Stage(kind, tmp_path, url_for(kind, request))


async def listed(h: Harness) -> dict[str, RunInfo]:
    return {info.id: info async for info in h.list()}


def check_marked(infos: dict[str, RunInfo], odd: str, damage: Damage) -> None:
    """Check that the damaged row is marked with its unreadable field, and that the others are unchanged."""
    assert {run_id for run_id, info in infos.items() if info.unreadable is not None} == {odd}
    found = infos[odd]
    assert found.unreadable is not None
    assert damage.field in found.unreadable
    assert len(found.unreadable) < 1_000
    if damage.field in ("payload", "result", "error"):
        assert getattr(found, damage.field) is None


@on_each_store(PENDING)
async def test_an_unreadable_row_is_marked_and_hides_no_other(stage: Stage, damage: Damage) -> None:
    async with stage.harness(producer) as h:
        runs = [await h.start("shop.order.v1", {"number": number}) for number in range(3)]
        odd = runs[1].id
        damage.do(stage, session_of(h).store, odd)

        infos = await listed(h)
        assert set(infos) == {run.id for run in runs}
        check_marked(infos, odd, damage)
        info = await h.run(odd).info()
        assert (info.id, info.unreadable) == (odd, infos[odd].unreadable)
        assert "annot be read" in await h.run(odd).explain()
        assert await h.run(odd).history() == []
        assert [fact.event for fact in await h.run(odd).audit()] == ["created"]
        await h.types.list()  # counts runs by state


@on_each_store(ENDED)
async def test_an_unreadable_end_is_marked_and_hides_no_other(stage: Stage, damage: Damage) -> None:
    async with stage.harness(app) as h:
        runs = [await h.start(order, number) for number in range(3)]
        assert [await run.result() for run in runs] == [0, 2, 4]
        damage.do(stage, session_of(h).store, runs[1].id)

    async with stage.harness(app) as h:
        check_marked(await listed(h), runs[1].id, damage)
        assert await h.run(runs[1].id).explain()
        assert any([runs[1].id.encode() in line async for line in h.export(live=False)])
        assert [await h.run(run.id).result() for run in (runs[0], runs[2])] == [0, 4]
        if damage.field == "result":
            with pytest.raises(Unreadable, match="result of run"):
                await h.run(runs[1].id).result()
        assert {run.id for run in await session_of(h).store.changes(EndsOf(run_ids=[run.id for run in runs]))} == {
            run.id for run in runs
        }


@on_each_store({"no JSON": WAITS, "lone surrogate": SURROGATE_WAITS})
async def test_unreadable_waits_are_marked_and_hide_no_other_run(stage: Stage, damage: Damage) -> None:
    async with stage.harness(app) as h:
        runs = [await h.start(wait) for _ in range(3)]
        await h.settle()
        damage.do(stage, session_of(h).store, runs[1].id)

        infos = await listed(h)
        check_marked(infos, runs[1].id, damage)
        assert infos[runs[1].id].state is RunState.SUSPENDED
        assert len(infos[runs[0].id].waits) == 1


def is_due(damage: Damage) -> bool:
    """True if a claim can return a row of this kind."""
    return damage.field not in ("created_at", "ready_at", "type", "key", "state")


CLAIMED = {name: damage for name, damage in PENDING.items() if is_due(damage)}


@on_each_store(CLAIMED)
async def test_a_worker_blocks_an_unreadable_run_and_nothing_else(
    stage: Stage, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    await check_claims(stage, damage, "shop.order.v1", caplog)


@on_each_store({"ready before all dates": PENDING["ready before all dates"]})
async def test_a_run_that_was_ready_before_all_dates_is_exported_and_executed(stage: Stage, damage: Damage) -> None:
    async with stage.harness(app) as h:
        run = await h.start("shop.order.v1", {"number": 3})
        damage.do(stage, session_of(h).store, run.id)
        lines = [line async for line in h.export()]
        assert any(run.id.encode() in line for line in lines)
        await h.run(run.id).resume()
        assert await h.run(run.id).result() == 6


SOME = (
    "payload is no JSON",
    "options are no JSON",
    "options that are nested deeply",
    "error with a lone surrogate",
    "tags of another kind",
    "token is no number",
)


@on_each_store({name: CLAIMED[name] for name in SOME})
@pytest.mark.parametrize("type", ["shop.order.v1", "shop.label.v1"])
async def test_a_worker_blocks_unreadable_tasks_and_runs_under_limits_too(
    stage: Stage, damage: Damage, type: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage.harness(producer) as h:
        await h.types.set(type, concurrency=10)
    await check_claims(stage, damage, type, caplog)


async def check_claims(stage: Stage, damage: Damage, type: str, caplog: pytest.LogCaptureFixture) -> None:
    async with stage.harness(producer) as h:
        runs = [await h.start(type, {"number": number}) for number in range(5)]
        odd = runs[2].id
        damage.do(stage, session_of(h).store, odd)

    async with stage.harness(app) as h:
        await h.settle()
        infos = await listed(h)
        states = [infos[run.id].state for run in runs if run.id != odd]
        assert states == [RunState.SUCCEEDED] * 4
        error = infos[odd].error
        assert infos[odd].state is RunState.BLOCKED
        assert error is not None
        assert error.type == "Unreadable"
        again = await h.start(type, {"number": 7})
        assert await again.result() in (7, 14)
    assert not any("claiming failed" in text for text in complaints(caplog))


@on_each_store(HISTORY)
@pytest.mark.parametrize("is_limited", [False, True], ids=["free", "limited"])
async def test_an_unreadable_history_blocks_its_run_alone(stage: Stage, damage: Damage, is_limited: bool) -> None:
    stepping = Registry()

    @stepping.workflow("shop.wait.v1")
    async def patient(ctx: Context) -> Any:
        first = await ctx.step("first", lambda: 1)
        return first + await ctx.receive("go")

    async with stage.harness(stepping) as h:
        if is_limited:
            await h.types.set("shop.wait.v1", concurrency=10)
        runs = [await h.start(patient) for _ in range(3)]
        await h.settle()
        damage.do(stage, session_of(h).store, runs[1].id)
        for run in runs:
            await run.send("go", 1)
        await h.settle()
        infos = await listed(h)
        assert [infos[run.id].state for run in runs] == [RunState.SUCCEEDED, RunState.BLOCKED, RunState.SUCCEEDED]
        error = infos[runs[1].id].error
        assert error is not None
        assert error.type == ("HistoryDiverged" if damage.field == "result" else "Unreadable")
        assert error.message
        if damage.field == "result":  # the row can be read, but its recorded value cannot
            (entry,) = [entry for entry in await runs[1].history() if entry.unreadable is not None]
            assert (entry.location, entry.result) == ("first", None)
        else:
            with pytest.raises(Unreadable, match="the history of run"):
                await runs[1].history()


DATES = Damage(
    "started_at",
    "update entry set started_at = -4611686018427387904, finished_at = -4611686018427387904 where run_id = ?",
    "update holdfast.entries set started_at = -4611686018427387904, finished_at = -4611686018427387904 "
    "where run_id = %s",
    redis=partial(damage_entries, values=dict.fromkeys(("started_at", "finished_at"), "-4611686018427387904")),
)


@on_each_store({"dates": DATES})
async def test_an_entry_from_before_all_dates_is_marked(stage: Stage, damage: Damage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(order, 1)
        assert await run.result() == 2
        damage.do(stage, session_of(h).store, run.id)
        (entry,) = await run.history()
        assert (entry.started_at.year, entry.finished_at, entry.result) == (1, None, 2)
        assert entry.unreadable is not None
        assert "finished_at" in entry.unreadable


@on_each_store({"waits": SURROGATE_WAITS, "options": json_damage("options", DEEP, **INTENT)})
async def test_an_event_reaches_waiting_runs_beside_an_unreadable_row(stage: Stage, damage: Damage) -> None:
    listening = Registry()

    @listening.workflow("shop.wait.v1")
    async def listener(ctx: Context) -> Any:
        return await ctx.wait_event("news")

    async with stage.harness(listening) as h:
        runs = [await h.start(listener) for _ in range(3)]
        await h.settle()
        damage.do(stage, session_of(h).store, runs[1].id)
        await h.emit("news", 7)
        await h.settle()
        assert [await run.result() for run in (runs[0], runs[2])] == [7, 7]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "redis"])
async def test_a_repaired_run_continues(stage: Stage) -> None:
    async with stage.harness(producer) as h:
        run = await h.start("shop.order.v1", {"number": 3})
        PENDING["payload is no JSON"].do(stage, session_of(h).store, run.id)
    async with stage.harness(app) as h:
        await h.settle()
        assert (await h.run(run.id).info()).state is RunState.BLOCKED
        json_damage("payload", '{"number": 4}', **INTENT).do(stage, session_of(h).store, run.id)
        assert await h.run(run.id).recover()
        assert await h.run(run.id).result() == 8


@on_each_store({name: PENDING[name] for name in ("payload is no JSON", "error of another kind", "unknown state")})
async def test_an_unreadable_run_can_be_deleted(stage: Stage, damage: Damage) -> None:
    async with stage.harness(producer) as h:
        runs = [await h.start("shop.order.v1", {"number": number}) for number in range(3)]
        damage.do(stage, session_of(h).store, runs[1].id)
    async with stage.harness(app) as h:
        await h.settle()
        await h.run(runs[1].id).delete()
        assert set(await listed(h)) == {runs[0].id, runs[2].id}


@on_each_store({"unknown state": PENDING["unknown state"]})
async def test_the_result_of_a_run_in_an_unknown_state_is_refused_with_the_reason(stage: Stage, damage: Damage) -> None:
    async with stage.harness(producer) as h:
        run = await h.start("shop.order.v1", {"number": 1})
        damage.do(stage, session_of(h).store, run.id)
        with pytest.raises(Unreadable, match="state"):
            await h.run(run.id).result()


EXPORTED = (
    "payload is no JSON",
    "error is no JSON",
    "error with a lone surrogate",
    "options that are nested deeply",
    "unknown state",
)


@on_each_store({name: PENDING[name] for name in EXPORTED})
async def test_an_export_marks_unreadable_rows_and_contains_all_others(
    stage: Stage, damage: Damage, tmp_path: Path
) -> None:
    async with stage.harness(producer) as h:
        runs = [await h.start("shop.order.v1", {"number": number}) for number in range(3)]
        odd = runs[1].id
        damage.do(stage, session_of(h).store, odd)
        lines = [line async for line in h.export()]

    (marked,) = [line for line in lines if line.startswith(b'{"line":"unreadable"')]
    assert odd.encode() in marked
    other = Stage("memory", tmp_path)
    async with other.harness(app) as there:
        report = await there.import_(lines)
        assert (report.restored, [run.id for run in report.unreadable]) == (2, [odd])
        assert damage.field in report.unreadable[0].why
        assert sorted([await there.run(run.id).result() for run in runs if run.id != odd]) == [0, 4]
