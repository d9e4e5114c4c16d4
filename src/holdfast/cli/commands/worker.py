"""`holdfast worker`."""

from __future__ import annotations

import asyncio
import difflib
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import click

from holdfast.app import Holdfast, scrubbed
from holdfast.cli.address import ADDRESS
from holdfast.cli.application import load_application
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.lifeline import Lifeline
from holdfast.cli.logs import log_to_stderr
from holdfast.cli.output import Output
from holdfast.cli.settings import Settings
from holdfast.cli.supervisor import Supervisor
from holdfast.cli.times import LENGTH
from holdfast.core.intent import matches_type
from holdfast.telemetry.endpoint import Address, Endpoint
from holdfast.worker.orders import Orders
from holdfast.worker.worker import Worker

_SWITCH_SECONDS = 0.0005
_GC_THRESHOLDS = (20_000, 20, 20)
_TYPES_SHOWN = 8


@holdfast_command(
    "worker",
    "holdfast worker shop:hf",
    "holdfast worker shop:hf --types 'billing.*,shop.checkout.v1' --concurrency 50",
    "holdfast worker shop:hf --processes 4",
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
    help="Runs at once, in each process.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    envvar="HOLDFAST_WORKER_PROCESSES",
    show_envvar=True,
    help="Worker processes; one that dies is replaced.",
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
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    type=ADDRESS,
    envvar="HOLDFAST_WORKER_METRICS",
    show_envvar=True,
    help="Serve /metrics (for Prometheus) and /healthz there; a further process one port higher each.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    envvar="HOLDFAST_LOG_FORMAT",
    show_envvar=True,
    help="How log records are written to stderr: lines for people, or JSON lines.",
)
@click.option("--until-idle", is_flag=True, help="Stop when nothing is left to do right now.")
@click.option(
    "--name",
    envvar="HOLDFAST_WORKER_NAME",
    show_envvar=True,
    help="What the worker is called.  [default: host and process]",
)
@pass_output
def command(out: Output, target: str, *, processes: int, **options: Any) -> ExitCode:
    """Execute runs of the application's workflows and tasks until SIGTERM or ^C.

    MODULE:ATTR names the Holdfast object, as in shop:hf for `hf` in shop.py; the current directory is searched
    first. Then running steps get their grace, and every run is given back for others to continue. A second ^C
    ends the grace at once. Logs go to stderr; -v shows more of them.
    """
    if processes > 1:
        return _supervise(out, target, processes, **options)
    return _execute(out, target, Lifeline.taken(), **options)


def _supervise(out: Output, target: str, processes: int, **options: Any) -> ExitCode:
    """Have other processes execute runs."""
    log_to_stderr(out.settings.verbosity, options["log_format"])
    if out.settings.url is not None:
        os.environ["HOLDFAST_URL"] = out.settings.url  # not among the words, which everybody on the machine can read

    async def supervise() -> ExitCode:
        return await Supervisor(
            lambda number: _command(out.settings, target, number, options),
            processes,
            grace_seconds=options["grace"].total_seconds(),
            ends_when_idle=options["until_idle"],
        ).run()

    out.talk(f"{processes} worker processes under process {os.getpid()}")
    code = asyncio.run(supervise())
    out.talk("all worker processes stopped")
    return code


def _command(settings: Settings, target: str, number: int, options: Mapping[str, Any]) -> list[str]:
    """What to type for one of several processes. Each option is given, so that no variable says otherwise."""
    words = [sys.executable, "-m", "holdfast", "worker", target, "--processes", "1", "--color", settings.color]
    if settings.verbosity:
        words += ["-q"] if settings.is_quiet else ["-v"] * settings.verbosity
    for pattern in options["types"]:
        words += ["--types", pattern]
    for name in ("concurrency", "threads", "log_format"):
        words += [f"--{name.replace('_', '-')}", str(options[name])]
    if (address := options["metrics"]) is not None:
        words += ["--metrics", str(address.for_process(number))]
    for name in ("grace", "lease"):
        words += [f"--{name}", str(options[name].total_seconds())]
    if options["until_idle"]:
        words.append("--until-idle")
    if options["name"] is not None:
        words += ["--name", f"{options['name']}-{number}"]
    return words


