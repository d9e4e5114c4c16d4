"""Declaring pipelines: what is refused at registration, and with which sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NewType, Protocol, TypedDict

import pytest

from holdfast import Context, InvalidRequest, Registry, Retry, SyncContext, TaskContext
from holdfast.worker.worker_types import WorkerTypes

Euros = NewType("Euros", int)


class Account(TypedDict):
    name: str


class Named(Protocol):
    name: str


def create(name: str, age: int = 7) -> dict[str, Any]:
    return {"name": name, "age": age}


def report(account: dict[str, Any]) -> str:
    return f"{account['name']} is {account['age']}"


def refused(*steps: Any) -> str:
    with pytest.raises(InvalidRequest) as error:
        Registry().pipeline("p.v1", *steps)
    return str(error.value)


def returning(hint: Any) -> Callable[..., Any]:
    def first() -> Any: ...

    first.__annotations__["return"] = hint
    return first


def taking(hint: Any) -> Callable[..., Any]:
    def second(value: Any) -> None: ...

    second.__annotations__["value"] = hint
    return second


# The plan


def test_the_plan_is_the_names_of_the_steps_in_order() -> None:
    app = Registry()

    @app.step("say")
    def described(account: dict[str, Any]) -> str:
        return str(account)

    made = app.pipeline("p.v1", create, described, description="Sign up.\nMore.")

    assert (made.plan, made.description, repr(made)) == (("create", "say"), "Sign up.", "<pipeline p.v1>")
    assert app.get("p.v1") is made


def test_the_payload_is_the_parameters_of_the_first_step_and_the_result_that_of_the_last() -> None:
    made = Registry().pipeline("p.v1", create, report)

    assert made.signature.encode((), kwargs={"name": "ada"}) == '{"name":"ada"}'
    assert made.bind("ada", age=3).kwargs == {"age": 3}
    assert made.result.decode('"x"', "result") == "x"
    with pytest.raises(InvalidRequest, match="result"):
        made.result.decode("1", "result")
    with pytest.raises(InvalidRequest, match="create is missing arguments: name"):
        made.bind()  # type: ignore[call-arg]


def test_the_context_is_not_part_of_the_payload() -> None:
    async def wait(ctx: Context, name: str) -> str:
        return name

    assert Registry().pipeline("p.v1", wait).signature.names == ("name",)


def test_a_worker_offers_the_plan() -> None:
    app = Registry()
    app.pipeline("p.v1", create, report)
    app.task("t.v1")(report)

    assert [offer.plan for offer in WorkerTypes(app, None).offers()] == [("create", "report"), ()]


# Step by step


def test_steps_are_declared_one_by_one_and_stay_plain_functions() -> None:
    p = Registry().pipeline("p.v1")

    @p.step
    def first(name: str) -> str:
        return name

    @p.step("second", retry=Retry(max_attempts=2), timeout=3, undo=print)
    def other(name: str) -> str:
        return name * 2

    @p.step()
    async def third(ctx: Context, name: str) -> str:
        return name

    assert p.plan == ("first", "second", "third")
    assert other(first("ab")) == "abab"


def test_a_step_that_is_declared_after_a_start_is_refused() -> None:
    p = Registry().pipeline("p.v1", create)
    p.bind("ada")

    with pytest.raises(InvalidRequest, match="step 'report' comes too late; a run or a worker was started already"):
        p.step(report)
    assert p.plan == ("create",)


def test_a_step_that_is_declared_after_a_worker_has_started_is_refused() -> None:
    app = Registry()
    p = app.pipeline("p.v1", create)
    WorkerTypes(app, None).offers()

    with pytest.raises(InvalidRequest, match="comes too late"):
        p.step(report)


def test_a_pipeline_without_steps_is_refused_by_starts_and_workers() -> None:
    app = Registry()
    p = app.pipeline("p.v1")

    for use in (p.bind, lambda: p.plan, WorkerTypes(app, None).offers):
        with pytest.raises(
            InvalidRequest, match=r"pipeline 'p.v1' has no steps; pass its functions to hf.pipeline, or"
        ):
            use()
    assert WorkerTypes(app, ["other.*"]).offers() == []


# What is refused


def test_two_steps_of_one_name_are_refused() -> None:
    def create(account: dict[str, Any]) -> None: ...

    assert refused(globals()["create"], create).startswith("pipeline 'p.v1' has two steps with the name 'create'; give")


def test_a_step_must_take_the_result_of_the_step_before_it() -> None:
    def nothing() -> None: ...

    def much(one: int, two: int) -> None: ...

    def by_name(*, one: int) -> None: ...

    async def only_context(ctx: Context) -> None: ...

    said = refused(create, nothing)
    assert said.startswith(
        "pipeline 'p.v1': step 'nothing' must take one argument, the result of step 'create'; it is nothing()"
    )
    for step in (much, by_name):
        assert f"step '{step.__name__}' must take one argument" in refused(create, step)
    assert "step 'only_context' must take ctx and one argument" in refused(create, only_context)


def test_more_parameters_with_defaults_and_stars_are_accepted() -> None:
    def more(account: dict[str, Any], volume: int = 1, *, twice: bool = True) -> None: ...

    def any_number(*accounts: Any) -> None: ...

    for step in (more, any_number, partial(lambda style, account: account, "short"), str):
        Registry().pipeline("p.v1", create, step)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (str, int),
        (None, str),
        (dict[str, int], list[int]),
        (int | None, str),
        (Account, list[str]),
        (bytes, str),
        (Annotated[str, "x"], int | list[int]),
    ],
)
def test_types_that_exclude_each_other_are_refused(given: Any, wanted: Any) -> None:
    said = refused(returning(given), taking(wanted))

    assert said.startswith("pipeline 'p.v1': step 'first' returns ")
    assert "but the next step 'second' takes 'value' as " in said


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (Any, str),
        (str, Any),
        (str, object),
        (bool, float),
        (float, int),
        (list[int], Sequence[int]),
        (Mapping[str, int], dict[str, int]),
        (Account, dict[str, str]),
        (str | None, str),
        (int, str | int),
        (Euros, str),
        (int, Named),
        (Annotated[str, "x"], str),
    ],
)
def test_types_that_may_fit_are_accepted(given: Any, wanted: Any) -> None:
    Registry().pipeline("p.v1", returning(given), taking(wanted))


def test_a_parameter_that_may_be_none_takes_the_result_of_a_step_that_returns_nothing() -> None:
    def second(value: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013 - common in old code

    Registry().pipeline("p.v1", returning(None), second)


@pytest.mark.parametrize("options", [{"retry": Retry()}, {"timeout": 3}, {"undo": print}, {"ephemeral": True}])
def test_a_step_with_a_context_has_no_options(options: dict[str, Any]) -> None:
    async def wait(ctx: Context, name: str) -> None: ...

    p = Registry().pipeline("p.v1")
    (name,) = options
    with pytest.raises(InvalidRequest, match=f"step 'wait' cannot have {name}: it takes ctx, so it is workflow code"):
        p.step(**options)(wait)


def test_a_step_with_a_context_is_no_step_of_hf_step() -> None:
    app = Registry()

    @app.step(timeout=3)
    async def wait(ctx: Context, name: str) -> None: ...

    assert "step 'wait' cannot be an @hf.step function: it takes ctx" in refused(wait)


def test_a_wrong_context_is_refused() -> None:
    async def blocking(ctx: SyncContext, name: str) -> None: ...

    def of_a_task(ctx: TaskContext, name: str) -> None: ...

    def a_string(ctx: str) -> None: ...

    def late(name: str, ctx: Context) -> None: ...

    assert "step 'blocking' takes a SyncContext, but is an `async def` function" in refused(blocking)
    assert "step 'of_a_task' has a first parameter `ctx`, which gets the context of the workflow" in refused(of_a_task)
    assert "declares it as str: declare it as Context" in refused(a_string)
    assert "step 'late' takes its context as 'ctx'; it must be the first parameter" in refused(late)


def test_only_functions_are_steps() -> None:
    app = Registry()

    @app.task("t.v1")
    def task(name: str) -> None: ...

    assert "expected functions as its steps, got 'create'" in refused("create")
    assert "<task t.v1> has runs of its own; declare a step that calls it" in refused(task)


def test_unknown_options_and_names_are_refused() -> None:
    p = Registry().pipeline("p.v1")

    with pytest.raises(InvalidRequest, match="retries"):
        p.step(retries=3)(create)  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest, match="step name"):
        p.step("a/b")(create)
    with pytest.raises(InvalidRequest, match="crash_limit"):
        Registry().pipeline("p.v1", create, crash_limit=0)


def test_a_type_has_one_definition() -> None:
    app = Registry()
    app.pipeline("p.v1", create)

    with pytest.raises(InvalidRequest, match=r"'p\.v1' is already registered"):
        app.pipeline("p.v1", create)
