"""Actors: the audit names who changed a run."""

from __future__ import annotations

import getpass
import os
import re
from typing import Any

import pytest

from holdfast import Context, InvalidRequest, Registry
from holdfast.cli.session import actor
from holdfast.core.intent import ACTOR_LIMIT
from tests.rows import each_row
from tests.stage import Stage
from tests.unit.cli.conftest import shop
from tests.unit.cli.rig import Shop

__all__ = ["shop"]  # a fixture that pytest finds by its name

CONTROLS = ["cancel", "pause", "resume", "wake", "rewind", "recover", "fork", "delete", "send", "request"]


@pytest.mark.every_store
async def test_the_audit_names_the_actor_of_each_change(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.receive("approve")

    async with stage.harness(app) as h:
        run = await h.start(order)
        await h.settle()
        await run.pause("closed today", by="ada")
        assert " by ada (closed today); " in await run.explain()
        await run.resume(by="bob")
        await h.settle()
        await run.send("approve", 1, by="cyd")
        await run.result()
        await run.rewind("receive:approve", by="dan")

        facts = {fact.event: fact for fact in await run.audit()}
        assert {event: fact.by for event, fact in facts.items() if fact.by is not None} == {
            "paused": "ada",
            "resumed": "bob",
            "woken": "cyd",
            "rewound": "dan",
        }
        assert [event for event, fact in facts.items() if fact.is_asked_for] == ["paused", "resumed", "rewound"]


@each_row("verb", CONTROLS)
@each_row(
    ("by", "complaint"),
    [
        (7, "by=7: expected a string"),
        ("no\0where", "by= contains a NUL character"),
        ("x" * (ACTOR_LIMIT + 1), f"by= has {ACTOR_LIMIT + 1} characters; the name of an actor has at most"),
    ],
)
async def test_an_actor_that_cannot_be_stored_is_refused(stage: Stage, verb: str, by: Any, complaint: str) -> None:
    async with stage.harness(Registry()) as h:
        run = await h.start("a.v1", {})
        arguments = ["x"] if verb in ("rewind", "fork", "send", "request") else []

        with pytest.raises(InvalidRequest, match=complaint):
            await getattr(run, verb)(*arguments, by=by)

        assert [fact.event for fact in await run.audit()] == ["created"]


async def test_an_event_names_who_emitted_it(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.wait_event("paid")

    async with stage.harness(app) as h:
        run = await h.start(order)
        await h.settle()
        await h.emit("paid", 7, by="the till")

        assert [fact.by for fact in await run.audit() if fact.event == "woken"] == ["the till"]


def test_the_command_line_names_the_login(shop: Shop) -> None:
    login = f"cli:{getpass.getuser()}"
    run_id = shop.start("shop.order.v1", {"name": "ann"}, key="k")
    shop.work()
    shop.type("pause", "key:k", "--reason", "closed today")
    shop.type("resume", "key:k")
    shop.type("send", "key:k", "approve", "1")
    shop.type("cancel", "key:k", "--yes", "--reason", "enough")

    table = shop.type("audit", "key:k").stdout
    facts = [fact for fact in shop.read("audit", run_id) if fact["by"] is not None]
    shown = shop.type("show", "key:k").stdout

    assert [(fact["event"], fact["by"]) for fact in facts] == [
        ("paused", login),
        ("resumed", login),
        ("cancelled", login),
    ]
    assert re.search(rf"^paused .* by {login}: closed today$", shown, re.MULTILINE)
    assert re.search(rf"^cancelled .* by {login}: enough$", shown, re.MULTILINE)
    assert table.splitlines()[0].split() == ["AT", "AFTER", "EVENT", "BY", "DATA"]
    assert sum(login in line for line in table.splitlines()) == 3


def test_a_user_without_a_name_is_named_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(getpass, "getuser", nobody)

    assert actor() == f"cli:uid-{os.getuid()}"


@pytest.mark.parametrize("login", ["x" * 300, "no\udcfftext"])
def test_a_login_that_cannot_be_stored_whole_does_not_prevent_controlling(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, login: str
) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: login)
    run_id = shop.start("shop.order.v1", {"name": "ann"})

    assert shop.type("pause", run_id).exit_code == 0
    assert shop.read("audit", run_id)[-1]["by"].startswith(f"cli:{login[:2]}")


async def test_explain_names_the_actor_of_a_pause_even_after_a_later_fork_by_another(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def order(ctx: Context) -> Any:
        await ctx.step("pack", lambda: 1)
        return await ctx.receive("approve")

    async with stage.harness(app) as h:
        run = await h.start(order)
        await h.settle()
        await run.pause("month end", by="ann")
        await run.fork("pack", by="bob")

        assert " by ann (month end); " in await run.explain()
