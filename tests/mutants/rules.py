"""Bugs in the rules and in the memory store, which is the model of all stores."""

# ruff: noqa: E501 - what is replaced stands here as it stands in the code

from __future__ import annotations

from tests.mutants.mutant import Catch, Edit, Mutant

_RULES = "core/rules.py"
_CHECKPOINTS = "stores/operations/checkpoints.py"
_CLAIMS = "stores/operations/leases.py"
_CLAIM_ORDER = "core/claim_order.py"
_TRANSITIONS = "stores/operations/transitions.py"

_ARRIVALS = "stores/operations/arrivals.py"
_STARTS = "stores/operations/starts.py"
_SCHEDULES = "stores/operations/schedules.py"
_LIMITS = "stores/operations/limits.py"
_MODEL_CLAIMS = "stores/memory/claims.py"
_RUN_INDEX = "stores/memory/run_index.py"

_SIMULATION = Catch("simulation")
_CONTRACT = Catch("contract")

_TOKEN_LOOKED_AT_ONCE_MORE = Edit(
    _CHECKPOINTS,
    "    if run.token != checkpoint.token:  # it cancelled itself",
    "    if False:  # it cancelled itself",
)

FENCES = (
    Mutant(
        name="drop-from-a-held-run",
        breaks="a message is dropped or received, and never both",
        edits=(
            Edit(
                "stores/operations/controls.py",
                '    if run.is_held:\n        raise RunBusy(\n            f"worker {run.worker} holds run {run.id} and may',
                '    if False:\n        raise RunBusy(\n            f"worker {run.worker} holds run {run.id} and may',
            ),
        ),
        caught_by=(Catch("contract", "test_dropping_a_message_of_a_held_run_is_refused"),),
    ),
    Mutant(
        name="drop-without-receipt",
        breaks="a dropped message does not come back",
        edits=(
            Edit(
                "stores/operations/controls.py",
                "    unit.inboxes.keep_receipts(run.id, {request.message_id: now})\n",
                "",
            ),
        ),
        caught_by=(Catch("contract", "test_a_message_is_dropped_and_not_brought_back_by_a_repeated_send"),),
    ),
    Mutant(
        name="checkpoint-without-fence",
        breaks="a worker that lost its lease records nothing",
        edits=(
            Edit(_RULES, "if run is None or run.token != checkpoint.token:", "if run is None:"),
            _TOKEN_LOOKED_AT_ONCE_MORE,
        ),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="suspend-without-fence",
        breaks="a worker that lost its lease releases nothing",
        edits=(
            Edit(
                _RULES,
                "if run is None or run.token != checkpoint.token:",
                "if run is None or (run.token != checkpoint.token and not isinstance(checkpoint.next, Suspend)):",
            ),
            _TOKEN_LOOKED_AT_ONCE_MORE,
        ),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="release-without-fence",
        breaks="a worker that lost its lease gives nothing back",
        edits=(
            Edit(
                _RULES,
                "if run is None or run.token != checkpoint.token:",
                "if run is None or (run.token != checkpoint.token and not isinstance(checkpoint.next, Release)):",
            ),
            _TOKEN_LOOKED_AT_ONCE_MORE,
        ),
        caught_by=(Catch("contract", "test_a_checkpoint_after_another_claim_writes_nothing"),),
    ),
    Mutant(
        name="finish-without-fence",
        breaks="a worker that lost its lease ends nothing",
        edits=(
            Edit(
                _RULES,
                "if run is None or run.token != checkpoint.token:",
                "if run is None or (run.token != checkpoint.token and not isinstance(checkpoint.next, Finish)):",
            ),
            _TOKEN_LOOKED_AT_ONCE_MORE,
        ),
        caught_by=(Catch("contract", "test_a_checkpoint_with_a_wrong_token_or_of_an_unknown_run_is_lost"),),
    ),
    Mutant(
        name="heartbeat-without-fence",
        breaks="a worker that lost its lease does not renew the lease of another",
        edits=(
            Edit(
                "stores/operations/leases.py",
                "if run is None or run.token != holding.token or not run.is_held:",
                "if run is None or not run.is_held:",
            ),
        ),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="claim-keeps-the-token",
        breaks="each claim fences off the previous holder of the run",
        edits=(
            Edit(
                _RULES,
                "        token=run.token + 1,\n        ready_at=now + by.lease,",
                "        token=max(1, run.token),\n        ready_at=now + by.lease,",
            ),
        ),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="cancel-keeps-the-token",
        breaks="a cancelled run stays cancelled despite later writes of its holder",
        edits=(
            Edit(
                _RULES,
                "_ended(run, RunState.CANCELLED, now), token=run.token + 1)",
                "_ended(run, RunState.CANCELLED, now), token=run.token)",
            ),
            Edit(
                _RULES,
                "freed = replace(run, token=run.token + 1, stop=None)",
                "freed = replace(run, stop=None)",
            ),
        ),
        caught_by=(Catch("contract", "test_parent_and_child_that_end_in_one_batch_each_have_one_end"),),
    ),
    Mutant(
        name="rewind-keeps-the-token",
        breaks="the previous holder cannot write a run that was rewound",
        edits=(
            Edit(
                _RULES,
                "        run,\n        token=run.token + 1,\n        rollback=None,",
                "        run,\n        rollback=None,",
            ),
        ),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="claim-before-the-lease-ends",
        breaks="two workers never hold one run",
        edits=(
            Edit(_RUN_INDEX, "if lane[0][0] <= now:", "if name[2] is not None or lane[0][0] <= now:"),
            Edit(
                _RUN_INDEX,
                "while lane and lane[0][0] <= now:",
                "while lane and (name[2] is not None or lane[0][0] <= now):",
            ),
        ),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="memory-index-misses-a-change",
        breaks="a run that is ready is claimed",
        edits=(Edit(_RUN_INDEX, "before.ready_at == ready_at and lane_of(before) == name", "lane_of(before) == name"),),
        caught_by=(Catch("index of runs", "test_runs_are_due_in_the_order_of_their_ready_times"),),
    ),
    Mutant(
        name="memory-index-has-a-run-twice",
        breaks="a claim leases a run once",
        edits=(
            Edit(_RUN_INDEX, "self._current(name, place) if place != last else None", "self._current(name, place)"),
        ),
        caught_by=(Catch("index of runs", "test_a_run_that_came_back_to_its_place_is_due_once"),),
    ),
)

