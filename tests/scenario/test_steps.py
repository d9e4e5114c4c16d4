"""Steps: executed at least once, recorded exactly once, and the values they may return."""

from __future__ import annotations

import asyncio
import functools
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Context, HoldfastError, InvalidRequest, Registry, Retry, RunFailed, StepFailed, step_info
from tests.stage import Stage, facts


@dataclass
class Parcel:
    """A result with parts."""

    weight: Decimal
    sent_at: datetime


@pytest.mark.every_store
async def test_a_step_runs_once_and_its_recorded_result_is_used_afterwards(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> list[int]:
        first = await ctx.step("draw", lambda: 17)
        await ctx.sleep(86400)
        await ctx.receive("go")
        return [first, await ctx.step("draw", lambda: 18)]

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.advance(86400)
        await run.send("go")
        assert await run.result() == [17, 18]
        assert h.executed == ["draw", "draw#2"]


def no_value() -> Any:
    return None


async def test_a_step_that_returned_none_is_done(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> str:
        nothing = await ctx.step("nothing", no_value)
        await ctx.sleep(3600)
        return repr(nothing)

    async with stage.harness(app) as h:
        assert await h.execute(shop) == "None"
        assert h.executed == ["nothing"]


async def test_a_typed_result_is_the_same_the_first_time_and_on_every_replay(stage: Stage) -> None:
    app = Registry()
    seen: list[Any] = []

    def weigh() -> Parcel:
        return Parcel(Decimal("1.50"), datetime(2030, 1, 2, tzinfo=UTC))

    @app.workflow
    async def shop(ctx: Context) -> Parcel:
        parcel = await ctx.step("weigh", weigh)
        seen.append(parcel)
        await ctx.sleep(3600)
        plain = await ctx.step("plain", lambda: ((1, 2), {3}))
        seen.append(plain)
        await ctx.sleep(3600)
        return parcel

    async with stage.harness(app) as h:
        assert await h.execute(shop) == weigh()
    assert all(value in (weigh(), [[1, 2], [3]]) for value in seen)
    assert len(seen) > 3


async def test_async_bodies_run_on_the_workers_loop_and_sync_ones_in_threads(stage: Stage) -> None:
    app = Registry()

    @app.step
    async def here() -> bool:
        return threading.current_thread() is threading.main_thread() and asyncio.get_running_loop() is outer

    @app.step
    def there() -> bool:
        return threading.current_thread() is not threading.main_thread()

    async def coroutine() -> int:
        return 5

    @app.workflow
    async def shop(ctx: Context) -> list[Any]:
        return [
            await here(),
            await there(),
            await ctx.step("lambda", lambda: coroutine()),  # noqa: PLW0108 - that is the point
            await ctx.step("partial", functools.partial(max, 3), 4),
            await ctx.step("method", "abc".upper),
            await ctx.step("callable", Adder(1), 2),
            await ctx.step("async callable", AsyncAdder(), 2),
        ]

    class Adder:
        """A callable with state."""

        def __init__(self, by: int) -> None:
            self.by = by

        def __call__(self, to: int) -> int:
            return self.by + to

    class AsyncAdder:
        async def __call__(self, to: int) -> int:
            return to + 10

    async with stage.harness(app) as h:
        outer = asyncio.get_running_loop()
        assert await h.execute(shop) == [True, True, 5, 4, "ABC", 3, 12]


async def test_a_callable_that_cannot_be_hashed_may_be_a_step(stage: Stage) -> None:
    app = Registry()

    @dataclass
    class Doubling:
        """A dataclass with equality, which therefore has no hash."""

        by: int

        def __call__(self) -> int:
            return self.by * 2

    @app.workflow
    async def shop(ctx: Context) -> int:
        return await ctx.step("double", Doubling(4))

    async with stage.harness(app) as h:
        assert await h.execute(shop) == 8


async def test_a_decorated_step_is_durable_in_a_workflow_and_plain_outside(stage: Stage) -> None:
    app = Registry()

    @app.step("add it")
    async def add(a: int, b: int = 10, *, c: int = 100) -> int:
        return a + b + c

    @app.step
    def sync_add(a: int) -> int:
        return a + 1

    @app.workflow
    async def shop(ctx: Context) -> list[int]:
        inside = await ctx.step("outer", outer)
        return [await add(1), await add(1, 2, c=3), await add(a=5), await sync_add(1), inside]

    async def outer() -> int:
        plain: Any = sync_add(1)  # a plain call here, so not a coroutine
        return await add(1, 1, c=1) + int(plain)

    async with stage.harness(app) as h:
        assert await add(1, 2, c=3) == 6
        run = await h.start(shop)
        assert await run.result() == [111, 6, 115, 2, 5]
        assert h.executed == ["outer", "add it", "add it#2", "add it#3", "sync_add"]


async def test_step_info_identifies_the_body_and_its_key_is_the_same_on_every_attempt(stage: Stage) -> None:
    app = Registry()
    keys: list[tuple[str, int]] = []

    @app.step(retry=Retry(max_attempts=3, initial=1))
    def charge() -> str:
        info = step_info()
        info.heartbeat()
        keys.append((info.idempotency_key, info.attempt))
        if info.attempt < 3:
            raise OSError("try again")
        return info.run_id

    @app.workflow
    async def shop(ctx: Context) -> str:
        return await charge()

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert await run.result() == run.id
        assert keys == [(f"{run.id}:1:charge", attempt) for attempt in (1, 2, 3)]
        with pytest.raises(InvalidRequest, match="inside the body of a step"):
            step_info()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (object, "NotSerializable: result of step 'odd'.*object"),
        (lambda: {"at": [1, float("nan")]}, r"NotSerializable: .*nan"),
        (lambda: {1: 2}, "NotSerializable: .*key 1"),
        (lambda: "x" * (2 * 1024 * 1024), "PayloadTooLarge: .*2,097,154 bytes.*2,097,152"),
        (lambda: "\ud800", "NotSerializable: .*surrogate"),
    ],
)
async def test_a_result_that_cannot_be_stored_fails_the_step_for_good_and_says_why(
    stage: Stage, make: Callable[[], Any], words: str
) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> str:
        try:
            await ctx.step("odd", make)
        except StepFailed as failure:
            await ctx.sleep(3600)
            return f"{failure.attempts} {failure}"
        return "stored"

    async with stage.harness(app) as h:
        result = await h.execute(shop)
        assert result.startswith("1 step 'odd' failed after 1 attempt: ")
        assert re.search(words, result)
        assert h.executed == ["odd"]


