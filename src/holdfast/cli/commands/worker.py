"""Commands that execute runs: `worker` and `dev`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import click

from holdfast.app import Holdfast, session_of
from holdfast.cli.application import load_application, named_application
from holdfast.cli.command import command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.logs import log_to_stderr
from holdfast.cli.option import Settings, setting_options
from holdfast.cli.output import Output
from holdfast.cli.session import is_in_memory, tune_for_runs
from holdfast.cli.streams import spare_stdout
from holdfast.cli.supervisor import Lifeline, Reloader, Supervisor
from holdfast.config import settings
from holdfast.config.secret import scrubbed
from holdfast.core.errors import nearest
from holdfast.core.intent import matches_type
from holdfast.telemetry.endpoint import Endpoint
from holdfast.worker.shutdown import Shutdown
from holdfast.worker.worker import Worker

_TYPES_SHOWN = 8

_log = logging.getLogger("holdfast.cli")


@command(
    "worker",
    "holdfast worker shop:hf",
    "holdfast worker shop:hf --types 'billing.*,shop.checkout.v1' --concurrency 50",
    "holdfast worker shop:hf --processes 4",
    "holdfast worker shop:hf --until-idle",
)
@click.argument("target", metavar="[MODULE:ATTR]", required=False)
@setting_options(
    settings.TYPES,
    settings.CONCURRENCY,
    settings.PROCESSES,
    settings.THREADS,
    settings.STEPS,
    settings.GRACE,
    settings.LEASE,
    settings.NAME,
    settings.METRICS,
    settings.LOG_FORMAT,
)
@click.option("--until-idle", is_flag=True, help="Stop as soon as no run is due.")
@click.option("--no-flows", is_flag=True, help="Execute no flows, only the code of the application.")
def worker(out: Output, target: str | None, *, until_idle: bool, no_flows: bool) -> ExitCode:
    """Execute runs of the application's workflows and tasks, and flows, until SIGTERM or ^C.

    MODULE:ATTR names the Holdfast object, as in shop:hf for `hf` in shop.py; the import starts in the current
    directory. The default is the configured object. The worker also executes the flows of the store, including those
    that are registered while it runs; --types selects among both.

    At the end, running steps may finish within their grace period, and the worker gives every run back, so that other
    workers continue it. A second ^C ends the grace period at once. Logs go to stderr; -v shows more of them.
    """
    spare_stdout()
    if out.settings.configuration[settings.PROCESSES] > 1:
        return _supervise(out, target, until_idle=until_idle, no_flows=no_flows)
    return _execute(out, target, Lifeline.taken(), until_idle=until_idle, flows=not no_flows)


def _supervise(out: Output, target: str | None, *, until_idle: bool, no_flows: bool) -> ExitCode:
    """Supervise several worker processes."""
    _prepare_supervisor(out)
    configured = out.settings.configuration
    processes = configured[settings.PROCESSES]
    if (address := configured[settings.METRICS]) is not None:
        try:
            address.for_process(processes)  # refuse at once if the last process would have no valid port
        except ValueError as error:
            raise Refusal(f"--metrics {error}") from None
    more = [flag for flag, is_on in {"--until-idle": until_idle, "--no-flows": no_flows}.items() if is_on]
    supervisor = Supervisor(
        lambda number: words_for(out.settings, target, number, *more),
        processes,
        grace_seconds=configured[settings.GRACE].total_seconds(),
        ends_when_idle=until_idle,
    )
    _announce(out, f"{processes} worker processes under process {os.getpid()}")
    code = asyncio.run(supervisor.run())
    _announce(out, "all worker processes stopped")
    return code


def _prepare_supervisor(out: Output) -> None:
    log_to_stderr(out.settings.verbosity, out.settings.configuration[settings.LOG_FORMAT])
    if out.settings.url is not None:
        # Not on the command line, which every user of this machine can read: the URL may contain a password.
        os.environ[settings.URL.variable] = out.settings.url


def _announce(out: Output, message: str) -> None:
    """Write a message to stderr; if logs are JSON, write it as a log record, so that every line stays JSON."""
    if out.settings.configuration[settings.LOG_FORMAT] == "json":
        _log.info(message)
    else:
        out.talk(message)


def words_for(given: Settings, target: str | None, number: int, *more: str) -> list[str]:
    """Return the command line of one of several processes. It contains every setting that has a value, and `more`."""
    flags = {flag for parameter in worker.params for flag in parameter.opts}
    words = [sys.executable, "-m", "holdfast", "worker", "--color", given.color]
    if target is not None:
        words.insert(4, target)
    if given.verbosity:
        words += ["-q"] if given.is_quiet else ["-v"] * given.verbosity
    words += more
    own: dict[str, object] = {settings.PROCESSES.key: 1}
    if (name := given.configuration[settings.NAME]) is not None:
        own[settings.NAME.key] = f"{name}-{number}"
    if (address := given.configuration[settings.METRICS]) is not None:
        own[settings.METRICS.key] = address.for_process(number)
    for setting in settings.SETTINGS.values():
        if setting.key.startswith("worker.") and setting.flag in flags:
            value = own.get(setting.key, given.configuration[setting])
            words += [] if value is None else [setting.flag, setting.kind.written(value)]
    return words


def _execute(out: Output, target: str | None, lifeline: Lifeline | None, *, until_idle: bool, flows: bool) -> ExitCode:
    """Execute runs in this process."""
    configured = out.settings.configuration
    grace_seconds = configured[settings.GRACE].total_seconds()
    process = None if lifeline is None else lifeline.number
    log_to_stderr(out.settings.verbosity, configured[settings.LOG_FORMAT], process)
    if lifeline is not None:
        lifeline.watch(grace_seconds)
    tune_for_runs()
    name, directory = named_application(target, out.settings)
    hf = load_application(name, out.settings.url, directory)
    if lifeline is not None and is_in_memory(hf):
        raise Refusal("the application uses a memory store, which processes cannot share; use --processes 1")
    if not flows:
        _check_types(hf, configured[settings.TYPES])
    elif session_of(hf).store.schema().current == 0:
        _check_types(hf, configured[settings.TYPES], ())  # before a store without flows is created
    worker = hf.worker(
        configured[settings.TYPES],
        concurrency=configured[settings.CONCURRENCY],
        threads=configured[settings.THREADS],
        steps=configured[settings.STEPS],
        lease_seconds=configured[settings.LEASE].total_seconds(),
        grace_seconds=grace_seconds,
        name=configured[settings.NAME],
        flows=flows,
    )
    asyncio.run(_work(out, hf, worker, lifeline, until_idle=until_idle, flows=flows))
    return ExitCode.OK


async def _work(
    out: Output, hf: Holdfast, worker: Worker, lifeline: Lifeline | None, *, until_idle: bool, flows: bool
) -> None:
    try:
        await session_of(hf).open()
        names = [*worker.types()]
        if flows:
            patterns = out.settings.configuration[settings.TYPES]
            found = sorted({flow.type for flow in await hf.flows.list()})
            _check_types(hf, patterns, found)
            matching = [one for one in found if patterns is None or any(matches_type(one, each) for each in patterns)]
            names += [f"{one} (flow)" for one in matching]
        async with _serving(out, hf, worker):
            _announce(out, _greeting(hf, worker, names, until_idle=until_idle))
            if is_in_memory(hf):
                no_others = "no other process can start runs in it, and no run outlives this process"
                _announce(out, f"its store is in memory: {no_others}")
            if lifeline is not None:
                await _work_as_ordered(worker, lifeline, until_idle=until_idle)
            else:
                await (_run_until_idle(worker) if until_idle else worker.run())
        _announce(out, f"worker {worker.name} stopped")
    finally:
        await hf.close()


@asynccontextmanager
async def _serving(out: Output, hf: Holdfast, worker: Worker) -> AsyncIterator[None]:
    """Serve metrics while the worker works, if an address is set."""
    configured = out.settings.configuration
    if (address := configured[settings.METRICS]) is None:
        yield
        return
    token = configured[settings.METRICS_TOKEN]
    endpoint = Endpoint(hf.metrics.text, hf.metrics.content_type, lambda: worker.is_healthy, token)
    async with endpoint.serving(address) as found:
        _announce(out, f"metrics at http://{found}/metrics")
        yield


async def _work_as_ordered(worker: Worker, lifeline: Lifeline, *, until_idle: bool) -> None:
    """Work for a supervisor."""
    shutdown = Shutdown()
    with shutdown.from_supervisor():
        await worker.start()
        lifeline.report_ready()
        working = asyncio.create_task(worker.run_until_idle() if until_idle else shutdown.stop.wait())
        working.add_done_callback(lambda _: shutdown.stop.set())
        await worker.obey(shutdown)
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        _ignore_signals()


def _ignore_signals() -> None:
    """Ignore further signals during the exit of this process. A late signal would end in a traceback."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


