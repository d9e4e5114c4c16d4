"""Bugs in flows: their turns, their requests, and how workers find their programs."""

from __future__ import annotations

from tests.mutants.mutant import Catch, Edit, Mutant

_TURN = "runner/flow_turn.py"
_REQUESTS = "runner/flow_requests.py"
_LIBRARY = "worker/worker_types.py"


def _flows(words: str) -> tuple[Catch, ...]:
    return (Catch("flows", words),)


MUTANTS = (
    Mutant(
        name="flow-facts-without-snapshot",
        breaks="a flow never loses a fact: the snapshot that includes it is written with it",
        edits=(Edit(_TURN, "is not None and self._is_moved:\n", "is not None and not self._turn_number:\n"),),
        caught_by=_flows("test_rewind_to_a_kept_snapshot_continues_from_there"),
    ),
    Mutant(
        name="flow-snapshot-without-facts",
        breaks="a flow receives each message once: what its snapshot includes is read",
        edits=(Edit("runner/run_turn.py", "        self.pending.consume(one.number for one in taken)\n", ""),),
        caught_by=_flows("test_continue_as_new_keeps_unread_messages_and_begins_again"),
    ),
    Mutant(
        name="flow-version-by-newest",
        breaks="a run keeps the version of its flow that was the newest one when it was created",
        edits=(
            Edit(
                "core/flow_definitions.py",
                "    return until[-1] if until else next(iter(in_order), None)\n",
                "    return in_order[-1] if until else next(iter(in_order), None)\n",
            ),
        ),
        caught_by=_flows("test_runs_keep_the_version_that_was_newest_when_they_were_created"),
    ),
    Mutant(
        name="flow-block-consumes-arrivals",
        breaks="a blocked flow keeps what it was fed since its snapshot",
        edits=(Edit(_TURN, "            self.pending.drop()\n", "            pass\n"),),
        caught_by=_flows("test_flow_that_can_never_continue_is_blocked_and_keeps_its_arrivals"),
    ),
    Mutant(
        name="flow-recovered-with-twins",
        breaks="a recovered flow takes the children of the failed turn and starts no second ones",
        edits=(
            Edit(_REQUESTS, "        if self._adopted.pop(location, None) is not None:\n", "        if False:\n"),
            Edit(_REQUESTS, "        return self._adopted.get(location) or derived_id(", "        return derived_id("),
        ),
        caught_by=_flows("test_recover_takes_a_child_again_that_the_failed_turn_started"),
    ),
    Mutant(
        name="flow-adopted-end-lost",
        breaks="a recovered flow receives the end of a child that ended before the flow asks for it again",
        edits=(Edit(_TURN, "self.inbox.unasked_ends() if end.name not in adopted]", "self.inbox.unasked_ends()]"),),
        caught_by=_flows("test_recovered_flow_takes_a_child_that_the_failed_turn_started_and_that_has_ended"),
    ),
    Mutant(
        name="flow-fault-not-named",
        breaks="recovering a flow reopens the child whose failure ended it",
        edits=(Edit(_TURN, "locations=self._faults(machine)", "locations=()"),),
        caught_by=_flows("test_recover_reopens_the_failed_child_and_starts_no_twin"),
    ),
    Mutant(
        name="flow-earlier-fault-not-reopened",
        breaks="recovering a flow reopens the child that it awaited, also if the child failed in an earlier turn",
        edits=(Edit(_TURN, "if reopened := reopened_in(flow):", "if (reopened := reopened_in(flow)) and False:"),),
        caught_by=_flows("test_recover_reopens_a_child_whose_failure_came_in_an_earlier_turn"),
    ),
    Mutant(
        name="flow-wait-forgotten",
        breaks="a flow that continues from its snapshot waits for everything that it waited for",
        edits=(
            Edit(
                _REQUESTS,
                "            if request.handle not in unsent:\n",
                "            if request.handle not in unsent and not isinstance(request, WaitEvent):\n",
            ),
        ),
        caught_by=_flows("test_recover_feeds_an_event_of_the_failed_turn_again"),
    ),
    Mutant(
        name="flow-suspended-while-overdue",
        breaks="a wait for an event that is overdue costs one checkpoint, and not claims without end",
        edits=(Edit(_TURN, "not has_due and not self.is_overdue,", "(not has_due or self.is_overdue),"),),
        caught_by=_flows("test_fan_out_events_reach_every_flow_once"),
    ),
    Mutant(
        name="flow-deadline-not-moved",
        breaks="after a rewind a sleep has the time that it had left",
        edits=(Edit(_REQUESTS, "asked.deadline + put_off", "asked.deadline"),),
        caught_by=_flows("test_rewound_sleep_has_the_time_that_it_had_left"),
    ),
    Mutant(
        name="flow-program-broken-for-good",
        breaks="a run whose program could not be read continues after the repair",
        edits=(Edit(_LIBRARY, "            if self._clock.now() < at + BROKEN_PATIENCE:\n", "            if at:\n"),),
        caught_by=_flows("test_unreadable_program_blocks_the_run_until_it_is_repaired"),
    ),
    Mutant(
        name="flow-version-read-too-early",
        breaks="a worker knows every version that was registered before a run when it begins the run",
        edits=(
            Edit(
                _LIBRARY,
                "self._refreshed_at <= run.created_at and run.id not in self._refreshed_for:",
                "not self._registrations.get(run.type):",
            ),
        ),
        caught_by=_flows("test_registration_and_start_at_the_same_instant_take_the_newest_version"),
    ),
    Mutant(
        name="new-types-not-asked-for",
        breaks="a worker claims runs of a type that it found while a claim failed",
        edits=(Edit("worker/claimer.py", "        if request.types != self._types():\n", "        if False:\n"),),
        caught_by=_flows("test_worker_asks_for_a_flow_that_it_found_while_a_claim_failed"),
    ),
)