ENDS = (
    Mutant(
        name="cancel-overwrites-success",
        breaks="a run ends once",
        edits=(
            Edit(
                _TRANSITIONS,
                "    if run is None or run.state.is_end or (run.rollback",
                "    if run is None or run.state is RunState.CANCELLED or (run.rollback",
            ),
            Edit(
                _TRANSITIONS,
                "from holdfast.stores.operations import arrivals, limits",
                "from holdfast.core.states import RunState\nfrom holdfast.stores.operations import arrivals, limits",
            ),
            Edit(
                _RULES,
                "    return replace(\n        run,\n        state=check_move(run.state, state),\n        worker=None,\n        claim_id=None,\n        ready_at=None,",
                "    return replace(\n        run,\n        state=state,\n        worker=None,\n        claim_id=None,\n        ready_at=None,",
            ),
        ),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="entry-overwritten",
        breaks="one result for each location, which never changes",
        edits=(
            Edit(
                _RULES,
                "return not recorded.is_settled and (entry.is_settled or entry.attempts > recorded.attempts)",
                "return True",
            ),
        ),
        caught_by=(Catch("contract", "test_a_settled_entry_never_changes"),),
    ),
    Mutant(
        name="crash-counter-forgotten",
        breaks="a run that kills its workers is blocked after three",
        edits=(Edit(_RULES, "crashes=run.crashes + is_crash,", "crashes=int(is_crash),"),),
        caught_by=(Catch("contract", "test_crashes_add_up_until_they_are_charged"),),
    ),
    Mutant(
        name="crash-not-noticed",
        breaks="a worker that died with a run is counted",
        edits=(Edit(_RULES, "    is_crash = run.is_held\n", "    is_crash = False\n"),),
        caught_by=(Catch("contract", "test_an_expired_lease_goes_to_another_worker_and_counts_a_crash"),),
    ),
    Mutant(
        name="close-policy-ignored",
        breaks="children follow their close policy when their parent ends",
        edits=(Edit("stores/memory/unit_of_work.py", '.run.on_close == "cancel"]', '.run.on_close == "never"]'),),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="live-run-purged",
        breaks="only ended runs are pruned",
        edits=(
            Edit(
                "stores/memory/pruning.py",
                "        ended = [run for run in runs if run.purge_at is None and run.finished_at is not None]\n"
                "        by_type = [run for run in ended if (run.finished_at or 0) <=",
                "        ended = [run for run in runs if run.purge_at is None]\n"
                "        by_type = [run for run in ended if run.updated_at <=",
            ),
            Edit(
                "core/retention.py",
                "    if is_by_type and (run.finished_at is None or run.finished_at > now - retention):",
                "    if is_by_type and run.updated_at > now - retention:",
            ),
        ),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="audit-forgets-who-asked",
        breaks="the audit names the actor of a control request",
        edits=(
            Edit(
                "core/audit.py",
                "    return {**data, **({BY: by} if by else {}), REQUEST: request_id}\n",
                "    return {**data, REQUEST: request_id}\n",
            ),
        ),
        caught_by=(Catch("contract", "test_a_control_is_audited_with_its_actor"),),
    ),
    Mutant(
        name="wake-forgets-who-sent",
        breaks="the audit names the sender of the message that woke a run",
        edits=(
            Edit(
                "stores/operations/arrivals.py",
                "rules.message_arrival(message, run, now), now, by=by)\n",
                "rules.message_arrival(message, run, now), now)\n",
            ),
        ),
        caught_by=(Catch("contract", "test_a_run_that_a_message_wakes_names_the_sender"),),
    ),
    Mutant(
        name="audit-fact-missing",
        breaks="the audit agrees with what happened",
        edits=(
            Edit(
                _TRANSITIONS,
                "    unit.audit.note(fact or audit.of_move(before, after, now))\n",
                "    unit.audit.note(fact)\n",
            ),
        ),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
)

ARRIVALS = (
    Mutant(
        name="suspend-without-looking",
        breaks="no arrival is missed while a run is being suspended",
        edits=(Edit(_RULES, "if run.arrivals > checkpoint.seen:", "if False:"),),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="child-tells-only-who-waits",
        breaks="the end of a child reaches its parent, whenever the parent starts to wait",
        edits=(
            Edit(
                _TRANSITIONS,
                "    if parent is None or parent.state.is_end:\n",
                "    if parent is None or parent.state.is_end or not unit.waits.of(parent.id):  # looked at first, and written to later\n",
            ),
        ),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="kept-events-not-looked-at",
        breaks="an event is not missed because it came before the wait",
        edits=(Edit(_CHECKPOINTS, "        arrivals.collect_missed(unit, run, checkpoint.waits, now)\n", ""),),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="receipt-forgotten",
        breaks="a message that is sent again is not a second message",
        edits=(Edit(_ARRIVALS, "            unit.inboxes.keep_receipts(run_id, {ref: now})\n", "            pass\n"),),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="message-left-in-the-inbox",
        breaks="a message is received once",
        edits=(
            Edit(_CHECKPOINTS, "        arrivals.consume(unit, run.id, checkpoint.consumed, now)\n", "        pass\n"),
        ),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="wake-forgotten",
        breaks="an arrival wakes the run that waits for it",
        edits=(
            Edit(_RULES, "        return woken(run, now)\n    return run\n", "        return run\n    return run\n"),
        ),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="message-to-the-dead",
        breaks="sending to an ended run raises an error",
        edits=(
            Edit(
                _ARRIVALS,
                '        return Sent(run_id=run_id, refused="finished")\n',
                "        return Sent(run_id=run_id)\n",
            ),
        ),
        caught_by=(Catch("contract", "test_a_message_that_was_dropped_is_noted_once_for_each"),),
    ),
    Mutant(
        name="queue-event-not-given-back",
        breaks="a queue event that a run does not take goes to the next",
        edits=(
            Edit(
                _CHECKPOINTS,
                "            arrivals.give_back(unit, run, checkpoint.waits, now)\n",
                "            pass\n",
            ),
        ),
        caught_by=(Catch("contract", "test_an_event_that_was_given_back_returns_to_its_place"),),
    ),
    Mutant(
        name="wake-before-the-start",
        breaks="no run starts before its time",
        edits=(
            Edit(
                _RULES,
                "    return replace(run, ready_at=max(now, run.start_at), updated_at=now)\n\n\ndef message_arrival",
                "    return replace(run, ready_at=now, updated_at=now)\n\n\ndef message_arrival",
            ),
        ),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
)

STARTS = (
    Mutant(
        name="key-ignored",
        breaks="one key makes one run",
        edits=(Edit(_STARTS, "        if intent.key is None:\n", "        if True:\n"),),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="repeated-create-begins-anew",
        breaks="a start whose answer was lost can be repeated",
        edits=(
            Edit(
                _STARTS,
                "    known = unit.runs.existing([intent.id for intent in intents])\n    first",
                "    known: set[str] = set()\n    first",
            ),
        ),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="repeated-claim-loses-runs",
        breaks="a claim whose answer was lost can be repeated",
        edits=(
            Edit(
                _MODEL_CLAIMS,
                "    if request.is_repeat and (won := _won_before(unit.state, request)):",
                "    if False and (won := _won_before(unit.state, request)):",
            ),
        ),
        caught_by=(Catch("contract", "test_a_repeated_claim_gets_the_same_leases_and_takes_no_more_slots"),),
    ),
    Mutant(
        name="plan-of-the-first-offer",
        breaks="the plan of a pipeline is that of the worker that offered it last",
        edits=(Edit("core/model.py", "            plan=offer.plan,", "            plan=self.plan or offer.plan,"),),
        caught_by=(Catch("contract", "test_an_offer_records_the_plan_of_a_pipeline"),),
    ),
    Mutant(
        name="priority-ignored",
        breaks="runs are claimed by priority, then by when they were ready",
        edits=(
            Edit(
                _CLAIMS,
                "lanes.setdefault(run.priority, {})",
                "lanes.setdefault(0, {})",
            ),
        ),
        caught_by=(Catch("contract on dictionaries", "test_order_does_not_depend_on_the_order_of_types"),),
    ),
    Mutant(
        name="rank-ignored",
        breaks="a backlog of new starts never delays work in progress",
        edits=(
            Edit(_CLAIM_ORDER, "    if run.token > 0:\n        return BEGUN\n    return NEW if", "    return NEW if"),
        ),
        caught_by=(Catch("contract", "test_a_message_wakes_a_run_that_goes_before_a_backlog_of_starts"),),
    ),
    Mutant(
        name="shares-ignored",
        breaks="no rank of runs starves",
        edits=(Edit(_CLAIM_ORDER, "shares.since_new >= SHARE - 1", "False"),),
        caught_by=(Catch("contract", "test_one_in_eight_is_a_new_start_and_one_in_eight_of_the_others_a_child"),),
    ),
    Mutant(
        name="limit-queue-by-time",
        breaks="parked runs get the slots of a limit in claim order",
        edits=(
            Edit(
                "core/limits.py",
                "    return run.priority * RANKS + rank_of(run)\n",
                "    return run.priority * RANKS\n",
            ),
        ),
        caught_by=(Catch("contract", "test_parked_runs_get_the_slots_of_a_limit_in_claim_order"),),
    ),
    Mutant(
        name="limit-shares-forgotten",
        breaks="no rank of runs that wait for a slot starves",
        edits=(Edit(_LIMITS, "            turn.remember(unit, rule)\n            given", "            given"),),
        caught_by=(Catch("contract", "test_the_slots_of_a_limit_are_shared_by_rank"),),
    ),
    Mutant(
        name="suspects-together",
        breaks="runs that have crashed twice do not crash each other",
        edits=(Edit(_CLAIMS, "            may_suspect = may_suspect and not is_suspect\n", ""),),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
)

LIMITS = (
    Mutant(
        name="limit-counted-after-the-claim",
        breaks="the held runs of a type never exceed its limit",
        edits=(Edit(_LIMITS, "        if taken >= count:\n", "        if taken > count:\n"),),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="siblings-not-counted",
        breaks="the running children of a map never exceed its limit, even if some are started again",
        edits=(Edit(_RULES, "        is_parked = used >= intent.limit\n", "        is_parked = False\n"),),
        caught_by=(Catch("contract", "test_new_children_get_only_the_slots_that_their_siblings_leave_free"),),
    ),
    Mutant(
        name="slot-not-handed-on",
        breaks="a slot that is given back wakes the next waiting run",
        edits=(Edit(_LIMITS, "    _serve(unit, rule, {*slots, *_shared(rule)}, now)\n\n\ndef apply", "\n\ndef apply"),),
        caught_by=(Catch("contract", "test_a_lowered_limit_counts_runs_that_are_held"),),
    ),
    Mutant(
        name="rate-not-used-up",
        breaks="the starts of a type never exceed its rate",
        edits=(
            Edit(
                _LIMITS,
                "    unit.limits.keep_window(rule.name, limits.with_one_more(unit.limits.window(rule.name), rule.rate, now))\n",
                "",
            ),
        ),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
    Mutant(
        name="slot-fired-twice",
        breaks="a slot of a schedule creates one run, however many workers fire it",
        edits=(
            Edit(
                _SCHEDULES,
                "        if unit.schedules.get(firing.schedule.name) != firing.schedule:\n",
                "        if unit.schedules.get(firing.schedule.name) is None:\n",
            ),
            Edit(
                "core/model.py",
                'derived_id(f"schedule {self.name}@{slot}", slot)',
                'derived_id(f"schedule {self.name}@{slot}@{self.last_run_id}", slot)',
            ),
        ),
        caught_by=(Catch("contract", "test_firing_a_slot_again_makes_no_second_run"),),
    ),
    Mutant(
        name="schedule-overlaps",
        breaks="a schedule that must not overlap does not",
        edits=(
            Edit(
                _SCHEDULES,
                "    return [run.id for run in runs if run is not None and not run.state.is_end]",
                "    return []",
            ),
        ),
        caught_by=(_SIMULATION, _CONTRACT),
    ),
)

MUTANTS = (*FENCES, *ENDS, *ARRIVALS, *STARTS, *LIMITS)
