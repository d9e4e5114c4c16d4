"""A trial of a flow without a store: its stubs and messages on the command line, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.output import Output, cleaned
from holdfast.cli.payloads import parse_json, parse_pair
from holdfast.cli.times import spoken
from holdfast.cli.view import error_lines
from holdfast.core.clock import SECOND, Micros, moment
from holdfast.core.errors import ErrorRecord
from holdfast.flows import Continued, Played, PlayedArrival, Raised, Returned, StubError, StubSequence


def parse_stubs(stubs: Sequence[str], failures: Sequence[str]) -> dict[str, Any]:
    """Parse `TYPE=JSON`, where a repeated type answers in this order, and `TYPE=MESSAGE` of calls that fail."""
    answers: dict[str, list[Any]] = {}
    for text in stubs:
        type, value = parse_pair(text, "--stub")
        answers.setdefault(type, []).append(parse_json(value, f"the stub of {type}", '; write a string as "text"'))
    for text in failures:
        type, message = parse_pair(text, "--fail")
        answers.setdefault(type, []).append(StubError(message=message))
    return {type: given[0] if len(given) == 1 else StubSequence(tuple(given)) for type, given in answers.items()}


def parse_arrivals(texts: Iterable[str], option: str, now: Micros, *, is_event: bool) -> list[PlayedArrival]:
    """Parse `NAME=JSON` or `NAME=JSON@SECONDS`. Without seconds, it arrives when the flow waits for it."""
    found = []
    for text in texts:
        name, rest = parse_pair(text, option)
        value, mark, seconds = rest.rpartition("@")
        at = None
        if mark and _is_number(seconds) and _is_json(value):
            at, rest = now + round(float(seconds) * SECOND), value
        payload = parse_json(rest, f"the payload of {name}", '; write a string as "text"')
        found.append(PlayedArrival(name, payload, at, is_event=is_event))
    return found


def _is_number(text: str) -> bool:
    whole, _, rest = text.partition(".")
    return whole.isdecimal() and (not rest or rest.isdecimal())


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def report_trial(out: Output, played: Played, began: Micros, *, has_trace: bool) -> ExitCode:
    """Write how a trial ended. Returns its exit code."""
    outcome = played.outcome
    if out.is_json:
        out.item(_trial_json(played, began))
        return _exit_code(played)
    if has_trace:
        out.lines((cleaned(line),) for line in played.trace)
    took = f"after {spoken(moment(played.now) - moment(began))}, {played.instructions:,} instructions"
    match outcome:
        case Returned(result):
            out.line(cleaned(result))
            out.talk(f"returned {took}")
        case Raised(error):
            out.talk(f"failed {took}")
            _report_error(out, error)
        case Continued(payload):
            out.line(cleaned(payload))
            out.talk(f"continued as new with this payload {took}")
        case None:
            what = "; ".join(map(cleaned, played.waits))
            out.talk(f"still waits {took}: {what or 'it made too many steps'}")
            out.talk("pass what it waits for with --message or --event")
        case _:
            assert_never(outcome)
    return _exit_code(played)


def _report_error(out: Output, error: ErrorRecord) -> None:
    for line in error_lines(error, is_verbose=True):
        out.line(*line)


def _exit_code(played: Played) -> ExitCode:
    if played.outcome is None:
        return ExitCode.STILL_GOING
    return ExitCode.RUN_FAILED if isinstance(played.outcome, Raised) else ExitCode.OK


def _trial_json(played: Played, began: Micros) -> dict[str, Any]:
    words = {Returned: "returned", Raised: "failed", Continued: "continued"}
    outcome = played.outcome
    return {
        "outcome": None if outcome is None else words[type(outcome)],
        "result": json.loads(outcome.result) if isinstance(outcome, Returned) else None,
        "payload": json.loads(outcome.payload) if isinstance(outcome, Continued) else None,
        "error": played.error,
        "waits": list(played.waits),
        "seconds": (played.now - began) / SECOND,
        "instructions": played.instructions,
        "trace": list(played.trace),
    }


def check_input(value: Any) -> str:
    """Return the payload of a trial as JSON text."""
    if not isinstance(value, dict):
        raise Refusal("--input must be a JSON object with the parameters of main")
    return json.dumps(value)
