"""The context of `def` workflows has the operations of the async one, and registering one checks its requirements."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from holdfast import Context, InvalidRequest, Registry, SyncContext
from holdfast.typing import Child, SyncChild, SyncWorkflow, Workflow

# Members that only other parts of holdfast use, or that exist for `await` or for creating children.
INTERNAL_OF_CHILD = {"create", "intent", "location", "codec"}


def public(kind: type) -> set[str]:
    return {name for each in kind.__mro__[:-1] for name in vars(each) if not name.startswith("_")}


def test_every_operation_of_the_context_has_a_blocking_version() -> None:
    assert public(SyncContext) == public(Context)


@pytest.mark.parametrize("name", sorted(public(Context)))
def test_an_operation_takes_the_same_parameters_in_both_versions(name: str) -> None:
    awaited, blocking = getattr(Context, name), getattr(SyncContext, name, None)
    assert blocking is not None
    if not inspect.isfunction(awaited):
        return
    shape = [(each.name, each.kind, each.default) for each in inspect.signature(awaited).parameters.values()]

    assert inspect.isfunction(blocking)
    assert [(each.name, each.kind, each.default) for each in inspect.signature(blocking).parameters.values()] == shape
    assert blocking.__doc__


def test_a_child_handle_has_the_same_methods_in_both_kinds_of_workflow() -> None:
    assert public(SyncChild) - {"id"} == public(Child) - INTERNAL_OF_CHILD


def test_the_kind_of_function_decides_the_kind_of_workflow() -> None:
    app = Registry()

    @app.workflow
    def blocking(ctx: SyncContext) -> None: ...

    @app.workflow("named.v1", crash_limit=7)
    def named(ctx: SyncContext) -> None: ...

    @app.workflow
    async def awaiting(ctx: Context) -> None: ...

    assert isinstance(blocking, SyncWorkflow)
    assert isinstance(named, SyncWorkflow)
    assert (named.type, named.crash_limit) == ("named.v1", 7)
    assert isinstance(awaiting, Workflow)


async def asynchronous(ctx: Any) -> None: ...


@functools.wraps(asynchronous)
def around(ctx: Any) -> Any:
    return asynchronous(ctx)


def generator(ctx: Any) -> Iterator[int]:
    yield 1


async def async_generator(ctx: Any) -> AsyncIterator[int]:
    yield 1


class Callable:
    """An object that is called like an async function."""

    async def __call__(self, ctx: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (around, "but wraps one"),
        (Callable(), "but wraps one"),
        (generator, "generator"),
        (async_generator, "generator"),
        (Callable, "expected an `async def` or `def` function"),
    ],
)
def test_a_callable_that_only_looks_like_a_plain_function_is_refused(function: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        Registry().workflow("x")(function)


def test_an_async_function_with_a_sync_context_is_refused() -> None:
    async def awaiting(ctx: SyncContext) -> None: ...

    with pytest.raises(InvalidRequest, match="takes a SyncContext, but is an `async def` function"):
        Registry().workflow("x")(awaiting)


def test_a_plain_function_may_annotate_its_parameter_as_context() -> None:
    def blocking(ctx: Context) -> None: ...

    function: Any = blocking
    assert Registry().workflow("x")(function).type == "x"


def test_without_greenlet_a_def_workflow_is_refused_with_the_name_of_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "greenlet", None)
    monkeypatch.delitem(sys.modules, "holdfast.runner.blocking", raising=False)
    app = Registry()

    with pytest.raises(InvalidRequest, match=r"pip install holdfast\[sync\]"):

        @app.workflow
        def shop(ctx: SyncContext) -> None: ...

    assert list(app.types()) == []


def test_greenlet_is_loaded_by_the_first_def_workflow_and_not_before() -> None:
    program = """
import sys
from holdfast import Registry

app = Registry()

@app.workflow
async def first(ctx): ...

print("greenlet" in sys.modules)

@app.workflow
def second(ctx): ...

print("greenlet" in sys.modules)
"""
    probe = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert probe.stdout.split() == ["False", "True"], probe.stderr
