"""The options of a start: every producer offers them, stores them alike and refuses bad values alike."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Context, Holdfast, HoldfastError, InvalidRequest, Registry, Retry, RunState, SyncContext
from holdfast.app import session_of
from holdfast.cli.commands import inputs, schedules
from holdfast.cli.session import actor
from holdfast.core.clock import SECOND, instant
from holdfast.core.intent import ACTOR_LIMIT, ATTEMPTS_LIMIT, OPTIONS, EveryRunOptions, StoredRunOptions
from holdfast.core.model import Run, RunOptions
from holdfast.core.questions import ListSchedules
from holdfast.core.schedules import ScheduleOptions
from holdfast.flows.grammar import OPTION_NAMES
from holdfast.isolated import DictionaryNamespace, IsolatedOptions, advance
from holdfast.isolated.layout import STATE, read_run
from holdfast.testing.harness import Harness
from holdfast.typing import ChildOptions, StartOptions
from tests.rows import each_row
from tests.stage import Stage
from tests.unit.cli.conftest import shop
from tests.unit.cli.rig import Shop

__all__ = ["shop"]  # a fixture that pytest finds by its name

NAN = float("nan")
WHEN = datetime(2031, 5, 1, tzinfo=UTC)

# By option: a value in Python, the words of the command line, the field of the run, and the value that it stores.
GIVEN: dict[str, tuple[Any, tuple[str, ...], str, Any]] = {
    "key": ("k-1", ("--key", "k-1"), "key", "k-1"),
    "priority": (7, ("--priority", "7"), "priority", 7),
    "ready_at": (WHEN, ("--at", "2031-05-01T00:00Z"), "start_at", instant(WHEN)),
    "tags": ({"a": "b"}, ("--tag", "a=b"), "tags", {"a": "b"}),
    "id": ("own-id", ("--id", "own-id"), "id", "own-id"),
    "parent_id": ("any run", ("--parent", "any run"), "parent_id", "any run"),
    "retention": (86_400, ("--retention", "1d"), "retention", 86_400 * SECOND),
    "max_run": (timedelta(hours=1), ("--max-run", "1h"), "options.max_run", 3600 * SECOND),
    "max_suspend": (1.5, ("--max-suspend", "1.5s"), "options.max_suspend", 1_500_000),
    "undelivered": ("dead_letter", ("--undelivered", "dead_letter"), "options.undelivered", "dead_letter"),
    "max_attempts": (9, ("--max-attempts", "9"), "options.max_attempts", 9),
    "by": ("ada", ("--by", "ada"), "options.by", "ada"),
}

# By producer: its options, and the declared options that it does not have.
PRODUCERS: dict[str, tuple[set[str], set[str]]] = {
    "start": (set(StartOptions.__annotations__), {"on_close"}),
    "child": (set(ChildOptions.__annotations__), {"key", "reuse", "ready_at", "id", "parent_id"}),
    "flow": (set(OPTION_NAMES), {"key", "reuse", "ready_at", "id", "parent_id"}),
    "schedule": (set(ScheduleOptions.__annotations__), {"key", "reuse", "delay", "ready_at", "id", "on_close"}),
    "isolated": (set(IsolatedOptions.__annotations__), {"key", "reuse", "priority", "id", "on_close", "retention"}),
    "cli start": ({str(option.name) for option in inputs.start.params}, {"on_close"}),
    "cli schedules": (
        {str(option.name) for option in schedules.add.params},
        {"key", "reuse", "delay", "ready_at", "id", "on_close"},
    ),
}

BAD: list[tuple[str, Any, str]] = [
    ("max_run", 0, "max_run=0: expected a length of time greater than zero, or None"),
    ("max_run", NAN, "max_run=nan is not a length of time in seconds; the limit is 1,000 years"),
    ("max_suspend", -1, "max_suspend=-1: expected a length of time greater than zero, or None"),
    ("max_suspend", "1h", "max_suspend='1h': expected seconds or a timedelta"),
    ("retention", 10**12, "retention=1000000000000 is not a length of time in seconds; the limit is 1,000 years"),
    ("undelivered", "keep", "undelivered='keep': expected 'discard' or 'dead_letter'"),
    ("max_attempts", 0, "max_attempts=0: expected a whole number from 1 to 1,000,000"),
    ("max_attempts", ATTEMPTS_LIMIT + 1, "max_attempts=1000001: expected a whole number from 1 to 1,000,000"),
    ("max_attempts", True, "max_attempts=True: expected a whole number from 1 to 1,000,000"),
    ("max_attempts", 2.0, "max_attempts=2.0: expected a whole number from 1 to 1,000,000"),
    ("parent_id", "", "a run id is a string of 1 to"),
    ("parent_id", 7, "a run id is a string of 1 to"),
    ("by", 7, "by=7: expected a string, for the readers of the run's audit"),
    ("by", None, "by=None: expected a string, for the readers of the run's audit"),
    ("by", "x" * (ACTOR_LIMIT + 1), f"by= has {ACTOR_LIMIT + 1} characters; the name of an actor has at most"),
    ("priority", 256, "a priority is a whole number from 0 (first) to 255 (last), not 256"),
    ("tags", "x", "tags='x': expected a dict of strings"),
    ("max_runs", 1, "did you mean max_run?"),
]
"""By option: a bad value and the refusal."""


def application() -> Registry:
    app = Registry()

    @app.task("work")
    def work() -> str:
        return "done"

    @app.workflow("parent")
    async def parent(ctx: Context, verb: str, options: dict[str, Any]) -> None:
        if verb == "start":
            await ctx.start("work", {}, **options)
        elif verb == "call":
            await ctx.call("work", {}, **options)
        else:
            await ctx.map("work", [{}], **options)

    @app.workflow("sync_parent")
    def sync_parent(ctx: SyncContext, options: dict[str, Any]) -> None:
        ctx.call("work", {}, **options)

    return app


Produce = Callable[[Harness, dict[str, Any]], Awaitable[object]]


async def _start_in(h: Harness, options: dict[str, Any]) -> None:
    with h.connection() as connection:
        await h.start_in(connection, "work", {}, **options)


def _child(verb: str) -> Produce:
    return lambda h, options: h.execute("parent", {"verb": verb, "options": _in_json(options)})


def _flow(verb: str) -> Produce:
    call = "map('work', [{}], options=options)" if verb == "map" else f"{verb}('work', options=options)"

    async def produce(h: Harness, options: dict[str, Any]) -> None:
        await h.flows.register(f"async def main(options):\n    await {call}\n", type="flow")
        await h.execute("flow", {"options": _in_json(options)})

    return produce


def _in_json(options: dict[str, Any]) -> dict[str, Any]:
    """The options as the payload of a workflow has them: seconds instead of a timedelta."""
    return {name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in options.items()}


async def _triggered(h: Harness, options: dict[str, Any]) -> None:
    await h.schedules.put("nightly", "work", {}, every=3600, **options)
    await h.schedules.trigger("nightly")


async def _fired(h: Harness, options: dict[str, Any]) -> None:
    await h.schedules.put("nightly", "work", {}, every=3600, **options)
    await h.advance(3600)


PRODUCE: dict[str, tuple[str, Produce]] = {
    "start": ("start", lambda h, options: h.start("work", {}, **options)),
    "start_many": ("start", lambda h, options: h.start_many("work", [{}], **options)),
    "execute": ("start", lambda h, options: h.execute("work", {}, **options)),
    "start_in": ("start", _start_in),
    "ctx.start": ("child", _child("start")),
    "ctx.call": ("child", _child("call")),
    "ctx.map": ("child", _child("map")),
    "sync ctx.call": ("child", lambda h, options: h.execute("sync_parent", {"options": _in_json(options)})),
    "flow start": ("flow", _flow("start")),
    "flow call": ("flow", _flow("call")),
    "flow map": ("flow", _flow("map")),
    "schedule triggered": ("schedule", _triggered),
    "schedule fired": ("schedule", _fired),
}
"""By name: the producer, and a function that lets it start a run of `work`."""


def stored(run: Run, field: str) -> Any:
    """The value of a field of a run or of its options."""
    first, _, second = field.partition(".")
    return getattr(getattr(run, first), second) if second else getattr(run, first)


def given_to(producer: str) -> dict[str, tuple[Any, tuple[str, ...], str, Any]]:
    """The options that can be given to a producer."""
    return {name: one for name, one in GIVEN.items() if name in PRODUCERS[producer][0]}


async def run_of_work(h: Harness) -> Run:
    """The only run of `work`, as the store has it."""
    await h.settle()
    (info,) = [info async for info in h.list(type="work")]
    details = await session_of(h).store.get(info.id)
    assert details is not None
    return details.run


# The declaration


@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_producer_has_every_declared_option_but_those_that_make_no_sense(producer: str) -> None:
    has, lacks = PRODUCERS[producer]

    assert OPTIONS.keys() - has == lacks


def test_every_option_of_a_run_is_declared() -> None:
    assert EveryRunOptions.__annotations__.keys() | StoredRunOptions.__annotations__.keys() <= OPTIONS.keys()
    assert StartOptions.__annotations__.keys() <= OPTIONS.keys()
    assert OPTIONS.keys() - GIVEN.keys() == {"reuse", "delay", "on_close"}, "add the new option to the table"


# Storing


@pytest.mark.every_store
@pytest.mark.parametrize("name", PRODUCE)
async def test_every_producer_stores_every_option(stage: Stage, name: str) -> None:
    producer, produce = PRODUCE[name]
    if name == "start_in" and stage.kind not in ("sqlite", "postgres"):
        return  # these stores hold no tables of users
    if name == "start_many":
        chosen = {option: one for option, one in given_to(producer).items() if option not in ("key", "id")}
    else:
        chosen = given_to(producer)
    if name == "execute":
        del chosen["ready_at"]  # it would wait until then

    async with stage.harness(application()) as h:
        await produce(h, {option: value for option, (value, *_) in chosen.items()})
        run = await run_of_work(h)

        expected = {option: value for option, (*_, value) in chosen.items()}
        if producer == "schedule":
            assert run.tags.pop("schedule") == "nightly"
            run.tags.pop("slot", None)
        if producer in ("child", "flow"):
            assert run.parent_id is not None
        assert {option: stored(run, field) for option, (*_, field, _) in chosen.items()} == expected


def test_the_command_line_stores_every_option_of_a_start(shop: Shop) -> None:
    chosen = given_to("cli start")
    words = [word for _, some, *_ in chosen.values() for word in some]

    started = shop.read("start", "shop.add.v1", "a:=1", "b:=2", *words)

    async def read(hf: Holdfast) -> Run:
        details = await session_of(hf).store.get(started["id"])
        assert details is not None
        return details.run

    run = shop.do(read)
    assert {name: stored(run, field) for name, (*_, field, _) in chosen.items()} == {
        name: value for name, (*_, value) in chosen.items()
    }


def test_the_command_line_stores_every_option_of_a_schedule(shop: Shop) -> None:
    chosen = given_to("cli schedules")
    words = [word for _, some, *_ in chosen.values() for word in some]

    shop.read("schedules", "add", "nightly", "shop.add.v1", "--every", "1h", "--payload", '{"a": 1, "b": 2}', *words)
    started = shop.read("schedules", "trigger", "nightly")

    async def read(hf: Holdfast) -> Run:
        details = await session_of(hf).store.get(started["id"])
        assert details is not None
        return details.run

    run = shop.do(read)
    assert run.tags.pop("schedule") == "nightly"
    assert {name: stored(run, field) for name, (*_, field, _) in chosen.items()} == {
        name: value for name, (*_, value) in chosen.items()
    }


async def test_an_isolated_run_stores_every_option() -> None:
    hf, namespace = Holdfast("memory://"), DictionaryNamespace()
    hf.include(application())
    chosen = given_to("isolated")

    options: Any = {name: value for name, (value, *_) in chosen.items()}
    await advance(namespace, hf, "r", type="work", **options)

    state = await namespace.get(STATE)
    assert state is not None
    run = read_run(state)
    assert {name: stored(run, field) for name, (*_, field, _) in chosen.items()} == {
        name: value for name, (*_, value) in chosen.items()
    }


# Refusing


@pytest.mark.parametrize("name", PRODUCE)
async def test_every_producer_refuses_a_bad_value_with_the_same_sentence(stage: Stage, name: str) -> None:
    producer, produce = PRODUCE[name]
    if name == "start_in":
        return  # it makes its intent as `start` does
    async with stage.harness(application()) as h:
        for option, value, refusal in BAD:
            if producer in ("child", "flow") and value is NAN:
                continue  # the payload of the parent is JSON
            has_parent = producer in ("child", "flow") and option == "parent_id"
            told = "the parent of a child is the run that starts it; leave it out" if has_parent else refusal
            # A refusal in the code of a parent blocks the parent, and fails a flow.
            error = HoldfastError if producer in ("child", "flow") else InvalidRequest
            with pytest.raises(error, match=re.escape(told)):
                await produce(h, {option: value})

        assert [info async for info in h.list(type="work")] == []


@each_row(
    ("words", "refusal"),
    [
        (("--max-run", "0s"), "max_run=datetime.timedelta(0): expected a length of time greater than zero"),
        (("--retention", "soon"), "'soon' is not a length of time"),
        (("--max-attempts", "0"), "max_attempts=0: expected a whole number from 1 to 1,000,000"),
        (("--max-attempts", "many"), "'many' is not a valid integer"),
        (("--parent", ""), "a run id is a string of 1 to"),
        (("--undelivered", "keep"), "'keep' is not one of 'discard', 'dead_letter'"),
        (("--by", "x" * (ACTOR_LIMIT + 1)), "the name of an actor has at most"),
    ],
)
@each_row("command", [("start", "w.v1"), ("schedules", "add", "n", "w.v1", "--every", "1h")])
def test_the_command_line_refuses_a_bad_value(
    shop: Shop, command: tuple[str, ...], words: tuple[str, ...], refusal: str
) -> None:
    result = shop.type(*command, *words)

    assert result.exit_code == 2
    assert refusal in " ".join(result.stderr.split())
    assert not shop.path.exists()


async def test_an_isolated_run_refuses_a_bad_value() -> None:
    hf = Holdfast("memory://")
    hf.include(application())
    needs_a_store = {
        "priority": "advance(priority=…): a priority orders the runs that wait for workers",
        "retention": "advance(retention=…): a store prunes ended runs",
    }
    for option, value, refusal in BAD:
        options: Any = {option: value}
        namespace = DictionaryNamespace()
        with pytest.raises(InvalidRequest, match=re.escape(needs_a_store.get(option, refusal))):
            await advance(namespace, hf, "r", type="work", **options)
        assert await namespace.list(b"") == []


async def test_attempts_of_a_workflow_are_refused_where_it_is_known(stage: Stage) -> None:
    app = Registry()

    @app.workflow("idle")
    async def idle(ctx: Context) -> None: ...

    @app.workflow("parent")
    async def parent(ctx: Context) -> None:
        await ctx.start(idle, max_attempts=2)

    hf = Holdfast("memory://")
    hf.include(app)
    async with stage.harness(app) as h:
        for refused in (
            lambda: h.start("idle", max_attempts=2),
            lambda: h.start_many([idle.bind()], max_attempts=2),
            lambda: h.schedules.put("n", "idle", every=60, max_attempts=2),
            lambda: h.schedules.put("n", idle, every=60, max_attempts=2),
            lambda: h.execute(parent),
            lambda: advance(DictionaryNamespace(), hf, "r", type="idle", max_attempts=2),
        ):
            with pytest.raises(HoldfastError, match="max_attempts=…: 'idle' is a workflow, and only tasks have it"):
                await refused()


async def test_a_workflow_that_its_producer_does_not_know_ignores_attempts(stage: Stage) -> None:
    app = Registry()

    @app.workflow("idle")
    async def idle(ctx: Context) -> str:
        return "fine"

    async with stage.harness() as producer:
        run = await producer.start("idle", {}, max_attempts=2)
    async with stage.harness(app) as h:
        assert await h.run(run.id).result() == "fine"
        assert (await h.run(run.id).info()).state is RunState.SUCCEEDED


# Attempts


@pytest.mark.every_store
@pytest.mark.parametrize(("max_attempts", "count"), [(None, 3), (1, 1), (5, 5)])
async def test_a_failing_task_has_the_attempts_of_its_start(stage: Stage, max_attempts: int | None, count: int) -> None:
    app, attempts = Registry(), list[None]()

    @app.task("flaky", retry=Retry(max_attempts=3, initial=1))
    def flaky() -> None:
        attempts.append(None)
        raise OSError("unreachable")

    async with stage.harness(app) as h:
        run = await h.start("flaky", {}, max_attempts=max_attempts)
        await h.advance(120)
        assert ((await run.info()).state, len(attempts)) == (RunState.FAILED, count)

        await run.recover()
        await h.advance(120)
        assert ((await run.info()).state, len(attempts)) == (RunState.FAILED, 2 * count)

        fork = await run.fork("flaky", patch=None)
        await h.advance(120)
        assert ((await fork.info()).state, len(attempts)) == (RunState.FAILED, 3 * count)


# The actor


@pytest.mark.every_store
async def test_the_audit_shows_who_asked_for_a_run(stage: Stage) -> None:
    async with stage.harness(application()) as h:
        run = await h.start("work", {}, key="k", by="ada")
        again = await h.start("work", {}, key="k", by="bob")
        nobody = await h.start("work", {})
        await h.schedules.put("nightly", "work", {}, every=3600, by="cyd")
        scheduled = await h.schedules.trigger("nightly")
        await h.settle()
        fork = await run.fork("work", by="dan")

        assert again.id == run.id
        told = [(await one.audit())[0] for one in (run, nobody, scheduled, fork)]
        assert [(fact.event, fact.by) for fact in told] == [
            ("created", "ada"),
            ("created", None),
            ("created", "cyd"),
            ("created", "dan"),
        ]


def test_the_audit_of_a_run_from_the_command_line_shows_the_login(shop: Shop) -> None:
    started = shop.read("start", "shop.add.v1", "a:=1", "b:=2")

    async def read(hf: Holdfast) -> str | None:
        return (await hf.run(started["id"]).audit())[0].by

    assert shop.do(read) == actor()


# Moving


@pytest.mark.every_store
async def test_an_export_carries_the_options(stage: Stage, tmp_path: Path) -> None:
    chosen = given_to("start")
    options: Any = {name: value for name, (value, *_) in chosen.items()}
    target = Stage("memory", tmp_path)
    async with stage.harness(application()) as h, target.harness(application()) as other:
        await h.start("work", {}, **options)
        await h.schedules.put("nightly", "work", {}, every=3600, parent_id="p", retention=60, by="ada")
        await other.import_([line async for line in h.export()])
        run = await run_of_work(other)

        assert {name: stored(run, field) for name, (*_, field, _) in chosen.items()} == {
            name: value for name, (*_, value) in chosen.items()
        }
        schedule, copied = [
            (await session_of(one).store.catalog(ListSchedules(name="nightly")))[0] for one in (h, other)
        ]
        assert (copied.parent_id, copied.retention, copied.options) == ("p", 60 * SECOND, schedule.options)


def test_options_that_were_stored_before_still_decode() -> None:
    old = msgspec.json.decode(b'{"max_run":5,"undelivered":"dead_letter"}', type=RunOptions)

    assert old == RunOptions(max_run=5, undelivered="dead_letter", max_attempts=None, by="")
