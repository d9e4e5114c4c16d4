"""Bugs in a turn of a run: replay, and the order in which workflow code gets results."""

# ruff: noqa: E501 - what is replaced stands here as it stands in the code

from __future__ import annotations

from tests.mutants.mutant import Catch, Edit, Mutant

_REQUESTS = "runner/code_requests.py"
_TURN = "runner/turn.py"
_ANY_TURN = "runner/run_turn.py"
_INBOX = "runner/inbox.py"
_HISTORY = "runner/history.py"
_ROLLBACK = "runner/rollback.py"
_BRANCHES = "runner/branches.py"

_SIMULATION = Catch("simulation")
_PROGRAMS = Catch("random programs")
_RUNS = Catch("unit tests of runs")

REPLAY = (
    Mutant(
        name="none-is-missing",
        breaks="a step that returned None is done",
        edits=(
            Edit(
                _REQUESTS,
                "is_recorded = recorded is not None and recorded.is_settled",
                'is_recorded = recorded is not None and recorded.is_settled and recorded.result != "null"',
            ),
        ),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
    Mutant(
        name="replay-by-location",
        breaks="branches interleave on replay as in the original turn",
        edits=(
            Edit(
                _HISTORY,
                "(recorded.position, operation.serial, operation, recorded)",
                "(recorded.location, operation.serial, operation, recorded)",
            ),
        ),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
    Mutant(
        name="failure-told-as-another",
        breaks="a failure is the same on every replay",
        edits=(
            Edit(
                _HISTORY,
                "        return operation, entry\n",
                "        error = entry.error and replace(entry.error, message='another')\n"
                "        return operation, replace(entry, error=error)\n",
            ),
            Edit(
                _HISTORY, "from holdfast.core.errors", "from msgspec.structs import replace\nfrom holdfast.core.errors"
            ),
        ),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
    Mutant(
        name="cancel-swallowed",
        breaks="a branch that is cancelled ends",
        edits=(
            Edit(
                _REQUESTS,
                "            self.withdraw(operation)\n            raise\n",
                "            self.withdraw(operation)\n            return None\n",
            ),
        ),
        caught_by=(Catch("unit tests of runs", "test_a_cancelled_branch_gets_the_error_where_it_waits"),),
    ),
    Mutant(
        name="tasks-hash-by-address",
        breaks="sets of tasks have the same order on every replay",
        edits=(
            Edit(
                "runner/loop.py",
                "    def __hash__(self) -> int:\n        return self.serial\n",
                "    def __hash__(self) -> int:\n        return object.__hash__(self)\n",
            ),
        ),
        caught_by=(Catch("unit tests of runs", "test_the_sets_of_wait_iterate_in_order_of_creation"),),
    ),
    Mutant(
        name="chance-differs",
        breaks="random numbers are the same on every replay",
        edits=(Edit("runner/context.py", 'Random(f"{run.options.seed or run.id}:', 'Random(f"{run.token}:{run.id}:'),),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
    Mutant(
        name="now-is-the-clock",
        breaks="the time that code sees is the same on every replay",
        edits=(
            Edit(
                "runner/context.py",
                "        return moment(self._requests.stamp)\n",
                "        return moment(time.time_ns() // 1_000)\n",
            ),
            Edit(
                "runner/context.py",
                "from functools import cached_property\n",
                "import time\nfrom functools import cached_property\n",
            ),
        ),
        caught_by=(
            Catch(
                "unit tests of runs",
                "test_t6_the_time_is_the_stamp_of_the_last_fact_and_before_the_first_that_of_the_first_claim",
            ),
        ),
    ),
    Mutant(
        name="divergence-unnoticed",
        breaks="code that does not fit its history is blocked",
        edits=(
            Edit(_TURN, "if history.unreached or not self._open.by_location:", "if not self._open.by_location:"),
            Edit(_TURN, "        if self._history.unreached:\n", "        if False:\n"),
        ),
        caught_by=(Catch("unit tests of runs", "test_nothing_is_pruned_where_the_code_skipped_an_entry"),),
    ),
    Mutant(
        name="lax-by-default",
        breaks="code that does not fit its history executes nothing",
        edits=(
            Edit(
                "runner/registry.py",
                "strict: bool = True,\n        block_on: ErrorKinds = SLIPS,\n    ) -> Any:",
                "strict: bool = False,\n        block_on: ErrorKinds = SLIPS,\n    ) -> Any:",
            ),
            Edit(
                "runner/registry.py",
                "strict: bool = True,\n        block_on: ErrorKinds = SLIPS,\n    ) -> None:",
                "strict: bool = False,\n        block_on: ErrorKinds = SLIPS,\n    ) -> None:",
            ),
        ),
        caught_by=(
            Catch(
                "unit tests of runs", "test_t3_code_that_cancels_an_operation_with_a_recorded_result_executes_nothing"
            ),
        ),
    ),
    Mutant(
        name="a-slip-fails-the-run",
        breaks="a mistake in workflow code undoes nothing",
        edits=(Edit(_TURN, "is_slip(error, self.definition.block_on)", "is_slip(error, ())"),),
        caught_by=(Catch("slips", "test_a_slip_blocks_the_run_and_undoes_nothing"),),
    ),
    Mutant(
        name="history-not-followed",
        breaks="code that does not fit its history executes nothing",
        edits=(
            Edit(
                _HISTORY,
                "self.must_follow = is_strict and bool(self._unfed or self.unreached or self._tried)",
                "self.must_follow = False",
            ),
        ),
        caught_by=(_RUNS, _SIMULATION),
    ),
    Mutant(
        name="order-not-followed",
        breaks="steps that changed their order do not pass",
        edits=(
            Edit(
                _HISTORY,
                "if missed is not None and missed is not entry:",
                "if missed is not None and missed is None:",
            ),
        ),
        caught_by=(
            Catch("unit tests of runs", "test_operations_requested_but_not_fed_before_a_divergence_are_not_known"),
        ),
    ),
    Mutant(
        name="marks-out-of-turn",
        breaks="keep and every of a loop may change while it runs",
        edits=(
            Edit(
                "runner/looping.py",
                "(number - 1) % self._every == 0 and not self._requests.has_ahead(self._location)",
                "(number - 1) % self._every == 0",
            ),
        ),
        caught_by=(
            Catch(
                "unit tests of runs",
                "test_t3_a_loop_that_marks_elsewhere_now_adds_no_mark_before_the_end_of_its_history",
            ),
        ),
    ),
    Mutant(
        name="undo-by-what-was-asked",
        breaks="code that diverges before a step undoes nothing of it",
        edits=(
            Edit(
                "runner/dry_run.py",
                "DryRun(fit, summary, report, turn.fed)",
                "DryRun(fit, summary, report, turn.fed | turn._open.by_location)",
            ),
            Edit(
                "runner/dry_run.py",
                "DryRun(fit, misfit.what, misfit.report, turn.fed, misfit)",
                "DryRun(fit, misfit.what, misfit.report, turn.fed | turn._open.by_location, misfit)",
            ),
        ),
        caught_by=(Catch("unit tests of runs", "test_fed_operations_are_known_with_their_functions"),),
    ),
    Mutant(
        name="block-drops-results",
        breaks="a blocked run does not execute its last step again",
        edits=(
            Edit(
                _ANY_TURN,
                "        self.pending.drop_requests()\n",
                "        self.pending.drop()\n",
            ),
        ),
        caught_by=(_RUNS, _SIMULATION),
    ),
    Mutant(
        name="block-keeps-requests",
        breaks="a block commits no request of the code after its last fact",
        edits=(Edit(_ANY_TURN, "        self.pending.drop_requests()\n", ""),),
        caught_by=(_RUNS, _SIMULATION),
    ),
    Mutant(
        name="an-awaited-child-counts-as-a-fact",
        breaks="a block commits no request of the code after its last fact",
        edits=(Edit(_REQUESTS, "self._pending.amend(awaited)", "self._pending.add(awaited, is_lazy=True)"),),
        caught_by=(Catch("blocked results", "awaited_a_child"),),
    ),
    Mutant(
        name="key-of-a-body-changes",
        breaks="a body has the same idempotency key on every attempt",
        edits=(
            Edit(
                "runner/step_info.py",
                'key = f"{self.run_id}:{self.generation}:{self.location}"',
                'key = f"{self.run_id}:{self.generation}:{self.location}:{self.attempt}"',
            ),
        ),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
    Mutant(
        name="key-outlives-undo",
        breaks="a step that was undone is executed again under a new idempotency key",
        edits=(
            Edit(_REQUESTS, "        if self._rounds and isinstance(operation, StepCall):\n", "        if False:\n"),
        ),
        caught_by=(Catch("rounds", "test_the_next_generation_starts_with_the_first_round"),),
    ),
    Mutant(
        name="undo-key-outlives-undo",
        breaks="an undo of the second round has another idempotency key than the first one",
        edits=(Edit(_REQUESTS, "operation.location.removeprefix(UNDO_PREFIX), 0)", "operation.location, 0)"),),
        caught_by=(Catch("rounds", "test_rounds_outlive_a_replay_and_the_pruning_of_a_loop"),),
    ),
    Mutant(
        name="rounds-begin-anew",
        breaks="rounds count all completed undos of a generation",
        edits=(Edit("core/entries.py", "    rounds = rounds_in(entry)\n", "    rounds = rounds_in(None)\n"),),
        caught_by=(Catch("contract", "test_completed_undos_are_counted_in_rounds"),),
    ),
    Mutant(
        name="child-forgotten-on-replay",
        breaks="a parent that is replayed finds the child it has started",
        edits=(
            Edit(
                "runner/children.py",
                "        if recorded is not None and recorded.ref is not None:\n            self.id = recorded.ref\n",
                "",
            ),
        ),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
)

TOLD = (
    Mutant(
        name="timer-early",
        breaks="no timer fires before its time",
        edits=(
            Edit(
                _ANY_TURN,
                "        if not self.inbox.has_due(now):\n",
                "        if not self.inbox.has_due(now + 1_000):\n",
            ),
        ),
        caught_by=(
            Catch("unit tests of runs", "test_t6_a_deadline_follows_from_the_time_of_its_call_and_needs_no_record"),
        ),
    ),
    Mutant(
        name="messages-last-first",
        breaks="messages of a name come in order",
        edits=(
            Edit(
                _INBOX,
                "            for arrival in self._arrivals.values():\n                if self._fits(arrival, operation):\n                    self._push",
                "            for arrival in reversed(self._arrivals.values()):\n                if self._fits(arrival, operation):\n                    self._push",
            ),
        ),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
    Mutant(
        name="message-not-consumed",
        breaks="a message is received once",
        edits=(Edit(_ANY_TURN, "        self.pending.consume(one.number for one in taken)\n", ""),),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
    Mutant(
        name="event-had-twice",
        breaks="a run gets each event once",
        edits=(
            Edit(_INBOX, "        self._had[topic] = max(number, self.had(topic))\n", "        del topic, number\n"),
        ),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
    Mutant(
        name="arrival-beats-the-deadline",
        breaks="the earlier of an arrival and a deadline wins",
        edits=(
            Edit(
                _INBOX,
                "heapq.heappush(self._due, (at, arrival is None, order, self._pushed, arrival, operation))",
                "heapq.heappush(self._due, (at if arrival is None else 0, arrival is None, order, self._pushed, arrival, operation))",
            ),
        ),
        caught_by=(Catch("unit tests of runs", "test_t2_at_one_instant_an_arrival_goes_before_a_deadline"),),
    ),
    Mutant(
        name="abandoned-wait-swallows",
        breaks="a withdrawn wait takes nothing that comes later",
        edits=(Edit(_INBOX, "        self.awaited.pop(operation.serial, None)\n        if len", "        if len"),),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
    Mutant(
        name="step-not-written-by-itself",
        breaks="once recorded, a body never runs again",
        edits=(
            Edit(
                _TURN,
                "        self.pending.add(entry, is_lazy=call.options.ephemeral)\n",
                "        self.pending.add(entry, is_lazy=True)\n",
            ),
        ),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
)

ROLLBACK = (
    Mutant(
        name="undo-by-start",
        breaks="a rollback undoes steps in reverse order",
        edits=(
            Edit(
                _ROLLBACK,
                "sorted(done, key=lambda entry: entry.position, reverse=True)",
                "sorted(done, key=lambda entry: (entry.started_at, -entry.position), reverse=True)",
            ),
        ),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
    Mutant(
        name="undo-forwards",
        breaks="a rollback undoes steps in reverse order",
        edits=(
            Edit(
                _ROLLBACK,
                "sorted(done, key=lambda entry: entry.position, reverse=True)",
                "sorted(done, key=lambda entry: entry.position)",
            ),
        ),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
    Mutant(
        name="undo-forgets-the-first",
        breaks="a rollback undoes every finished step",
        edits=(
            Edit(
                _ROLLBACK,
                "            found.append((entry, call))\n        return found\n",
                "            found.append((entry, call))\n        return found[:-1]\n",
            ),
        ),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
    Mutant(
        name="pruning-takes-undo-along",
        breaks="pruning a loop keeps what its undo needs",
        edits=(
            Edit(
                "stores/memory/unit_of_work.py",
                "is_within(entry.location, scope) and not entry.has_undo:",
                "is_within(entry.location, scope):",
            ),
        ),
        caught_by=(_SIMULATION, Catch("contract")),
    ),
    Mutant(
        name="past-is-undone-too",
        breaks="continuing as new makes the past final",
        edits=(Edit("stores/operations/checkpoints.py", "        unit.histories.clear(run.id)\n", "        pass\n"),),
        caught_by=(Catch("contract", "test_the_next_generation_begins_without_history_and_keeps_id_and_key"),),
    ),
)

EVICTION = (
    Mutant(
        name="a-parent-builds-all-its-waits-again",
        breaks="waking a parent costs the same for any number of children",
        edits=(
            Edit(
                "runner/open_operations.py",
                "        if len(known) == len(self.by_location):\n            return tuple(known.values())\n",
                "        known = {}\n",
            ),
        ),
        caught_by=(Catch("unit tests of runs", "test_waking_a_parent_costs_the_same"),),
    ),
    Mutant(
        name="survivors-left-to-the-collector",
        breaks="code that swallows everything never runs outside of its run",
        edits=(Edit("runner/loop.py", "self.survivors += destroy_survivors(closed)", "pass"),),
        caught_by=(Catch("unit tests of runs", "swallows_everything"),),
    ),
    Mutant(
        name="released-before-survivors-are-destroyed",
        breaks="after eviction an await never returns and never raises",
        edits=(
            Edit(
                "runner/loop.py",
                "self.survivors += destroy_survivors(closed)",
                "[release(task) for task in closed]; self.survivors += destroy_survivors(closed)",
            ),
        ),
        caught_by=(Catch("swallowing", "repeatedly_suspends"),),
    ),
    Mutant(
        name="an-evicted-await-of-something-settled-returns",
        breaks="after eviction an await never returns and never raises",
        edits=(
            Edit(
                "runner/loop.py",
                "return asyncio.Future(loop=self._loop).__await__()",
                "return super().__await__()  # type: ignore[misc, no-any-return]",
            ),
        ),
        caught_by=(Catch("swallowing", "repeatedly_suspends"),),
    ),
    Mutant(
        name="an-evicted-context-raises",
        breaks="after eviction an operation never returns and never raises",
        edits=(
            Edit(
                "runner/loop.py",
                "if driving.loop is not self and (driving.loop is not None or not self.is_evicting):",
                "if driving.loop is not self or self.is_evicting:",
            ),
        ),
        caught_by=(Catch("unit tests of runs", "evicted_context"),),
    ),
)

COMPOSITION = (
    Mutant(
        name="race-names-the-last",
        breaks="a race returns its winner",
        edits=(
            Edit(
                _BRANCHES,
                "return next(key for key, one in self._tasks.items() if one is task)",
                "return list(self._tasks)[-1]",
            ),
        ),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
    Mutant(
        name="join-waits-for-all",
        breaks="a fail-fast join ends at the first failure",
        edits=(
            Edit(_BRANCHES, "self._run_until(_failed if fail_fast else _rolls_back)", "self._run_until(_rolls_back)"),
        ),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
    Mutant(
        name="loop-forgets-its-state",
        breaks="a loop resumes with its last state",
        edits=(
            Edit(
                "runner/looping.py",
                '        return number, await self._requests.recall(self._states, entry.result, f"state of loop {self._location!r}")\n',
                "        return number, self._first[1] if entry else None\n",
            ),
        ),
        caught_by=(_PROGRAMS,),
    ),
    Mutant(
        name="map-mixes-up-its-results",
        breaks="a map returns the results in the order of its items",
        edits=(
            Edit(
                "runner/children.py",
                "        return list(results.values())\n",
                "        return list(results.values())[::-1]\n",
            ),
        ),
        caught_by=(_SIMULATION, _RUNS, _PROGRAMS),
    ),
    Mutant(
        name="map-ignores-its-limit",
        breaks="the children of a map that run at once reach its limit",
        edits=(
            Edit(
                "runner/children.py",
                "                child.create(is_awaited=True, is_parked=True)\n",
                "                child.create(is_awaited=True)\n",
            ),
        ),
        caught_by=(_PROGRAMS,),
    ),
)

MUTANTS = (*REPLAY, *TOLD, *ROLLBACK, *EVICTION, *COMPOSITION)
