"""Rounds: a step that was undone gets a new idempotency key when it is executed again, and so does its undo."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Break, Context, Continue, Fatal, Registry, Retry, RunFailed, RunHandle, RunState, step_info
from tests.stage import Stage


class Provider:
    """A payment provider with idempotency keys: a known key gets its first answer again."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.answers: dict[str, str] = {}
        self.is_broken = True

    def charge(self) -> str:
        return self._answer("charge")

    def refund(self, _charge: str) -> str:
        return self._answer("refund")

    def ship(self) -> str:
        self.calls.append(key())
        if self.is_broken:
            raise Fatal("no parcel service")
        return "parcel"

    def _answer(self, what: str) -> str:
        self.calls.append(key())
        return self.answers.setdefault(key(), f"{what}-{len(self.answers) + 1}")


def key() -> str:
    """The idempotency key of this body, without the run id."""
    return step_info().idempotency_key.split(":", 1)[1]


@pytest.fixture
def provider() -> Provider:
    return Provider()


def a_shop(provider: Provider, *, strict: bool = False) -> Registry:
    app = Registry()

    @app.workflow(strict=strict)
    async def shop(ctx: Context) -> list[str]:
        order = await ctx.step("order", provider.charge)
        charge = await ctx.step("charge", provider.charge, undo=provider.refund)
        return [order, charge, await ctx.step("ship", provider.ship)]

    return app


async def failed(run: RunHandle[Any]) -> None:
    with pytest.raises(RunFailed):
        await run.result()


async def again(run: RunHandle[Any], how: str) -> None:
    assert await (run.recover() if how == "recover" else run.rewind("charge"))


@pytest.mark.parametrize("how", ["recover", "rewind"])
@pytest.mark.parametrize("strict", [False, True])
async def test_an_undone_step_is_executed_and_undone_again_under_new_keys(
    stage: Stage, provider: Provider, how: str, strict: bool
) -> None:
    async with stage.harness(a_shop(provider, strict=strict)) as h:
        run: RunHandle[Any] = await h.start("shop", {})
        await failed(run)
        await again(run, how)
        await failed(run)
        provider.is_broken = False
        await again(run, how)

        assert await run.result() == ["charge-1", "charge-6", "parcel"]
        assert provider.calls == [
            "1:order",
            *("1:charge", "1:ship", "1:~undo/charge"),
            *("1:charge:2", "1:ship", "1:~undo/charge:2"),
            *("1:charge:3", "1:ship"),
        ]
        answers = ["charge-1", "charge-2", "refund-3", "charge-4", "refund-5", "charge-6"]
        assert list(provider.answers.values()) == answers


async def test_every_attempt_of_a_round_has_the_same_key(stage: Stage, provider: Provider) -> None:
    app, attempts = Registry(), list[str]()

    def charge() -> str:
        attempts.append(key())
        if len(attempts) % 2:
            raise ConnectionError("try again")
        return "charge"

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("charge", charge, undo=lambda _: attempts.append(key()), retry=Retry(initial=1, jitter=0))
        await ctx.step("ship", provider.ship)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await failed(run)
        del attempts[:]
        await run.recover()
        await failed(run)
        assert attempts == ["1:charge:2", "1:charge:2", "1:~undo/charge:2"]


async def test_a_step_that_was_not_undone_keeps_its_key(stage: Stage, provider: Provider) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("charge", provider.charge)
        await ctx.step("ship", provider.ship)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await failed(run)
        await run.rewind("charge")
        await failed(run)
        assert provider.calls == ["1:charge", "1:ship"] * 2
        assert [entry.location for entry in await run.history()] == ["charge", "ship"]


