"""Bugs that only the SQLite and Postgres stores can have."""

# ruff: noqa: E501 - what is replaced stands here as it stands in the code

from __future__ import annotations

from tests.mutants.mutant import Catch, Edit, Mutant

_POSTGRES = Catch("contract on Postgres", "through_another_store or renewal")
_CLAIMS = "stores/sqlite/claims.py"
_CHECKPOINT_SQL = "stores/postgres/functions/checkpoints.sql"
_CLAIM_SQL = "stores/postgres/functions/claims.sql"
_LOAD_SQL = "stores/postgres/functions/load.sql"

SQLITE = (
    Mutant(
        name="sqlite-entry-overwritten",
        breaks="one result for each location, which never changes",
        edits=(
            Edit(
                "stores/sqlite/histories.py",
                "    where entry.position = 0\n      and (excluded.position > 0 or excluded.attempts > entry.attempts)\n",
                "    where true\n",
            ),
        ),
        caught_by=(Catch("model on SQLite"),),
    ),
    Mutant(
        name="sqlite-claim-before-the-lease-ends",
        breaks="two workers never hold one run",
        edits=(
            Edit(
                _CLAIMS,
                "ready_at, id\n    from run indexed by run_held\n    where worker = ?\n      and ready_at <= ?\n",
                "ready_at, id\n    from run indexed by run_held\n    where worker = ?\n      and (ready_at <= ? or true)\n",
            ),
        ),
        caught_by=(Catch("model on SQLite"),),
    ),
    Mutant(
        name="sqlite-repeated-claim-loses-runs",
        breaks="a claim whose answer was lost can be repeated",
        edits=(
            Edit(
                _CLAIMS,
                "    if request.is_repeat and (won := _won_before(transaction, request)):",
                "    if False and (won := _won_before(transaction, request)):",
            ),
        ),
        caught_by=(Catch("contract on SQLite", "test_a_repeated_claim_gets_the_same_leases"),),
    ),
    Mutant(
        name="sqlite-rank-ignored",
        breaks="a backlog of new starts never delays work in progress",
        edits=(
            Edit(
                "stores/sqlite/schema.sql",
                "case when token > 0 then {{begun}} when parent_id",
                "case when parent_id",
            ),
        ),
        caught_by=(Catch("contract on SQLite", "test_a_message_wakes_a_run_that_goes_before_a_backlog_of_starts"),),
    ),
    Mutant(
        name="store-of-another-version-is-used",
        breaks="a store of another version is refused and left unchanged",
        edits=(
            Edit(
                "stores/migrations.py",
                "(found.compatible_from or found.current) > found.wanted",
                "found.compatible_from > found.wanted + 1",
            ),
        ),
        caught_by=(
            Catch("schema of SQLite", "test_a_store_of_another_schema_version_is_refused_and_left_unchanged"),
            Catch("schema of Postgres", "test_a_schema_of_another_version_is_refused_and_left_unchanged"),
        ),
    ),
    Mutant(
        name="sqlite-types-skipped",
        breaks="a claim finds ready runs of every type that it offers",
        edits=(
            Edit(
                _CLAIMS,
                "        place = bisect_left(types, type, place)\n",
                "        place = bisect_left(types, type, place) + 1\n",
            ),
        ),
        caught_by=(Catch("contract on SQLite", "test_a_claim_of_many_types_finds_the_few_that_are_ready"),),
    ),
    Mutant(
        name="sqlite-refusal-shared",
        breaks="callers that share a commit do not share a refusal",
        edits=(
            Edit(
                "stores/sqlite/writer.py",
                "            if len(jobs) == 1 or concerns_all_operations(error):\n",
                "            if jobs:\n",
            ),
        ),
        caught_by=(Catch("commits of SQLite", "test_a_value_the_database_cannot_store_fails_only_its_own_caller"),),
    ),
)