async def _run_until_idle(worker: Worker) -> None:
    """Work until idle. As in `worker.run()`, SIGTERM lets running steps finish and gives every run back."""
    work = asyncio.create_task(worker.run_until_idle())
    with suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        if asyncio.current_task().cancelling():  # type: ignore[union-attr]  # this code runs inside a task
            raise


def _check_types(hf: Holdfast, patterns: Sequence[str] | None, flows: Iterable[str] | None = None) -> None:
    """Refuse a worker without types, and a pattern that matches no type (a typo). `flows` are those of the store."""
    known = sorted({*session_of(hf).registry.types(), *(flows or ())})
    if not known:
        register = "" if flows is None else ", or register a flow with `holdfast flows register`"
        raise Refusal(f"the application has no workflow or task; decorate one with @hf.workflow or @hf.task{register}")
    for pattern in patterns or ():
        if not any(matches_type(name, pattern) for name in known):
            near = nearest(pattern, known)
            meant = f" (did you mean {near}?)" if near else ""
            where = "of the application" if flows is None else "of the application and no flow"
            raise Refusal(f"no type {where} matches {pattern!r}{meant}; there are {', '.join(known)}")


def _greeting(hf: Holdfast, worker: Worker, names: Sequence[str], *, until_idle: bool) -> str:
    shown = ", ".join(names[:_TYPES_SHOWN]) + (f" and {len(names) - _TYPES_SHOWN} more" if names[_TYPES_SHOWN:] else "")
    ending = "until no run is due" if until_idle else "until ^C"
    return f"worker {worker.name} on {scrubbed(session_of(hf).url)} executes {shown} {ending}"


@command("dev", "holdfast dev shop:hf", "holdfast dev -v")
@click.argument("target", metavar="[MODULE:ATTR]", required=False)
def dev(out: Output, target: str | None) -> ExitCode:
    """Execute runs like a worker, and restart with the new code whenever a file changes. For development.

    MODULE:ATTR names the Holdfast object, as for a worker; the default is the configured one. All other settings come
    from the configuration. The command watches Python files and settings files below the current directory, or below
    the directory of the settings file if that names the application. On a change, and on ^C, running steps may finish
    within their grace period.
    """
    name, configured = named_application(target, out.settings)
    directory = configured or Path.cwd()
    _prepare_supervisor(out)
    # Python trusts a compiled file whose source has the same size and the same second of modification. It would miss a
    # change that keeps the length of the file, right after a start.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    out.talk(f"running {name} until ^C, with a restart after each change in {directory}")
    grace_seconds = out.settings.configuration[settings.GRACE].total_seconds()
    reloader = Reloader(words_for(out.settings, target, 1), directory, grace_seconds=grace_seconds, talk=out.talk)
    return asyncio.run(reloader.run())
