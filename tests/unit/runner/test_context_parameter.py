"""The first parameter of a workflow is its context: a function without one is refused when it is decorated."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import pytest

from holdfast import Context, InvalidRequest, Registry, SyncContext, TaskContext


def bare() -> None: ...


async def async_bare() -> None: ...


async def no_context(order: str) -> None: ...


def def_no_context(order: list[int]) -> None: ...


async def swapped(order: str, ctx: Context) -> None: ...


def def_swapped(order, ctx: SyncContext) -> None: ...  # type: ignore[no-untyped-def]


async def of_a_task(ctx: TaskContext) -> None: ...


async def late(order, number: int, context: TaskContext) -> None: ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (bare, r"workflow 'x' has no parameters; the first one must be its context: .*bare\(ctx: SyncContext\)"),
        (
            async_bare,
            r"workflow 'x' has no parameters; the first one must be its context: .*async_bare\(ctx: Context\)",
        ),
        (
            no_context,
            "'x' declares its first parameter 'order' as str, but .* put `ctx: Context` before it, or",
        ),
        (def_no_context, r"first parameter 'order' as list\[int\], but .* put `ctx: SyncContext` before it"),
        (swapped, "workflow 'x' takes its context as 'ctx'; it must be the first parameter"),
        (def_swapped, "workflow 'x' takes its context as 'ctx'; it must be the first parameter"),
        (of_a_task, "first parameter 'ctx' as holdfast.runner.step_info.TaskContext"),
        (late, "takes its context as 'context'"),
    ],
)
def test_a_workflow_without_a_context_as_first_parameter_is_refused(function: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        Registry().workflow("x")(function)


class Own(Context): ...


class Face(Protocol):
    def sleep(self, length: float) -> Any: ...


async def unsaid(ctx, number: int) -> None: ...  # type: ignore[no-untyped-def]


async def anything(ctx: Any) -> None: ...


async def nothing_known(ctx: "Unimportable") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037


async def derived(ctx: Own) -> None: ...


async def optional(ctx: Context | None) -> None: ...


async def annotated(ctx: Annotated[Context, "the run's"]) -> None: ...


async def by_protocol(ctx: Face) -> None: ...


@pytest.mark.parametrize("function", [unsaid, anything, nothing_known, derived, optional, annotated, by_protocol])
def test_a_first_parameter_that_can_be_a_context_is_accepted(function: Any) -> None:
    assert Registry().workflow("x")(function).type == "x"
