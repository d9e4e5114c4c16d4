"""Looking at flows and controlling them: lines that wait, variables, rewind, fork with edited variables, recover."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Fatal, Holdfast, InvalidRequest, Registry, RunHandle, RunState
from holdfast.app import session_of
from holdfast.core.entries import FLOW_LOCATION
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.ports import Store
from holdfast.core.questions import ListFlows
from holdfast.engine.flow_view import FlowView, flow_view
from holdfast.testing.harness import Harness
from tests.stage import Stage, facts

TYPE = "access.request.v1"

ACCESS = '''"""Grant access for a while."""

async def main(user: str, hours: int = 8):
    boss = await call("access.boss.v1", user=user)
    answer = await receive("decision", timeout=days(2))
    await call("access.grant.v1", user=user, hours=hours)
    key, _ = await race({"end": sleep(hours * 3600), "revoke": receive("revoke")})
    return {"boss": boss, "hours": hours, "why": key, "by": answer}
'''

SIDE_BY_SIDE = """
async def ask(name):
    reply = await receive(name)
    return reply

async def main():
    first = ask("a")
    second = ask("b")
    return [await first, await second]
"""

app = Registry()
refused: set[str] = set()


@app.task("access.boss.v1")
async def boss(user: str) -> str:
    return f"boss of {user}"


@app.task("access.grant.v1")
async def grant(user: str, hours: int) -> None:
    if user in refused:
        raise Fatal(f"{user} is not welcome")


@asynccontextmanager
async def begun(stage: Stage, **payload: Any) -> AsyncIterator[tuple[Harness, RunHandle[Any]]]:
    """A harness with a flow that waits for its decision."""
    async with stage.harness(app) as h:
        await h.flows.register(ACCESS, type=TYPE)
        run = await h.start(TYPE, {"user": "zoe", **payload})
        await h.settle()
        yield h, run


async def seen(h: Harness, run: RunHandle[Any]) -> FlowView:
    store = session_of(h).store
    details = await store.get(run.id)
    assert details is not None
    return await flow_view(store, details.run, await store.history(run.id))


def lines(view: FlowView) -> list[int]:
    return [wait.line for wait in view.waits]


# Looking


async def test_a_flow_that_waits_shows_its_line_and_its_variables(stage: Stage) -> None:
    async with begun(stage) as (h, run):
        view = await seen(h, run)

        (wait,) = view.waits
        assert (wait.line, wait.function, wait.since) == (5, "main", h.now)
        assert wait.sentence == "waits for message decision until 2030-01-03 00:00:00 UTC"
        assert view.variables == {"user": "zoe", "hours": 8, "boss": "boss of zoe"}
        assert (view.source, view.line(5)) == (ACCESS, 'answer = await receive("decision", timeout=days(2))')
        assert await run.explain() == (
            "Waiting: for message decision until 2030-01-03 00:00:00 UTC "
            '(line 5: `answer = await receive("decision", timeout=days(2))`).'
        )


async def test_a_flow_that_waits_on_several_paths_shows_all_of_them(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.flows.register(SIDE_BY_SIDE, type="side.v1")
        run = await h.start("side.v1", {})
        await h.settle()

        view = await seen(h, run)
        assert [(wait.line, wait.frames[0].variables) for wait in view.waits] == [
            (9, {"first": "<handle>", "second": "<handle>"}),
            (3, {"name": "a"}),
            (3, {"name": "b"}),
        ]
        assert await run.explain() == (
            "Waiting: for ask() (line 9: `return [await first, await second]`); "
            "for message a (line 3: `reply = await receive(name)`); "
            "for message b (line 3: `reply = await receive(name)`)."
        )


async def test_a_flow_that_has_not_begun_has_ended_or_failed_is_shown(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.flows.register("async def main(n):\n    m = await receive('m')\n    return 1 // n", type="divide.v1")
        waiting = await h.start("divide.v1", {"n": 1}, delay=60)
        good, bad = await h.start("divide.v1", {"n": 1}), await h.start("divide.v1", {"n": 0})
        await h.settle()
        for run in (good, bad):
            await run.send("m")
        await h.settle()

        fresh, ended, failed = [await seen(h, run) for run in (waiting, good, bad)]
        assert (fresh.note, fresh.waits, fresh.variables) == ("it has not begun", (), {})
        assert (ended.note, ended.waits, ended.failed_at) == ("it has succeeded", (), None)
        assert failed.failed_at is not None
        assert (failed.failed_at.line, failed.variables) == (3, {"n": 0})
        assert "line 3, column" in await bad.explain()


async def test_a_flow_whose_program_is_damaged_is_explained_and_not_an_error(stage: Stage) -> None:
    async with begun(stage) as (h, run):
        store = session_of(h).store
        (definition,) = await store.catalog(ListFlows(type=TYPE, with_texts=True))
        damaged = replace(definition, program=definition.program.replace("main", "niam"))
        details = await store.get(run.id)
        assert details is not None
        view = await flow_view(_Changed(store, damaged), details.run, await store.history(run.id))

        assert (view.waits, view.source) == ((), ACCESS)
        assert view.unreadable == "this program of a flow was changed after it was compiled; register the flow again"


async def test_a_flow_whose_snapshot_cannot_be_read_is_one_sentence(stage: Stage) -> None:
    async with begun(stage) as (h, run):
        store = session_of(h).store
        details, entries = await store.get(run.id), await store.history(run.id)
        assert details is not None
        cut = [replace(one, result="{") if one.location == FLOW_LOCATION else one for one in entries]

        view = await flow_view(store, details.run, cut)

        assert view.unreadable is not None
        assert view.unreadable.startswith("the snapshot of this flow cannot be read: ")


class _Changed:
    """A reader of a store with another definition."""

    def __init__(self, store: Store, definition: FlowDefinition) -> None:
        self._store = store
        self._definition = definition

    async def catalog(self, question: Any) -> Any:
        return [self._definition] if isinstance(question, ListFlows) else await self._store.catalog(question)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_explain_says_that_no_running_worker_executes_the_flow(stage: Stage) -> None:
    hf = Holdfast("memory://")
    session_of(hf).store = stage.store()
    hf.include(app)
    async with hf:
        await hf.flows.register(ACCESS, type=TYPE)
        async with hf.worker(flows=False):
            run = await hf.start(TYPE, {"user": "zoe"})

            assert (await run.explain()).endswith(
                "but the one worker that is running does not execute the flow access.request.v1; "
                "start one without --no-flows whose --types include it."
            )


async def test_the_history_shows_lines_and_one_entry_for_each_kept_turn(stage: Stage) -> None:
    async with begun(stage) as (h, run):
        await run.send("decision", "ada")
        await h.settle()

        history = await run.history()
        assert [(entry.line, entry.name) for entry in history if entry.line] == [
            (4, "access.boss.v1"),
            (5, "receive:decision"),
            (6, "access.grant.v1"),
        ]
        turns = [entry for entry in history if entry.line is None]
        assert [entry.location for entry in turns] == [f"@turn/{n}" for n in range(1, len(turns) + 1)]
        assert all(entry.result is None for entry in turns)


# Controlling


async def test_a_flow_goes_back_to_a_kept_snapshot_and_to_an_entry(stage: Stage) -> None:
    async with begun(stage) as (h, run):
        before = (await run.history())[-1].location
        await run.send("decision", "ada")
        await h.settle()
        assert lines(await seen(h, run)) == [7]

        assert await run.rewind(before)
        await h.settle()
        assert lines(await seen(h, run)) == [7]  # the decision was unread again, and arrived again

        assert await run.rewind("@4/access.boss.v1#1")
        await h.settle()
        assert lines(await seen(h, run)) == [7]
        await run.send("revoke")
        assert (await run.result())["why"] == "revoke"


async def test_the_shown_deadline_of_a_flow_moves_with_a_rewind(stage: Stage) -> None:
    async with begun(stage) as (h, run):
        await h.advance(3600)
        turn = (await run.history())[-1].location

        await run.rewind(turn)
        rewound = await seen(h, run)
        await h.settle()

        sentence = "waits for message decision until 2030-01-03 01:00:00 UTC"
        assert [wait.sentence for wait in rewound.waits] == [sentence]
        assert "until 2030-01-03 01:00:00 UTC" in await run.explain()
        assert [wait.sentence for wait in (await seen(h, run)).waits] == [sentence]


async def test_a_fork_of_a_flow_starts_with_edited_variables(stage: Stage) -> None:
    async with begun(stage) as (h, run):
        turn = (await run.history())[-1].location

        fork = await run.fork(turn, patch={"hours": 1, "boss": {"name": "ada"}})
        await h.settle()
        assert (await seen(h, fork)).variables == {"user": "zoe", "hours": 1, "boss": {"name": "ada"}}
        for one in (run, fork):
            await one.send("decision", "ok")

        assert await fork.result() == {"boss": {"name": "ada"}, "hours": 1, "why": "end", "by": "ok"}
        assert (await run.result())["hours"] == 8


async def test_a_fork_of_a_flow_refuses_unknown_variables_and_locations(stage: Stage) -> None:
    async with begun(stage) as (_, run):
        turn = (await run.history())[-1].location

        with pytest.raises(InvalidRequest, match="hour"):
            await run.fork(turn, patch={"hour": 1})
        with pytest.raises(InvalidRequest, match="the flow keeps no entry at 'nowhere'"):
            await run.fork("nowhere", patch={"hours": 1})


async def test_a_fork_at_the_beginning_of_a_flow_has_no_variables_to_set(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.flows.register("async def main(n):\n    emit('news', n)\n    await receive('m')", type="news.v1")
        run = await h.start("news.v1", {"n": 1})
        await h.settle()
        first = (await run.history())[0].location

        with pytest.raises(InvalidRequest, match="is at its beginning, so there is no variable n to set"):
            await run.fork(first, patch={"n": 2})
        fork = await run.fork(first)
        await h.settle()
        assert (await seen(h, fork)).variables == {"n": 1}


async def test_a_failed_flow_is_recovered_at_the_call_that_failed(stage: Stage) -> None:
    refused.add("eve")
    async with begun(stage, user="eve") as (h, run):
        await run.send("decision", "ok")
        await h.settle()
        failed = await seen(h, run)
        assert failed.failed_at is not None
        assert ((await run.info()).state, failed.failed_at.line) == (RunState.FAILED, 6)

        refused.clear()
        assert await run.recover()
        assert (await run.result())["why"] == "end"


async def test_a_flow_is_paused_resumed_cancelled_and_deleted_like_every_run(stage: Stage) -> None:
    async with begun(stage) as (h, run):
        assert await run.pause("holiday")
        await run.send("decision", "ok")
        await h.settle()
        assert (await run.explain()).startswith("Paused since")
        assert lines(await seen(h, run)) == [5]

        assert await run.resume()
        await h.settle()
        assert lines(await seen(h, run)) == [7]

        assert await run.cancel("enough")
        await h.settle()
        assert ((await seen(h, run)).note, lines(await seen(h, run))) == ("it was cancelled", [])
        assert await run.delete()


async def test_the_check_before_a_deploy_counts_flows_as_fine(stage: Stage) -> None:
    async with begun(stage) as (h, run):
        (found,) = await h.check()

        assert (found.id, found.fit.value, found.is_good) == (run.id, "fits", True)
        assert "no deploy changes" in found.summary


async def test_facts_of_a_flow_name_their_lines(stage: Stage) -> None:
    async with begun(stage) as (_, run):
        assert "@4/access.boss.v1#1 child done" in await facts(run)
