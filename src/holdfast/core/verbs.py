"""Verbs: one table of what a person can do to a run that exists.

The verbs of selections (`hf.runs(…)`), of `hf.sync`, of the command line and the signals are derived from it. The
handle on a run is written by hand, for types and documentation; a test compares it with this table.

This file imports neither the commands nor the rules that it names, so that the command line can list its commands
quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from holdfast.core.states import ENDS, LIVE, RunState

if TYPE_CHECKING:
    from holdfast.core.clock import Micros
    from holdfast.core.commands import Control
    from holdfast.core.model import Run, Wait

    Rule = Callable[[Run, Sequence[Wait], Micros], Run | None]
    """Returns the changed run, or None if nothing changes."""


class StopRequest(StrEnum):
    """How the holder of a run is asked to stop."""

    PAUSE = "pause"
    """At the next standstill. The run is paused then."""
    EVICT = "evict"
    """Now: bodies of steps are cancelled. The run is ready for any worker then."""
    EVICT_THEN_PAUSE = "evict_then_pause"
    """Now: bodies of steps are cancelled. The run is paused then."""


PAUSING = frozenset({StopRequest.PAUSE, StopRequest.EVICT_THEN_PAUSE})
"""Requests after which the run is paused."""


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A verb that changes runs, such as `pause`.

    - `doing` and `done` complete "… 3 runs" and "… run x"
    - `summary` is its line in a list of commands; `about` says what it does to many runs; `help` is the rest of what
      the help of the command says, and `examples` are its arguments
    - `parameters`: what a caller can say besides `by`, with a description. The fields of the command have their types
    - `states`: the states of the runs that a filter selects; `of` describes them
    - `unchanged` says why a run did not change; an ended run "had ended already", unless `applies_to_ends`
    - `is_destructive`: the command line always asks for confirmation
    - `reaches_others`: one run may be changed with another one, a child with its parent
    - `rule`: the name of the rule (`core.rules`) that changes the run, if nothing else changes
    - `event`: the event in the audit, and the signal `run.…`; `asking` is that for a request which the holder of the
      run carries out later. `signal` says when the signal is sent
    """

    name: str
    doing: str
    done: str
    summary: str
    about: str
    help: str
    examples: Sequence[str]
    parameters: Mapping[str, str] = field(default_factory=dict)
    states: frozenset[RunState] = LIVE
    of: str = "live "
    unchanged: str
    applies_to_ends: bool = False
    is_destructive: bool = False
    reaches_others: bool = False
    rule: str = ""
    event: str
    asking: str = ""
    signal: str
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> type[Control[Any]]:
        """The command of the port."""
        from holdfast.core import commands

        found: type[Control[Any]] = getattr(commands, self.name.capitalize())
        return found

    def applied(self, run: Run, waits: Sequence[Wait], now: Micros) -> Run | None:
        """Apply the rule of the verb to a run. Returns None if nothing changes."""
        from holdfast.core import rules

        rule: Rule = getattr(rules, self.rule)
        return rule(run, waits, now)

    def why_unchanged(self, state: RunState) -> str:
        """Return the reason why a run in this state did not change."""
        if state in ENDS and not self.applies_to_ends:
            return "had ended already"
        return self.unchanged.format(state=state.value)


_RUN = "RUN is an id, the beginning of an id, or key:KEY."
_CONFIRM = "On a terminal, the command asks once for confirmation; elsewhere it needs --yes."

