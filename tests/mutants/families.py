"""Bugs in the recovery of parents with children."""

from __future__ import annotations

from tests.mutants.mutant import Catch, Edit, Mutant

_RECOVERY = "core/revision.py"

_SIMULATION = Catch("simulation")
_CONTRACT = Catch("contract")

MUTANTS = (
    Mutant(
        name="twins-of-recovered-children",
        breaks="recovering a parent starts no second child beside the first",
        edits=(
            Edit(
                _RECOVERY,
                "            elif child is None and not is_done(entry):\n",
                "            elif not is_done(entry):\n",
            ),
        ),
        caught_by=(_CONTRACT, _SIMULATION),
    ),
    Mutant(
        name="live-child-reopened",
        breaks="a child that is alive is waited for, and not taken from its worker",
        edits=(
            Edit(
                "stores/operations/controls.py",
                "child.state in (RunState.FAILED, RunState.CANCELLED)]",
                "child.state is not RunState.SUCCEEDED]",
            ),
            Edit(
                _RECOVERY,
                "child.state not in (RunState.FAILED, RunState.CANCELLED):",
                "child.state is RunState.SUCCEEDED:",
            ),
        ),
        caught_by=(Catch("contract", "test_another_recover_continues_where_the_first_stopped"),),
    ),
    Mutant(
        name="caught-failure-reopened",
        breaks="a failure of a child that its parent caught stays caught",
        edits=(
            Edit(
                _RECOVERY,
                "(not entry.is_settled or entry.location in self._gone):",
                "not is_done(entry):",
            ),
            Edit(
                _RECOVERY,
                "            is_uncaught = entry.location in at_fault if entry.is_settled else entry.attempts > 0\n",
                "            is_uncaught = True\n",
            ),
        ),
        caught_by=(Catch("contract", "test_a_successful_child_stays_as_it_is_when_an_earlier_step_was_undone"),),
    ),
    Mutant(
        name="handled-failure-is-a-fault",
        breaks="a failure that was being handled when another one came stays caught",
        edits=(
            Edit(
                "core/errors.py",
                "error.__cause__ or (None if is_of_operations else error.__context__)",
                "error.__cause__ or error.__context__",
            ),
        ),
        caught_by=(Catch("recovered children", "test_failures_that_the_parent_caught_stay_caught"),),
    ),
    Mutant(
        name="cancelled-child-reopened",
        breaks="a child that a person cancelled stays cancelled",
        edits=(Edit(_RECOVERY, "child is None or child.id in willed or", "child is None or"),),
        caught_by=(Catch("contract", "test_a_child_that_a_person_cancelled_stays_cancelled"),),
    ),
    Mutant(
        name="forgotten-child-reopened",
        breaks="a child that is not awaited is not recovered with its parent",
        edits=(Edit(_RECOVERY, "if entry.is_settled else entry.attempts > 0\n", "if entry.is_settled else True\n"),),
        caught_by=(Catch("contract", "test_a_child_that_is_not_awaited_stays_as_it_is"),),
    ),
    Mutant(
        name="parent-reopened-before-children",
        breaks="no parent runs while some of its children are still to be reopened",
        edits=(
            Edit(
                "stores/operations/controls.py",
                "    return True if is_complete else None\n",
                "    if not is_complete:\n"
                "        top = Recovery(run, unit.histories.all(run.id))\n"
                "        change = top.revision(_present(unit, top.concerned), set(), now)\n"
                "        writer.write(_place(unit, run, None), _inbox(unit, run), change)\n"
                "    return True if is_complete else None\n",
            ),
        ),
        caught_by=(Catch("contract", "test_children_of_children_count_toward_the_limit_of_a_transaction"),),
    ),
    Mutant(
        name="recovery-without-end",
        breaks="a child that fails again while it is recovered is not reopened by the same request",
        edits=(
            Edit(
                "stores/operations/controls.py",
                "yield from parent.lost(some, willed | again)",
                "yield from parent.lost(some, willed)",
            ),
        ),
        caught_by=(Catch("contract", "test_a_child_that_fails_again_during_a_recovery_is_not_reopened_twice"),),
    ),
    Mutant(
        name="reopened-child-takes-no-slot",
        breaks="reopened children of a map respect its limit",
        edits=(
            Edit("stores/operations/controls.py", "            run, waits = self._seated(run)\n", "            pass\n"),
        ),
        caught_by=(Catch("contract", "test_reopened_children_of_a_map_obey_its_limit"),),
    ),
    Mutant(
        name="reopened-child-tells-again",
        breaks="a parent receives one end of a child",
        edits=(Edit("stores/operations/transitions.py", "    if rules.is_reopened(run):\n", "    if False:\n"),),
        caught_by=(Catch("contract", "test_a_rewound_child_sends_its_end_to_its_parent_once"),),
    ),
    Mutant(
        name="awaited-child-pruned",
        breaks="an awaited child that did not succeed is kept as long as its parent",
        edits=(
            Edit(
                "core/rules.py",
                "knows(recorded, child) and recorded.attempts > 0\n",
                "knows(recorded, child) and recorded.attempts > 9\n",
            ),
        ),
        caught_by=(Catch("contract", "test_a_child_kept_for_its_parent_follows_the_current_default_retention"),),
    ),
    Mutant(
        name="await-of-a-handle-unnoticed",
        breaks="a child that was only started counts as awaited when its handle is",
        edits=(
            Edit(
                "runner/code_requests.py",
                "            if not recorded.attempts and isinstance(operation, ChildEnd):\n",
                "            if False:\n",
            ),
        ),
        caught_by=(
            Catch(
                "recovered children",
                "test_a_child_awaited_only_by_its_handle_is_reopened_and_one_that_is_not_awaited_is_not",
            ),
        ),
    ),
    Mutant(
        name="key-not-taken-again",
        breaks="a reopened run takes its key again, or is refused",
        edits=(Edit(_RECOVERY, "    return lost[-1] if lost and run.key is None else None\n", "    return None\n"),),
        caught_by=(Catch("contract", "test_a_reopened_run_takes_its_key_again"),),
    ),
)
