"""Producers: programs that start runs for others to execute. Each program is its own Holdfast on one store."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from holdfast import (
    ChildFailed,
    Context,
    Fatal,
    Holdfast,
    InvalidRequest,
    JoinFailed,
    NotSerializable,
    RunCancelled,
    RunFailed,
    RunState,
    SyncContext,
)
from holdfast.app import session_of
from holdfast.core.questions import CountRuns
from holdfast.stores.memory import MemoryStore
from holdfast.testing.patience import GUARD_SECONDS, until
from tests.rows import each_row
from tests.stage import url_for

"""Maximum duration of any wait here, on a busy machine."""

Program = Callable[[], Holdfast]


@dataclass
class Page:
    number: int
    read_at: datetime


def ocr(hf: Holdfast) -> Holdfast:
    """The program that can read pages. No other program has its code."""

    @hf.workflow("content.ocr.v1")
    async def read(ctx: Context, path: str, pages: int = 1) -> list[Page]:
        if path == "blank":
            raise Fatal("there is nothing on it")
        return await ctx.step("read", lambda: [Page(n, datetime(2030, 1, 1, tzinfo=UTC)) for n in range(pages)])

    @hf.task("content.count.v1")
    def count(text: str) -> int:
        return len(text)

    @hf.workflow("content.wait.v1")
    async def wait(ctx: Context) -> Any:
        return await ctx.receive("go")

    return hf


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Program:
    """Return a function that creates a program on the store of this test, with nothing registered."""
    memory = MemoryStore()
    stores: dict[str, Callable[[], Holdfast]] = {
        "memory": lambda: Holdfast("memory://", store=memory),
        "sqlite": lambda: Holdfast(f"sqlite:///{tmp_path}/runs.db"),
        "postgres": lambda: Holdfast(url),
        "redis": lambda: Holdfast(url),
    }
    url = url_for(request.param, request)
    return stores[request.param]


@asynccontextmanager
async def company(program: Program, *types: str) -> AsyncIterator[tuple[Holdfast, Holdfast]]:
    """A producer without any code, and a running program that can read."""
    async with program() as producer, ocr(program()) as reader, reader.worker(list(types) or None):
        yield producer, reader


PAGE = {"number": 0, "read_at": "2030-01-01T00:00:00Z"}


# From outside of runs


async def test_a_run_is_started_by_name_before_any_process_knows_the_type(program: Program) -> None:
    async with program() as producer:
        run = await producer.start("content.ocr.v1", {"path": "a.png"}, key="a", tags={"shop": "x"})
        again = await producer.start("content.ocr.v1", {"path": "a.png"}, key="a")
        assert (again.id, again.created, (await run.info()).state) == (run.id, False, RunState.PENDING)

    async with company(program) as (producer, _):
        assert await producer.run(key="a").result(timeout=GUARD_SECONDS) == [PAGE]


async def test_results_are_plain_json_where_the_code_is_missing(program: Program) -> None:
    async with company(program) as (producer, reader):
        run = await producer.start("content.ocr.v1", {"path": "a.png", "pages": 2})

        assert await run.result(timeout=GUARD_SECONDS) == [PAGE, PAGE | {"number": 1}]
        assert await producer.execute("content.count.v1", {"text": "four"}) == 4
        # A program with the code gets the declared type, whether it starts by name or not.
        typed = await reader.execute("content.ocr.v1", {"path": "a.png"})
        assert typed == [Page(0, datetime(2030, 1, 1, tzinfo=UTC))]


@pytest.mark.long
async def test_thousands_are_started_by_name_in_one_round_trip(program: Program) -> None:
    async with company(program, "content.count.*") as (producer, _):
        texts = ["x" * n for n in range(300)]
        runs = await producer.start_many("content.count.v1", [{"text": text} for text in texts])

        assert [await run.result(timeout=GUARD_SECONDS) for run in runs] == list(range(300))


async def test_a_run_that_fails_or_is_cancelled_elsewhere_raises_here(program: Program) -> None:
    async with company(program) as (producer, _):
        failing = await producer.start("content.ocr.v1", {"path": "blank"})
        waiting = await producer.start("content.wait.v1")

        with pytest.raises(RunFailed, match="Fatal: there is nothing on it"):
            await failing.result(timeout=GUARD_SECONDS)
        with pytest.raises(TimeoutError):
            await waiting.result(timeout=0.01)
        await waiting.cancel("not needed")
        with pytest.raises(RunCancelled, match="not needed"):
            await waiting.result(timeout=GUARD_SECONDS)


async def test_a_producer_sends_to_runs_whose_code_it_does_not_have(program: Program) -> None:
    async with company(program) as (producer, _):
        run = await producer.start("content.wait.v1")
        await run.send("go", {"by": "ada"})

        assert await run.result(timeout=GUARD_SECONDS) == {"by": "ada"}


async def test_a_payload_that_does_not_fit_fails_the_run_where_the_code_is_known(program: Program) -> None:
    async with company(program) as (producer, reader):
        with pytest.raises(RunFailed, match="pages"):
            await producer.execute("content.ocr.v1", {"path": "a.png", "pages": "two"})
        with pytest.raises(RunFailed, match="path"):
            await producer.execute("content.ocr.v1")
        with pytest.raises(InvalidRequest, match="pages"):  # a program with the code raises at once
            await reader.start("content.ocr.v1", {"path": "a.png", "pages": "two"})


async def test_every_mapping_is_a_payload_and_none_is_an_empty_one(program: Program) -> None:
    async with program() as producer:
        run = await producer.start("x.v1", MappingProxyType({"a": 1}))
        empty = await producer.start("x.v1", None)

        assert ((await run.info()).payload, (await empty.info()).payload) == ({"a": 1}, {})


REFUSED: dict[str, tuple[tuple[Any, ...], type[Exception], str]] = {
    "a list": (
        ("x.v1", [1]),
        InvalidRequest,
        "takes one payload, a dict of its parameters by name, not a list",
    ),
    "a text": (("x.v1", "path"), InvalidRequest, "not a str"),
    "two arguments": (("x.v1", {}, {}), InvalidRequest, "not 2 arguments"),
    "a name with blanks": (("content ocr", {}), InvalidRequest, "a type name must not contain spaces"),
    "a pattern": (("content.*", {}), InvalidRequest, "a type name must not contain spaces, commas, quotes or stars"),
    "no name": (("", {}), InvalidRequest, "type name"),
    "a path": (("content/ocr", {}), InvalidRequest, "type name"),
    "an object": (("x.v1", {"a": object()}), NotSerializable, "object"),
    "not a number": (("x.v1", {"a": math.nan}), NotSerializable, "payload of 'x.v1'"),
    "a key that is no text": (("x.v1", {1: 2}), NotSerializable, "payload of 'x.v1'"),
    "no workflow": ((len, "x"), InvalidRequest, "is not a workflow or task"),
}


@each_row("name", REFUSED)
async def test_a_start_that_no_worker_could_ever_execute_is_refused_at_once(program: Program, name: str) -> None:
    args, error, words = REFUSED[name]
    async with program() as producer:
        with pytest.raises(error, match=words):
            await producer.start(*args)
        with pytest.raises(error, match=words):
            await producer.execute(*args)

        assert await session_of(producer).store.stats(CountRuns()) == {}


# From inside of runs


def parents(hf: Holdfast) -> Holdfast:
    """A program with parents only, whose children are executed by the reader."""

    @hf.workflow("shop.call.v1")
    async def call(ctx: Context, path: str) -> Any:
        return await ctx.call("content.ocr.v1", {"path": path})

    @hf.workflow("shop.start.v1")
    async def start(ctx: Context) -> Any:
        child = await ctx.start("content.wait.v1")
        other = await ctx.start("content.wait.v1", name="cancelled")
        child.send("go", "now")
        other.cancel()
        try:
            return [await child, await other]
        except ChildFailed as failure:
            return [await child, failure.kind]

    @hf.workflow("shop.map.v1")
    async def map(ctx: Context, limit: int | None) -> Any:
        return await ctx.map("content.count.v1", [{"text": "x" * n} for n in range(7)], limit=limit)

    @hf.workflow("shop.sync.v1")
    def sync(ctx: SyncContext) -> Any:
        child = ctx.start("content.wait.v1")
        child.send("go", "now")
        pages = ctx.call("content.ocr.v1", {"path": "a.png"})
        return [pages, child.result(), ctx.map("content.count.v1", [{"text": "x"}, {"text": "xx"}], limit=1)]

    @hf.workflow("shop.bad.v1")
    async def bad(ctx: Context, verb: str, kind: str) -> Any:
        type, *args = REFUSED[kind][0]
        if verb == "map":
            await ctx.map(type, [tuple(args)])
        else:
            await getattr(ctx, verb)(type, *args)

    return hf


@asynccontextmanager
async def family(program: Program) -> AsyncIterator[Holdfast]:
    """Two running programs: one has only the parents, the other only the children."""
    async with company(program, "content.*"), parents(program()) as shop, shop.worker(["shop.*"]):
        yield shop


async def test_a_parent_calls_a_type_that_only_other_workers_have(program: Program) -> None:
    async with family(program) as shop:
        run = await shop.start("shop.call.v1", {"path": "a.png"})

        assert await run.result(timeout=GUARD_SECONDS) == [PAGE]
        (child,) = [info async for info in shop.list(parent_id=run.id)]
        assert (child.type, child.state) == ("content.ocr.v1", RunState.SUCCEEDED)


async def test_a_child_that_fails_elsewhere_fails_its_parent_here_with_the_cause(program: Program) -> None:
    async with family(program) as shop:
        with pytest.raises(RunFailed, match=r"ChildFailed: .*there is nothing on it"):
            await shop.execute("shop.call.v1", {"path": "blank"})


async def test_a_parent_waits_for_workers_of_its_child_that_do_not_exist_yet(program: Program) -> None:
    async with parents(program()) as shop, shop.worker():
        run = await shop.start("shop.call.v1", {"path": "a.png"})
        while not (waiting := [info async for info in shop.list(parent_id=run.id)]):
            await asyncio.sleep(0)
        assert "does not handle type content.ocr.v1" in await shop.run(waiting[0].id).explain()

        async with company(program):
            assert await run.result(timeout=GUARD_SECONDS) == [PAGE]


async def test_a_parent_starts_children_by_name_sends_to_them_and_cancels_them(program: Program) -> None:
    async with family(program) as shop:
        assert await shop.execute("shop.start.v1") == ["now", "cancelled"]


@pytest.mark.parametrize("limit", [None, 2])
async def test_a_parent_maps_a_type_by_name(program: Program, limit: int | None) -> None:
    async with family(program) as shop:
        assert await shop.execute("shop.map.v1", {"limit": limit}) == list(range(7))


async def test_a_plain_function_calls_by_name_too(program: Program) -> None:
    async with family(program) as shop:
        assert await shop.execute("shop.sync.v1") == [[PAGE], "now", [1, 2]]


@each_row("verb", ["call", "start", "map"])
@each_row("kind", ["a list", "two arguments", "a name with blanks", "an object", "not a number"])
async def test_a_child_that_no_worker_could_ever_execute_stops_its_parent_with_the_reason(
    program: Program, verb: str, kind: str
) -> None:
    _, error, words = REFUSED[kind]
    async with parents(program()) as shop, shop.worker():
        run = await shop.start("shop.bad.v1", {"verb": verb, "kind": kind})
        # A wrong call is most likely a slip, which better code heals. A value that cannot be stored is a failure.
        state = RunState.FAILED if error is NotSerializable else RunState.BLOCKED

        async def has_stopped() -> bool:
            return (await run.info()).state is state

        await until(f"the parent is {state.value}", has_stopped)
        assert re.search(f"{error.__name__}: .*{words}", str((await run.info()).error))
        assert list(await session_of(shop).store.stats(CountRuns())) == ["shop.bad.v1"]


async def test_a_map_names_its_children_that_failed_elsewhere(program: Program) -> None:
    async with company(program), program() as shop:

        @shop.workflow("shop.pages.v1")
        async def pages(ctx: Context) -> Any:
            try:
                return await ctx.map("content.ocr.v1", [{"path": "a.png"}, {"path": "blank"}, {"pth": "typo"}])
            except JoinFailed as failure:
                return [list(failure.results.items()), [str(error) for error in failure.errors.values()]]

        async with shop.worker():
            results, errors = await shop.execute(pages)

        assert results == [[0, [PAGE]]]
        assert "there is nothing on it" in errors[0]
        assert "pth" in errors[1]
