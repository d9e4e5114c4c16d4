"""Worker processes for measurements across processes: `python -m benchmarks.processes URL MODULE CONCURRENCY`."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from holdfast import Holdfast

_READY = "ready"


@contextmanager
def workers(url: str, module: str, count: int, concurrency: int = 500) -> Iterator[None]:
    """Start this many worker processes with the registry of a module; they work when the block begins."""
    with ExitStack() as stack:
        started = [stack.enter_context(_worker(url, module, concurrency)) for _ in range(count)]
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == _READY, "a worker process did not start"
        yield


@contextmanager
def _worker(url: str, module: str, concurrency: int) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "benchmarks.processes", url, module, str(concurrency)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()  # the end of its input ends the worker, also if this process is killed
        process.wait(30)


async def _work(url: str, module: str, concurrency: int) -> None:
    async with Holdfast(url) as hf:
        hf.include(importlib.import_module(module).registry)
        async with hf.worker(concurrency=concurrency):
            print(_READY, flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1], sys.argv[2], int(sys.argv[3])))
