"""The comparison of the outcome of a program with the prediction of the interpreter."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.core.model import Entry, EntryState, Run
from holdfast.core.questions import Details
from holdfast.core.states import RunState
from tests.programs.effects import Check, undo_problems
from tests.programs.expectation import ANY, ExpectedOutcome, RunEnd
from tests.programs.ledger import EffectLedger
from tests.programs.performer import wording


@dataclass
class Played:
    """The outcome of programs: runs, values and the ledger, by the paths of runs; and inconsistencies."""

    runs: dict[str, Run]
    values: dict[tuple[str, str], Any]
    ledger: list[tuple[str, str]]
    problems: list[str]

    @classmethod
    def of(cls, details: Sequence[Details], histories: Mapping[str, Sequence[Entry]], ledger: EffectLedger) -> Played:
        paths = {one.run.id: path_of(one.run) for one in details}
        values = {(paths[one.run.id], name): text for one in details for name, text in one.values.items()}
        log = [line for line in ledger.log if line[0] in paths]
        played = cls(
            runs={paths[one.run.id]: one.run for one in details},
            values={key: json.loads(text) for key, text in values.items()},
            ledger=[(paths[run_id], location) for run_id, location, _ in log],
            problems=[],
        )
        if len(played.runs) < len(details):
            played.problems.append("two runs stand at one location")
        undone = {paths[one.run.id]: _undone(one.run, histories[one.run.id]) for one in details}
        played.problems += undo_problems(played.ledger, undone)
        for run_id, location, value in log:
            if location.startswith("~undo/"):
                played.problems += _wrong_result(paths[run_id], location, value, histories[run_id])
        return played


def path_of(run: Run) -> str:
    """The path of a program's run: the name of the root, and the locations of its children."""
    return str(json.loads(run.payload).get("path", "root"))


def _undone(run: Run, history: Iterable[Entry]) -> list[str]:
    """Return the steps with an undo of a failed run, in reverse order of its history."""
    if not run.state.is_end or run.state is RunState.SUCCEEDED:
        return []
    done = [entry for entry in history if entry.has_undo and entry.state is EntryState.DONE]
    return [entry.location for entry in sorted(done, key=lambda entry: -entry.position)]


def _wrong_result(path: str, location: str, value: Any, history: Iterable[Entry]) -> list[str]:
    recorded = {entry.location: entry.result for entry in history}.get(location.removeprefix("~undo/"))
    if recorded is not None and json.loads(recorded) == value:
        return []
    return [f"{path}: {location} was called with {value}, the step gave {recorded}"]


def problems(expected: ExpectedOutcome, played: Played, *, crashes: int) -> list[str]:
    """Return the differences between a play and the prediction, if workers were lost this many times."""
    found = list(played.problems)
    found += Check(played.ledger, crashes=crashes).problems([expected.tree, *expected.loose])
    for path, run in played.runs.items():
        if path not in expected.runs:
            found.append(f"run {path!r} should not exist")
        else:
            found += _run_problems(path, run, expected.runs[path])
    found += [f"no run {path!r}" for path, end in expected.runs.items() if end.is_sure and path not in played.runs]
    for key, value in played.values.items():
        if (want := expected.values.get(key, "nothing")) is not ANY and want != value:
            found.append(f"value {key} is {value}, not {want}")
    sure = [key for key, value in expected.values.items() if value is not ANY]
    return found + [f"value {key} was not published" for key in sure if key not in played.values]


def _run_problems(path: str, run: Run, end: RunEnd) -> list[str]:
    if run.state.value not in end.states:
        why = f" ({wording(str(run.error))})" if run.error else ""
        return [f"run {path!r} is {run.state.value}{why}, not {' or '.join(sorted(end.states))}"]
    result = None if run.result is None else json.loads(run.result)
    error = None if run.error is None else wording(str(run.error))
    found = []
    if end.result is not ANY and result != msgspec.to_builtins(end.result):
        found.append(f"the result of {path!r} is {result}, not {end.result}")
    if end.error is not ANY and error != end.error:
        found.append(f"the error of {path!r} is {error}, not {end.error}")
    return found
