"""Bugs in workers: claiming, executing, writing and releasing runs."""

from __future__ import annotations

from tests.mutants.mutant import Catch, Edit, Mutant

_DRIVER = "worker/run_driver.py"
_COMMITTER = "worker/committer.py"
_CLAIMER = "worker/claimer.py"
_TURN = "runner/turn.py"
_ATTEMPT = "runner/operation.py"
_PENDING = "runner/pending_checkpoint.py"

_SIMULATION = Catch("simulation")
_WORKERS = Catch("unit tests of workers")
_RUNS = Catch("unit tests of runs")

MUTANTS = (
    Mutant(
        name="hint-instead-of-poll",
        breaks="a lost hint costs time and nothing else",
        edits=(
            Edit(
                _CLAIMER,
                "polled = None if self._poll is None else claimed.now + self._poll",
                "polled = None",
            ),
        ),
        caught_by=(_SIMULATION, _WORKERS, _RUNS, Catch("random programs")),
    ),
    Mutant(
        name="parent-claimed-for-each-child",
        breaks="the cost of a parent grows with the number of its children, not with its square",
        edits=(
            Edit(_DRIVER, "return has_near or self._gathering.until(standstill) > standstill.at", "return has_near"),
        ),
        caught_by=(Catch("unit tests of workers", "test_a_parent_of_many_children_is_not_claimed_for_each_of_them"),),
    ),
    Mutant(
        name="idle-by-hint",
        breaks="a worker that works until it is idle does not rely on hints",
        edits=(Edit(_CLAIMER, "        self._is_outdated = self._is_outdated or is_outdated\n", ""),),
        caught_by=(
            Catch(
                "unit tests of workers",
                "test_run_until_idle_executes_runs_that_its_runs_have_woken_even_if_every_hint_is_lost",
            ),
        ),
    ),
    Mutant(
        name="timers-late",
        breaks="a run is claimed when it becomes ready, and not a moment later",
        edits=(Edit(_CLAIMER, "        if is_withheld or is_beaten:\n", "        if claimed.next_ready_at:\n"),),
        caught_by=(Catch("unit tests of workers", "test_a_run_is_claimed_at_the_instant_at_which_it_becomes_ready"),),
    ),
    Mutant(
        name="all-awake-for-every-timer",
        breaks="slower workers do not hinder faster ones",
        edits=(Edit(_CLAIMER, "        if is_withheld or is_beaten:\n", "        if is_withheld:\n"),),
        caught_by=(Catch("unit tests of workers", "test_a_worker_with_a_faster_rival_does_not_wake_for_every_timer"),),
    ),
    Mutant(
        name="local-clock",
        breaks="the clock of the store decides",
        edits=(
            Edit(
                "core/clock.py",
                "        return (self._lead_ns + self._monotonic_ns()) // 1_000",
                "        return time.time_ns() // 1_000",
            ),
        ),
        caught_by=(
            Catch(
                "unit tests of clocks",
                "test_a_following_clock_does_not_go_back_for_an_answer_without_a_request_time",
            ),
        ),
    ),
    Mutant(
        name="evicted-run-released-while-it-executes",
        breaks="an evicted run is released when its bodies have ended",
        edits=(
            Edit(
                _DRIVER,
                "        if not self._bodies and not self._ending:\n            if self._stop_request",
                "        if not self._bodies:\n            if self._stop_request",
            ),
        ),
        caught_by=(Catch("evictions", "test_the_end_of_an_evicted_step_is_not_recorded"),),
    ),
    Mutant(
        name="eviction-waits-for-ever",
        breaks="an evicted run is released after the grace period at the latest",
        edits=(
            Edit(
                _DRIVER,
                "            self._patience = self._host.clock.call_at(grace, self.stop)\n",
                "            self._patience = self._host.clock.call_at(grace, lambda: None)\n",
            ),
        ),
        caught_by=(Catch("evictions", "test_a_step_that_does_not_end_delays_an_eviction_by_the_grace_period_only"),),
    ),
    Mutant(
        name="eviction-forgets-a-pause",
        breaks="an evicted run with a pause request is paused",
        edits=(
            Edit(
                "core/rules.py",
                "    stop = StopRequest.EVICT if run.stop is None else StopRequest.EVICT_THEN_PAUSE\n",
                "    stop = StopRequest.EVICT\n",
            ),
        ),
        caught_by=(Catch("evictions"), Catch("contract", "test_an_evicted_run_with_a_pause_request_is_paused")),
    ),
    Mutant(
        name="incompatible-step-lets-old-workers-go-on",
        breaks="a store refuses workers that are older than its last incompatible step",
        edits=(
            Edit(
                "stores/migrations.py",
                "        return before if self.step.is_compatible else self.step.number\n",
                "        return before\n",
            ),
        ),
        caught_by=(Catch("migrations", "test_older_code_is_refused_after_a_step_that_is_not_compatible"),),
    ),
    Mutant(
        name="key-value-step-overwrites-a-run",
        breaks="a step changes a run only as it was read",
        edits=(
            Edit(
                "stores/kv/migrations.py",
                "Part(checks={names.head(run_id): heads[run_id].version}, puts",
                "Part(checks={}, puts",
            ),
        ),
        caught_by=(Catch("migrations", "test_a_step_does_not_overwrite_what_another_process_wrote_meanwhile"),),
    ),
    Mutant(
        name="shutdown-recorded-as-outcome",
        breaks="stopping a worker records no outcome",
        edits=(
            Edit(
                _DRIVER,
                "        self._abandon(list(self._bodies))\n        self._ending.clear()\n        self.advance()\n",
                "        for body in list(self._bodies.values()):\n"
                "            if body.task is not None:\n"
                "                body.task.cancel()\n"
                "        self.advance()\n",
            ),
        ),
        caught_by=(Catch("unit tests of workers", "test_a_worker_whose_caller_is_cancelled_stops_all_the_same"),),
    ),
    Mutant(
        name="answer-before-the-write",
        breaks="nothing counts as written before the store has said so",
        edits=(
            Edit(
                _COMMITTER,
                "            return asyncio.ensure_future(self._store.checkpoint(batch))\n",
                "            self._early = asyncio.ensure_future(self._store.checkpoint(batch))\n"
                "            told: asyncio.Future[Verdicts] = self._loop.create_future()\n"
                "            verdicts = tuple(\n"
                "                Verdict(run_id=one.run_id, seen=one.seen, is_held=type(one.next).__name__ == 'Hold')\n"
                "                for one in batch\n"
                "            )\n"
                "            told.set_result(Verdicts(verdicts=verdicts, now=0))\n"
                "            return told\n",
            ),
        ),
        caught_by=(_SIMULATION, _WORKERS, _RUNS, Catch("random programs")),
    ),
    Mutant(
        name="refusal-shared",
        breaks="a checkpoint that the store refuses harms no other run",
        edits=(
            Edit(_COMMITTER, "                if len(batch) == 1:\n", "                if error:\n"),
            Edit(
                _COMMITTER, "                    return [error]\n", "                    return [error] * len(batch)\n"
            ),
        ),
        caught_by=(
            Catch("unit tests of workers", "test_a_refusal_affects_only_its_own_run_also_beside_another_flush"),
        ),
    ),
    Mutant(
        name="outage-taken-for-refusal",
        breaks="a write whose answer was lost is repeated",
        edits=(
            Edit(
                _COMMITTER,
                "            if isinstance(error, StoreUnavailable | SchemaOutOfDate):\n",
                "            if not batch:\n",
            ),
        ),
        caught_by=(_SIMULATION, _WORKERS, _RUNS, Catch("random programs")),
    ),
    Mutant(
        name="outage-logged-at-every-failure",
        breaks="an outage is logged once, however long it lasts",
        edits=(Edit("core/outage.py", "        if level > self._level:\n", "        if level:\n"),),
        caught_by=(Catch("unit tests of workers", "test_a_failed_claim_is_repeated_after_a_pause_and_logged_once"),),
    ),
    Mutant(
        name="step-before-its-request-is-committed",
        breaks="a step starts only when everything before it is written",
        edits=(
            Edit(
                _TURN,
                "self._open.frontier(now, pending.committed_count, may_carry=pending.fits_one)",
                "self._open.frontier(now, pending.fed_count, may_carry=pending.fits_one)",
            ),
        ),
        caught_by=(Catch("random programs"),),
    ),
    Mutant(
        name="crashes-not-charged",
        breaks="attempts are bounded, also for a body that kills its worker",
        edits=(Edit(_ATTEMPT, "    call.attempts += crashes\n", ""),),
        caught_by=(Catch("unit tests of runs", "test_a_crash_is_charged_together_with_later_facts"),),
    ),
    Mutant(
        name="crash-charged-at-each-release",
        breaks="a shutdown is not charged, also if there was a crash before",
        edits=(
            Edit(
                _PENDING,
                "has_news = bool(self.entries) or not isinstance(next, Release)",
                "is_telling = not isinstance(next, Release)",
            ),
        ),
        caught_by=(Catch("unit tests of runs", "test_a_crash_is_charged_once_however_often_the_run_is_released"),),
    ),
    Mutant(
        name="starts-beyond-the-slots",
        breaks="a worker never holds more runs than its concurrency",
        edits=(
            Edit(
                "worker/worker.py",
                "has_place = len(self._drivers) + self._offers < self._concurrency",
                "has_place = len(self._drivers) < self._concurrency",
            ),
        ),
        caught_by=(
            Catch("unit tests of workers", "test_a_worker_takes_at_most_its_concurrency_of_runs_started_at_once"),
        ),
    ),
    Mutant(
        name="held-up-together",
        breaks="a run with a locked row does not delay others",
        edits=(Edit(_COMMITTER, "        elif _is_held_up(error):\n            self._scatter(flush, error)\n", ""),),
        caught_by=(Catch("unit tests of workers", "test_a_single_checkpoint_that_is_held_up_delays_no_other"),),
    ),
    Mutant(
        name="crash-loop-goes-on",
        breaks="a run that kills its workers is blocked after three",
        edits=(
            Edit(
                "runner/run_turn.py",
                "        if run.crashes >= self.definition.crash_limit:\n",
                "        if run.crashes < 0:\n",
            ),
        ),
        caught_by=(_SIMULATION, _WORKERS, _RUNS, Catch("random programs")),
    ),
    Mutant(
        name="lost-lease-unnoticed",
        breaks="a worker that lost its lease stops its bodies",
        edits=(
            Edit(
                _DRIVER,
                "            if not self._is_leaving():\n                self.lose()\n            return\n",
                "            return\n",
            ),
        ),
        caught_by=(Catch("frozen worker", "test_renewing_a_run_that_another_worker_holds_fails_and_changes_nothing"),),
    ),
    Mutant(
        name="arrival-in-the-answer-ignored",
        breaks="a holder learns what arrived in the answer to its write",
        edits=(
            Edit(
                _DRIVER,
                "            self._receive(verdict)\n        if self._host.always_replay:",
                "            self._turn.inbox.add((), verdict.seen)\n        if self._host.always_replay:",
            ),
        ),
        caught_by=(_SIMULATION, _WORKERS, _RUNS, Catch("random programs")),
    ),
)