async def test_an_undo_that_is_retried_after_a_recovery_belongs_to_the_same_round(stage: Stage) -> None:
    app, calls, is_open = Registry(), list[str](), [False]

    def refund(_charge: str) -> None:
        calls.append(key())
        if not is_open[0]:
            raise Fatal("the bank is closed")

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("charge", lambda: "charge", undo=refund)
        raise Fatal("no luck")

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert (await run.info()).state is RunState.BLOCKED
        is_open[0] = True
        assert await run.recover()
        await failed(run)
        assert calls == ["1:~undo/charge"] * 2


async def test_rounds_outlive_a_replay_and_the_pruning_of_a_loop(stage: Stage, provider: Provider) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> None:
        async def body(ctx: Context, number: int) -> Any:
            await ctx.step("charge", provider.charge, undo=provider.refund)
            return Break(None) if number == 4 else Continue(number + 1)

        await ctx.loop("orders", body, 1, keep=2, every=2)
        await ctx.receive("go")
        await ctx.step("late", provider.charge, undo=provider.refund)
        await ctx.step("ship", provider.ship)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        await run.cancel()
        await h.settle()
        del provider.calls[:]
        await run.rewind("orders")
        await h.settle()
        assert provider.calls == [f"1:orders/~{number}/charge:2" for number in (1, 2, 3, 4)]
    async with stage.harness(app) as h:
        run = h.run(run.id)
        del provider.calls[:]
        await run.send("go")
        await failed(run)
        undone = [f"1:~undo/orders/~{number}/charge:2" for number in (4, 3, 2, 1)]
        assert provider.calls == ["1:late", "1:ship", "1:~undo/late", *undone]


async def test_rounds_are_stored_in_one_entry_that_code_never_sees(stage: Stage, provider: Provider) -> None:
    async with stage.harness(a_shop(provider)) as h:
        run: RunHandle[Any] = await h.start("shop", {})
        await failed(run)
        assert "~rounds" not in [entry.location for entry in await run.history()]
        await run.recover()
        await failed(run)
        await h.stop_worker()  # so that the run is still alive when its code is checked
        await run.recover()

        (rounds,) = [entry for entry in await run.history() if entry.location == "~rounds"]
        assert (rounds.kind.value, rounds.state.value, rounds.result) == ("rounds", "done", {"charge": 2})
        (checked,) = [check async for check in h.check()]
        assert checked.is_good


async def test_a_fork_keeps_the_rounds_of_its_origin(stage: Stage, provider: Provider) -> None:
    async with stage.harness(a_shop(provider)) as h:
        run: RunHandle[Any] = await h.start("shop", {})
        await failed(run)
        await run.recover()
        await failed(run)
        del provider.calls[:]
        fork = await run.fork("charge")
        await failed(fork)
        assert provider.calls == ["1:charge:2", "1:ship", "1:~undo/charge:2"]


async def test_the_next_generation_starts_with_the_first_round(stage: Stage, provider: Provider) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context, number: int) -> None:
        await ctx.step("charge", provider.charge, undo=provider.refund)
        await ctx.step("ship", provider.ship)
        if number == 1:
            await ctx.continue_as_new(2)

    async with stage.harness(app) as h:
        run = await h.start(shop, 1)
        await failed(run)
        provider.is_broken = False
        await run.recover()
        await run.result()
        assert provider.calls[-4:] == ["1:charge:2", "1:ship", "2:charge", "2:ship"]
        assert "~rounds" not in [entry.location for entry in await run.history()]


async def test_a_crash_in_the_second_round_keeps_its_key(stage: Stage, provider: Provider) -> None:
    app, keys, is_dying = Registry(), list[str](), [False]

    async def charge() -> None:
        keys.append(key())
        if is_dying[0]:
            await asyncio.Event().wait()

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("charge", charge, undo=provider.refund)
        await ctx.step("ship", provider.ship)

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await failed(run)
        provider.is_broken, is_dying[0] = False, True
        await run.recover()
        await h.settle()
        await h.crash_worker()
        is_dying[0] = False
        await h.start_worker()
        await run.result()
    assert keys == ["1:charge", "1:charge:2", "1:charge:2"]
