"""`holdfast worker`."""

from __future__ import annotations

import asyncio
import difflib
import gc
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import click

from holdfast.app import Holdfast, scrubbed
from holdfast.cli.application import load_application
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.logs import log_to_stderr
from holdfast.cli.output import Output
from holdfast.cli.times import LENGTH
from holdfast.core.intent import matches_type
from holdfast.worker.worker import Worker

_SWITCH_SECONDS = 0.0005
_GC_THRESHOLDS = (20_000, 20, 20)
_TYPES_SHOWN = 8


@holdfast_command(
    "worker",
    "holdfast worker shop:hf",
    "holdfast worker shop:hf --types 'billing.*,shop.checkout.v1' --concurrency 50",
    "holdfast worker shop:hf --until-idle",
)
@click.argument("target", metavar="MODULE:ATTR")
@click.option(
    "--types",
    metavar="TYPES",
    multiple=True,
    envvar="HOLDFAST_WORKER_TYPES",
    show_envvar=True,
    help="Only these types, such as 'billing.*,x.y.v1'.  [default: all of the application]",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    envvar="HOLDFAST_WORKER_CONCURRENCY",
    show_envvar=True,
    help="Runs at once.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    envvar="HOLDFAST_WORKER_THREADS",
    show_envvar=True,
    help="Threads for steps that are plain functions.",
)
@click.option(
    "--grace",
    type=LENGTH,
    default="10s",
    show_default=True,
    envvar="HOLDFAST_WORKER_GRACE",
    show_envvar=True,
    help="How long running steps may take when the worker stops.",
)
@click.option(
    "--lease",
    type=LENGTH,
    default="30s",
    show_default=True,
    envvar="HOLDFAST_WORKER_LEASE",
    show_envvar=True,
    help="After this time without a heartbeat another worker takes over.",
)
@click.option("--until-idle", is_flag=True, help="Stop when nothing is left to do right now.")
@click.option(
    "--name",
    envvar="HOLDFAST_WORKER_NAME",
    show_envvar=True,
    help="What the worker is called.  [default: host and process]",
)
@pass_output
def command(
    out: Output,
    target: str,
    *,
    types: Sequence[str],
    grace: timedelta,
    lease: timedelta,
    until_idle: bool,
    **options: Any,
) -> ExitCode:
    """Execute runs of the application's workflows and tasks until SIGTERM or ^C.

    MODULE:ATTR names the Holdfast object, as in shop:hf for `hf` in shop.py; the current directory is searched
    first. Then running steps get their grace, and every run is given back for others to continue. A second ^C
    ends the grace at once. Logs go to stderr; -v shows more of them.
    """
    log_to_stderr(out.settings.verbosity)
    # Steps in threads would otherwise starve beside a busy event loop.
    sys.setswitchinterval(_SWITCH_SECONDS)
    # Hundreds of runs at once make many short-lived objects; the default would look for garbage every 700 of them.
    gc.set_threshold(*_GC_THRESHOLDS)
    hf = load_application(target, out.settings.url)
    patterns = _patterns(types, hf.registry.types())
    lengths = {"lease_seconds": lease.total_seconds(), "grace_seconds": grace.total_seconds()}
    asyncio.run(_work(out, hf, patterns, options | lengths, until_idle=until_idle))
    return ExitCode.OK


async def _work(
    out: Output, hf: Holdfast, patterns: list[str] | None, options: dict[str, Any], *, until_idle: bool
) -> None:
    worker = hf.worker(types=patterns, **options)
    try:
        await hf.opened()
        out.talk(_greeting(hf, worker, patterns, until_idle=until_idle))
        if hf.url.partition(":")[0] == "memory":
            out.talk("its store is in memory: no other process can start runs there, and none outlives this one")
        if until_idle:
            await _run_until_idle(worker)
        else:
            await worker.run()
        out.talk(f"worker {worker.name} stopped")
    finally:
        await hf.close()


async def _run_until_idle(worker: Worker) -> None:
    """As `worker.run()` does it: SIGTERM lets running steps end and gives every run back."""
    work = asyncio.create_task(worker.run_until_idle())
    with suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        if asyncio.current_task().cancelling():  # type: ignore[union-attr]  # inside a task there is one
            raise


def _patterns(given: Sequence[str], registered: Iterable[str]) -> list[str] | None:
    """The patterns of `--types`. One that nothing registered matches is a typing mistake."""
    patterns = [pattern.strip() for words in given for pattern in words.split(",") if pattern.strip()]
    known = sorted(registered)
    if not known:
        raise Refusal("the application has no workflow or task; decorate one with @hf.workflow or @hf.task")
    for pattern in patterns:
        if not any(matches_type(name, pattern) for name in known):
            near = difflib.get_close_matches(pattern, known, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise Refusal(f"no type of the application matches {pattern!r}{meant}; it has {', '.join(known)}")
    return patterns or None


def _greeting(hf: Holdfast, worker: Worker, patterns: Sequence[str] | None, *, until_idle: bool) -> str:
    known = sorted(hf.registry.types())
    names = [n for n in known if patterns is None or any(matches_type(n, pattern) for pattern in patterns)]
    shown = ", ".join(names[:_TYPES_SHOWN]) + (f" and {len(names) - _TYPES_SHOWN} more" if names[_TYPES_SHOWN:] else "")
    ending = "until nothing is left to do" if until_idle else "until ^C"
    return f"worker {worker.name} on {scrubbed(hf.url)} executes {shown} {ending}"