_ALL = (
    Verb(
        name="cancel",
        doing="cancelling",
        done="cancelled",
        summary="Cancel runs, and undo what they did.",
        about="End the runs as cancelled. The steps of each are undone first, unless `force`.",
        help=(
            "Each run rolls back (undoes its finished steps) and then ends as cancelled. Anything else that a "
            f"cancelled run still does is not recorded.\n\n{_RUN} {_CONFIRM} The exit code is 6 if a named run had "
            "already ended."
        ),
        examples=(
            '01a1e122 --reason "ordered twice"',
            "--filter state:suspended --filter type:shop.* --dry-run",
            '--filter "tag.shop:x since:2h" --yes',
        ),
        parameters={
            "reason": "Stored with the run, and passed to its parent.",
            "force": "Do not roll back: run no undo functions.",
        },
        unchanged="rolls back already; force ends it without a rollback",
        is_destructive=True,
        event="cancelled",
        signal="a run was cancelled, or exceeded max_run or max_suspend",
    ),
    Verb(
        name="pause",
        doing="pausing",
        done="paused",
        summary="Pause runs until they are resumed.",
        about="Stop the runs until they are resumed. Steps that execute right now are not interrupted.",
        help=(
            "Messages and events that arrive meanwhile wait for them. A step that is executing is not interrupted: its "
            f"run pauses when the step is done.\n\n{_RUN} The exit code is 6 if a named run had ended or was already "
            "paused."
        ),
        examples=('key:order-17 --reason "the bank is closed"', "--filter type:shop.* --yes"),
        parameters={"reason": "Stored with the run; `explain` shows it."},
        states=LIVE - {RunState.PAUSED},
        unchanged="is paused already, or about to be",
        rule="paused",
        event="paused",
        asking="pausing",
        signal="a run was paused",
    ),
    Verb(
        name="resume",
        doing="resuming",
        done="resumed",
        summary="Resume paused runs.",
        about="Let the paused runs continue.",
        help=f"{_RUN} The exit code is 6 if a named run was not paused.",
        examples=("key:order-17", "--filter type:shop.* --dry-run"),
        states=frozenset({RunState.PAUSED}),
        of="paused ",
        unchanged="is not paused",
        rule="resumed",
        event="resumed",
        signal="a paused run continues",
    ),
    Verb(
        name="wake",
        doing="waking",
        done="woken",
        summary="Wake waiting runs now, and retry blocked ones.",
        about="Make suspended runs check their waits now, and retry blocked runs now. It shortens no sleep.",
        help=(
            f"Sleeps and retry delays do not get shorter.\n\n{_RUN} The exit code is 6 if a named run cannot be woken, "
            "because it is held, ready, paused or ended."
        ),
        examples=("key:order-17", '--filter "state:blocked type:shop.*" --dry-run'),
        states=frozenset({RunState.SUSPENDED, RunState.BLOCKED, RunState.ROLLING_BACK}),
        of="waiting ",
        unchanged="is {state}, so there is nothing to wake",
        rule="roused",
        event="woken",
        details={"cause": "wake"},
        signal="a run was made to check its waits now",
    ),
    Verb(
        name="evict",
        doing="evicting",
        done="evicted",
        summary="Take running runs from their workers, for any worker to continue.",
        about=(
            "Make the workers that hold the runs release them. Steps that execute right now are cancelled and executed "
            "again."
        ),
        help=(
            "The worker that holds a run cancels the steps that execute and releases the run when they have ended, at "
            "the latest after its grace period. Nothing is recorded about those steps, and no attempt is counted: any "
            f"worker may continue the run and executes them again.\n\n{_RUN} The exit code is 6 if no worker holds a "
            "named run."
        ),
        examples=("key:order-17", "--filter type:shop.* --dry-run"),
        states=frozenset({RunState.RUNNING, RunState.ROLLING_BACK}),
        of="running ",
        unchanged="is held by no worker, or leaves its worker already",
        rule="evicted",
        event="evicted",
        signal="a worker was asked to release a run at once",
    ),
    Verb(
        name="recover",
        doing="recovering",
        done="recovered",
        summary="Retry failed, cancelled or blocked runs.",
        about=(
            "Retry what failed, cancelled or blocked runs failed at. What succeeded is kept and not executed again.\n\n"
            "Failed children are recovered with their parent, so the selection may contain both, in any order. `force` "
            "also takes runs from workers that hold them."
        ),
        help=(
            "They continue from the point where they failed. Results of successful steps are kept; steps that were "
            "undone are executed again. Failed children are recovered with their parent, so parents and children may "
            f"be named in any order.\n\n{_RUN} The exit code is 6 if only one run is named and it is not failed, "
            "cancelled or blocked."
        ),
        examples=("key:order-17", '--filter "state:failed since:2h" --dry-run'),
        parameters={
            "force": "Also recover a run that a worker holds; the worker loses it.",
            "fail": "Give blocked runs up: their error undoes their steps and fails them.",
        },
        states=frozenset({RunState.FAILED, RunState.CANCELLED, RunState.BLOCKED}),
        of="failed, cancelled or blocked ",
        unchanged="is {state}; only a failed, cancelled or blocked run can be recovered",
        applies_to_ends=True,
        reaches_others=True,
        event="recovered",
        signal="a run retries what it failed at",
    ),
    Verb(
        name="rewind",
        doing="rewinding",
        done="rewound",
        summary="Take runs back to a location, and continue from there.",
        about=(
            "Drop the history of the runs from a location on, and continue from there, even those that had ended.\n\n"
            "Runs that have nothing at the location are skipped. So are runs that a worker holds, unless `force`."
        ),
        help=(
            "The entry at LOCATION and all later entries are dropped. Messages received in the dropped part become "
            "unread, and children started in it are cancelled. A run that has ended is reopened. A flow goes back to "
            "the snapshot at LOCATION, such as @turn/3, or to the one before the entry there. `holdfast history` lists "
            "the locations; the name of a step of a pipeline is one too. For a single run, the command first shows the "
            "entries that would be dropped. With --filter, it skips runs that have nothing at LOCATION.\n\n"
            "The exit code is 6 if a named run did not change, because a worker holds it or it has nothing at LOCATION."
        ),
        examples=(
            "key:order-17 charge --dry-run",
            "01a1e122 01a1e123 charge --yes",
            '--filter "state:failed type:shop.*" charge --dry-run',
        ),
        parameters={
            "location": "The location to go back to.",
            "force": "Also rewind a run that a worker holds; the worker loses it.",
        },
        states=frozenset(RunState),
        of="",
        unchanged="did not change",
        applies_to_ends=True,
        is_destructive=True,
        event="rewound",
        signal="a run continues from an earlier location",
    ),
    Verb(
        name="delete",
        doing="deleting",
        done="deleted",
        summary="Delete runs.",
        about=(
            "Hide the runs at once and remove them a day later. Live runs are cancelled, and nothing is undone.\n\n"
            "Runs that a worker holds are skipped, unless `force`."
        ),
        help=(
            "They disappear at once, and their data is removed a day later. There is no way back. A run that has not "
            "ended is cancelled without a rollback; its children follow their close policy. The key of the run becomes "
            f"free. `holdfast ls deleted:true` lists the run until it is removed.\n\n{_RUN} {_CONFIRM} The exit code "
            "is 6 if a named run was not deleted because a worker holds it."
        ),
        examples=(
            "01a1e122",
            '--filter "type:shop.* state:failed until:2030-01-31" --dry-run',
            "key:order-17 --force --yes",
        ),
        parameters={"force": "Also delete a run that a worker holds; the worker loses it."},
        states=frozenset(RunState),
        of="",
        unchanged="was deleted",
        applies_to_ends=True,
        is_destructive=True,
        event="deleted",
        signal="a run was deleted",
    ),
)

VERBS: Mapping[str, Verb] = {verb.name: verb for verb in _ALL}
"""Every verb that exists for one run and for a selection, by name."""