def _execute(
    out: Output,
    target: str,
    lifeline: Lifeline | None,
    *,
    types: Sequence[str],
    grace: timedelta,
    lease: timedelta,
    until_idle: bool,
    metrics: Address | None,
    log_format: str,
    **options: Any,
) -> ExitCode:
    """Execute runs in this process."""
    log_to_stderr(out.settings.verbosity, log_format, None if lifeline is None else lifeline.number)
    if lifeline is not None:
        lifeline.hold(grace.total_seconds())
    # Steps in threads would otherwise starve beside a busy event loop.
    sys.setswitchinterval(_SWITCH_SECONDS)
    # Hundreds of runs at once make many short-lived objects; the default would look for garbage every 700 of them.
    gc.set_threshold(*_GC_THRESHOLDS)
    hf = load_application(target, out.settings.url)
    if lifeline is not None and _is_in_memory(hf):
        raise Refusal("the store of the application is in memory, which several processes cannot share: --processes 1")
    patterns = _patterns(types, hf.registry.types())
    lengths = {"lease_seconds": lease.total_seconds(), "grace_seconds": grace.total_seconds()}
    asyncio.run(_work(out, hf, patterns, options | lengths, lifeline, metrics=metrics, until_idle=until_idle))
    return ExitCode.OK


async def _work(
    out: Output,
    hf: Holdfast,
    patterns: list[str] | None,
    options: dict[str, Any],
    lifeline: Lifeline | None,
    *,
    metrics: Address | None,
    until_idle: bool,
) -> None:
    worker = hf.worker(types=patterns, **options)
    try:
        await hf.opened()
        async with _serving(out, hf, worker, metrics):
            await _work_on(out, hf, worker, patterns, lifeline, until_idle=until_idle)
        out.talk(f"worker {worker.name} stopped")
    finally:
        await hf.close()


@asynccontextmanager
async def _serving(out: Output, hf: Holdfast, worker: Worker, address: Address | None) -> AsyncIterator[None]:
    """Serve metrics while the worker works, if that is wished."""
    if address is None:
        yield
        return
    endpoint = Endpoint(
        hf.metrics.text, hf.metrics.content_type, lambda: worker.is_healthy, os.environ.get("HOLDFAST_METRICS_TOKEN")
    )
    async with endpoint.serving(address) as found:
        out.talk(f"metrics at http://{found}/metrics")
        yield


async def _work_on(
    out: Output,
    hf: Holdfast,
    worker: Worker,
    patterns: list[str] | None,
    lifeline: Lifeline | None,
    *,
    until_idle: bool,
) -> None:
    out.talk(_greeting(hf, worker, patterns, until_idle=until_idle))
    if _is_in_memory(hf):
        out.talk("its store is in memory: no other process can start runs there, and none outlives this one")
    if lifeline is not None:
        await _work_as_ordered(worker, lifeline, until_idle=until_idle)
    elif until_idle:
        await _run_until_idle(worker)
    else:
        await worker.run()


def _is_in_memory(hf: Holdfast) -> bool:
    return hf.url.partition(":")[0] == "memory"


async def _work_as_ordered(worker: Worker, lifeline: Lifeline, *, until_idle: bool) -> None:
    """Work for a supervisor."""
    orders = Orders()
    with orders.from_supervisor():
        await worker.start()
        lifeline.say_ready()
        working = asyncio.create_task(worker.run_until_idle() if until_idle else orders.stop.wait())
        working.add_done_callback(lambda _: orders.stop.set())
        await worker.obey(orders)
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


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
