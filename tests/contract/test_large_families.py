"""The end of a run with many children: each child costs the same, however many there are."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest

from holdfast.core.questions import Query
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import an_id, checkpoint_for, succeed, the_run, write
from tests.contract.families import children_of, held_with_children
from tests.stage import Stage

FEW, MANY, HUNDREDS = 50, 400, 700


class Lines:
    """Counts the lines of Python that are executed, in this thread and in new ones."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        threading.settrace(self._before)

    def _trace(self, _: FrameType, event: str, __: Any) -> Any:
        self.count += event == "line"
        return self._trace


async def _lines_per_child(stage: Stage, children: int) -> float:
    """Return the number of lines per child that a store executes to end a run with so many children."""
    store = stage.store()
    await store.open()
    lease = await held_with_children(store, children)
    with Lines() as lines:
        await write(store, checkpoint_for(lease, succeed()))
    last = await the_run(store, children + 1)
    await store.close()
    assert last.state is RunState.CANCELLED
    return lines.count / children


@pytest.mark.parametrize("kind", ["memory", "dictionary", "sqlite"])
async def test_the_end_of_a_run_costs_the_same_for_each_of_its_children(kind: str, tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    (tmp_path / "many").mkdir()

    few = await _lines_per_child(Stage(kind, tmp_path / "few"), FEW)
    many = await _lines_per_child(Stage(kind, tmp_path / "many"), MANY)

    assert many < 1.5 * few


@pytest.mark.parametrize("how", ["end", "cancels"])
async def test_hundreds_of_children_end_at_once_on_redis(how: str, redis_url: str, tmp_path: Path) -> None:
    """So many that they are loaded in pieces, and that a thread makes the command that writes them."""
    store = Stage("redis", tmp_path, redis_url).store()
    await store.open()
    lease = await held_with_children(store, HUNDREDS)

    if how == "end":
        await write(store, checkpoint_for(lease, succeed()))
    else:
        await write(store, checkpoint_for(lease, cancels=tuple(map(an_id, children_of(HUNDREDS)))))

    states = Counter(details.run.state for details in await store.list(Query(type="child", limit=1_000)))
    await store.close()
    assert states == {RunState.CANCELLED: HUNDREDS}