async def test_a_result_of_a_workflow_that_cannot_be_stored_fails_the_run(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> Any:
        await ctx.step("a", lambda: 1)
        return object()

    async with stage.harness(app) as h:
        with pytest.raises(RunFailed, match="result of workflow 'shop' cannot be stored"):
            await h.execute(shop)


async def test_an_ephemeral_step_has_no_commit_of_its_own_and_is_recorded_with_the_next(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> int:
        cheap = await ctx.step("cheap", lambda: 1, ephemeral=True)
        dear = await ctx.step("dear", lambda: cheap + 1)
        await ctx.sleep(3600)
        return dear

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert await run.result() == 2
        assert h.executed == ["cheap", "dear"]
        assert await facts(run) == ["cheap step done", "dear step done", "sleep timer done"]


async def test_a_step_needs_a_legal_name_and_a_function(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context, name: str) -> Any:
        function: Any = print if name != "none" else None
        return await ctx.step(name, function)

    async with stage.harness(app) as h:
        for name, words in [("a/b", "step name"), ("none", "expected a function"), ("x" * 201, "1 to 200")]:
            with pytest.raises(HoldfastError, match=words):
                await h.execute(shop, name)


async def test_a_task_is_a_run_with_one_implicit_step(stage: Stage) -> None:
    app = Registry()

    @app.task("mail.send.v1")
    async def mail(to: str, *, subject: str = "hello") -> str:
        return f"{to} {subject} {step_info().attempt}"

    @app.task(retry=Retry(max_attempts=2, initial=60))
    def flaky(n: int) -> int:
        if step_info().attempt == 1:
            raise OSError("busy")
        return n

    async with stage.harness(app) as h:
        run = await h.start(mail, "ada")
        assert await run.result() == "ada hello 1"
        assert await facts(run) == ["mail.send.v1 step done"]
        assert await h.execute("mail.send.v1", {"to": "bob", "subject": "bye"}) == "bob bye 1"
        assert await h.execute(flaky, 3) == 3


async def test_a_failed_task_fails_its_run_with_the_error_of_its_body(stage: Stage) -> None:
    app = Registry()

    @app.task(retry=Retry(max_attempts=1))
    def broken() -> None:
        raise LookupError("no such thing")

    async with stage.harness(app) as h:
        with pytest.raises(RunFailed, match="LookupError: no such thing") as failure:
            await h.execute(broken)
        assert failure.value.matches(LookupError)
