"""Registering a flow: a long text is compiled outside of the event loop."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.engine import namespaces
from holdfast.flows.compiler import compile_flow


@pytest.mark.parametrize("statements", [1, 2_000])
async def test_only_a_long_text_is_compiled_in_a_thread(monkeypatch: pytest.MonkeyPatch, statements: int) -> None:
    threads: list[threading.Thread] = []

    def compiled(source: str) -> Any:
        threads.append(threading.current_thread())
        return compile_flow(source)

    monkeypatch.setattr(namespaces, "compile_flow", compiled)
    async with Holdfast("memory://") as hf:
        await hf.flows.register("async def main(n=0):\n" + "    n += 1\n" * statements, type="flow.v1")

    assert (threads == [threading.current_thread()]) == (statements == 1)
