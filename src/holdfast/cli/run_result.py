"""The result of a run: wait for it, print it, and choose the exit code."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

from holdfast.app import Holdfast
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import Output, cleaned
from holdfast.core.errors import RunCancelled, RunFailed
from holdfast.core.states import RunState
from holdfast.engine.info import RunInfo


async def wait_for_end(hf: Holdfast, run_id: str, timeout: timedelta | None) -> RunInfo:
    """Wait until the run ends or the time is over, and return its info."""
    run = hf.run(run_id)
    with suppress(RunFailed, RunCancelled, TimeoutError):
        await run.result(None if timeout is None else timeout.total_seconds())
    return await run.info()


def outcome(info: RunInfo) -> dict[str, Any]:
    """Return the outcome of a run as JSON shows it, or its state if it has not ended."""
    return {"id": info.id, "state": info.state, "result": info.result, "error": info.error}


def finish(out: Output, info: RunInfo) -> ExitCode:
    """Print the result of a run, or the reason why there is none. For JSON output, the caller has printed it."""
    if info.state is RunState.SUCCEEDED and not out.is_json:
        out.item(info.result)
    elif info.state is RunState.FAILED:
        out.talk(f"run {info.id} failed: {cleaned(str(info.error))}; `holdfast show {info.id}` shows more")
    elif info.state is RunState.CANCELLED:
        reason = f": {cleaned(info.error.message)}" if info.error and info.error.message else ""
        out.talk(f"run {info.id} was cancelled{reason}")
    elif not info.state.is_end:
        out.talk(f"run {info.id} has not ended yet, it is {info.state.value}; `holdfast explain {info.id}` says why")
    return exit_code(info.state)


def exit_code(state: RunState) -> ExitCode:
    match state:
        case RunState.SUCCEEDED:
            return ExitCode.OK
        case RunState.FAILED:
            return ExitCode.RUN_FAILED
        case RunState.CANCELLED:
            return ExitCode.RUN_CANCELLED
        case _:
            return ExitCode.STILL_GOING