POSTGRES = (
    Mutant(
        name="postgres-checkpoint-without-fence",
        breaks="a worker that lost its lease records nothing",
        edits=(
            Edit(
                _CHECKPOINT_SQL,
                "            and r.token = c.token\n            and coalesce(r.worker, '') <> ''\n            and r.stop is null\n",
                "            and coalesce(r.worker, '') <> ''\n            and r.stop is null\n",
            ),
        ),
        caught_by=(_POSTGRES,),
    ),
    Mutant(
        name="postgres-heartbeat-without-fence",
        breaks="a worker that lost its lease does not renew the lease of another",
        edits=(
            Edit(
                "stores/postgres/functions/claims.sql",
                "where r.id = h.run_id and r.token = h.token and coalesce(r.worker, '') <> ''",
                "where r.id = h.run_id and coalesce(r.worker, '') <> ''",
            ),
        ),
        caught_by=(_POSTGRES,),
    ),
    Mutant(
        name="postgres-suspend-without-looking",
        breaks="no arrival is missed while a run is being suspended",
        edits=(Edit(_CHECKPOINT_SQL, "            and (c.kind <> 'sleep' or r.arrivals <= c.seen)\n", ""),),
        caught_by=(_POSTGRES,),
    ),
    Mutant(
        name="postgres-claim-checked-only-in-the-select",
        breaks="two claimers never share a run",
        edits=(
            Edit(
                _CLAIM_SQL,
                "                limit wanted\n                for no key update of r skip locked\n",
                "                limit wanted\n",
            ),
        ),
        caught_by=(Catch("claimers", "test_eight_claimers_on_threads_share_no_run_and_leave_none"),),
    ),
    Mutant(
        name="postgres-claim-without-rank",
        breaks="work in progress goes before children, and children before new starts",
        edits=(
            Edit(
                "stores/postgres/functions/claims.sql",
                "        select run.id, l.priority, l.rank, run.ready_at, false\n",
                "        select run.id, l.priority, {{begun}}, run.ready_at, false\n",
            ),
        ),
        caught_by=(Catch("contract on Postgres", "test_begun_runs_go_before_children_and_children_before_new_starts"),),
    ),
    Mutant(
        name="postgres-claim-without-shares",
        breaks="no rank starves",
        edits=(
            Edit(
                _CLAIM_SQL,
                "when n.rank = {{new}} then 2 * ({{share}} - 1) * n.number - 1\n",
                "when n.rank = {{new}} then 1000000 + n.number\n",
            ),
        ),
        caught_by=(
            Catch(
                "contract on Postgres",
                "test_one_in_eight_is_a_new_start_and_one_in_eight_of_the_others_a_child",
            ),
        ),
    ),
    Mutant(
        name="postgres-claim-without-the-counts-of-the-worker",
        breaks="the shares are the same however many runs are claimed at once",
        edits=(
            Edit(_CLAIM_SQL, "else 2 * (n.number - 1 + since_new)\n", "else 2 * (n.number - 1)\n"),
            Edit(_CLAIM_SQL, "else 2 * (f.number - 1 + since_child)\n", "else 2 * (f.number - 1)\n"),
        ),
        caught_by=(Catch("contract on Postgres", "test_the_shares_do_not_depend_on_the_size_of_a_claim"),),
    ),
    Mutant(
        name="postgres-claim-passes-over-a-type",
        breaks="a run that is ready is claimed, however many types a worker offers",
        edits=(
            Edit(
                "stores/postgres/functions/claims.sql",
                "r.type >= q.sought and r.worker is null",
                "r.type > q.sought and r.worker is null",
            ),
        ),
        caught_by=(Catch("contract on Postgres", "test_a_claim_of_many_types_finds_the_few_that_are_ready"),),
    ),
    Mutant(
        name="postgres-slots-for-the-first-rank-alone",
        breaks="no rank of runs that wait for a slot starves",
        edits=(
            Edit(
                "stores/postgres/functions/limits.sql",
                "and w.kind = 'slot' and w.after = beside.after\n",
                "and false\n",
            ),
        ),
        caught_by=(Catch("contract on Postgres", "test_the_slots_of_a_limit_are_shared_by_rank"),),
    ),
    Mutant(
        name="postgres-topics-not-locked",
        breaks="an event is never missed because of timing",
        edits=(
            Edit(
                _LOAD_SQL,
                "                perform pg_advisory_xact_lock(bucket.class, bucket.bucket);\n",
                "                null;\n",
            ),
            Edit(
                _LOAD_SQL,
                "                perform pg_advisory_xact_lock_shared(bucket.class, bucket.bucket);\n",
                "                null;\n",
            ),
        ),
        caught_by=(Catch("races", "test_an_event_that_races_a_wait_for_it_is_never_missed"),),
    ),
    Mutant(
        name="postgres-parent-read-then-written",
        breaks="the end of a child reaches its parent despite concurrent writes",
        edits=(
            Edit(
                _LOAD_SQL,
                "locked := array(select r.id from runs as r where r.id = any(locked) order by r.id for no key update);",
                "locked := array(select r.id from runs as r where r.id = any(locked) order by r.id);",
            ),
        ),
        caught_by=(Catch("races", "test_a_parent_and_children_that_end_concurrently_end_once"),),
    ),
)

MUTANTS = (*SQLITE, *POSTGRES)
