"""Bugs in the key-value store, in its driver on dictionaries, and in the Redis driver with its Lua scripts."""

from __future__ import annotations

from tests.mutants.mutant import Catch, Edit, Mutant

_COMMIT_LUA = "stores/redis/lua/commit.lua"
_CLAIM_LUA = "stores/redis/lua/claim.lua"
_RENEW_LUA = "stores/redis/lua/renew.lua"
_EPOCH_LUA = "stores/redis/lua/epoch.lua"
_DICTIONARY = "stores/kv/dictionary.py"
_DRIVER = "stores/redis/driver.py"
_IDENTITY = "stores/redis/epochs.py"
_SETTINGS = "stores/redis/server.py"


def _redis(words: str) -> tuple[Catch, ...]:
    return (Catch("driver of Redis", words),)


STORE = (
    Mutant(
        name="dictionary-versions-not-checked",
        breaks="an operation decides only on what is still so when it is written",
        edits=(
            Edit(
                _DICTIONARY,
                "            if self.data.partitions.get(name, Partition(0, {})).version != version:\n",
                "            if False:\n",
            ),
        ),
        caught_by=(Catch("key-value store", "test_a_message_between_load_and_commit_of_a_suspension_is_not_missed"),),
    ),
    Mutant(
        name="kv-cancel-misses-an-undo",
        breaks="a cancelled run undoes each step that has an undo",
        edits=(
            Edit(
                "stores/kv/histories.py",
                "self._space.range(names.all_undo(run_id), names.history(run_id))",
                "self._space.range(names.all_undo(run_id))",
            ),
            Edit(
                "stores/kv/runs.py",
                "        Fields(names.history(run_id), ()),\n        names.all_undo(run_id),\n",
                "        names.all_undo(run_id),\n",
            ),
        ),
        caught_by=(Catch("key-value store", "test_a_step_with_an_undo_between_load_and_commit_of_a_cancel_is_undone"),),
    ),
    Mutant(
        name="kv-end-ignores-children",
        breaks="the end of a run reaches its children by their close policy",
        edits=(
            Edit(
                "stores/kv/checkpoints.py",
                "        checks[names.children(run_id)] = 0\n",
                "        pass\n",
            ),
        ),
        caught_by=(
            Catch("contract on dictionaries", "test_the_end_of_a_parent_cancels_children_by_their_close_policy"),
        ),
    ),
    Mutant(
        name="kv-step-leaves-the-version-of-its-history",
        breaks="a checkpoint whose repeat arrives late changes nothing",
        edits=(Edit("stores/kv/checkpoints.py", "held.head, held.history = head, history\n", "held.head = head\n"),),
        caught_by=(Catch("key-value store", "test_a_second_step_takes_one_trip"),),
    ),
    Mutant(
        name="kv-import-takes-numbers-of-others",
        breaks="an import replaces no event of the store",
        edits=(
            Edit(
                "stores/kv/store.py",
                "            high = (await self._numbers(lead)).start - 1\n",
                "            await self._numbers(lead)\n",
            ),
        ),
        caught_by=(Catch("races in every order", "test_an_imported_event_never_takes_the_number"),),
    ),
    Mutant(
        name="kv-event-given-back-stays-in-memory",
        breaks="only one run gets an event of a queue",
        edits=(
            Edit(
                "stores/kv/checkpoints.py",
                "        entries = dict(known.entries)\n",
                "        inbox |= known.inbox\n        entries = dict(known.entries)\n",
            ),
        ),
        caught_by=(
            Catch("contract on dictionaries", "test_an_event_that_was_given_back_is_not_reported_to_its_former_holder"),
        ),
    ),
    Mutant(
        name="kv-held-runs-outlive-an-epoch",
        breaks="no history has a hole after writes were lost",
        edits=(Edit("stores/kv/store.py", "self._held.clear()  # the engine", "pass  # the engine"),),
        caught_by=(Catch("key-value store", "test_what_was_remembered_before_an_epoch_is_forgotten"),),
    ),
    Mutant(
        name="kv-messages-in-the-order-of-fields",
        breaks="messages arrive in the order in which they were sent",
        edits=(
            Edit(
                "stores/kv/histories.py",
                "tuple(sorted(map(decode_arrival, fields.values()), key=lambda arrival: arrival.number))",
                "tuple(sorted(map(decode_arrival, fields.values()), key=lambda arrival: str(arrival.number)))",
            ),
        ),
        caught_by=(Catch("key-value store", "test_many_messages_come_with_a_lease_in_their_order"),),
    ),
    Mutant(
        name="kv-index-entries-are-left",
        breaks="a list of runs shows each run in the state that it has",
        edits=(
            Edit(
                "stores/kv/names.py",
                "(now is None or was[0] != now[0] or was[1] != now[1])",
                "was[0][:3] != 'by:' and (now is None or was[0] != now[0] or was[1] != now[1])",
            ),
        ),
        caught_by=(Catch("key-value store", "test_a_run_that_changes_its_state_leaves_no_index_entry"),),
    ),
    Mutant(
        name="kv-no-mark-is-set",
        breaks="a writer that keeps losing gets through",
        edits=(Edit("stores/kv/decision.py", "        if race.conflicts >= MARK_AFTER:\n", "        if False:\n"),),
        caught_by=(Catch("key-value store", "test_a_writer_that_keeps_losing_gets_through"),),
    ),
    Mutant(
        name="dictionary-mark-not-respected",
        breaks="a writer that keeps losing gets through",
        edits=(Edit(_DICTIONARY, "return owner != writer and until > now", "return False"),),
        caught_by=(Catch("key-value store", "test_a_writer_that_keeps_losing_gets_through"),),
    ),
)

COMMITS = (
    Mutant(
        name="redis-versions-not-checked",
        breaks="an operation decides only on what is still so when it is written",
        edits=(
            Edit(
                _COMMIT_LUA,
                "tonumber(redis.call('HGET', name, '') or 0) ~= list[place + number]",
                "tonumber(redis.call('HGET', name, '') or 0) < 0",
            ),
        ),
        caught_by=_redis("test_a_part_is_refused_by_the_name_of_its_first_failed_check"),
    ),
    Mutant(
        name="redis-absence-not-checked",
        breaks="two starts with one key make one run",
        edits=(
            Edit(
                _COMMIT_LUA,
                "tonumber(redis.call('HGET', name, '') or 0) ~= list[place + number]",
                "list[place + number] ~= 0 and tonumber(redis.call('HGET', name, '') or 0) ~= list[place + number]",
            ),
        ),
        caught_by=_redis("test_a_part_is_refused_by_the_name_of_its_first_failed_check"),
    ),
    Mutant(
        name="redis-commit-in-any-epoch",
        breaks="a holder of an old epoch writes nothing",
        edits=(Edit(_COMMIT_LUA, "redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[2]", "false"),),
        caught_by=_redis("test_what_was_remembered_before_a_restart_is_refused"),
    ),
    Mutant(
        name="redis-mark-not-respected",
        breaks="a writer that keeps losing gets through",
        edits=(
            Edit(
                _COMMIT_LUA,
                "local has_marks = redis.call('EXISTS', prefix .. 'x') == 1\nlocal chunk",
                "local has_marks = false\nlocal chunk",
            ),
        ),
        caught_by=_redis("test_a_mark_keeps_others_from_a_partition_until_its_owner_has_written"),
    ),
    Mutant(
        name="redis-live-data-expires",
        breaks="no run vanishes before it is pruned",
        edits=(Edit(_COMMIT_LUA, "if redis.call('HLEN', key) == 1 then", "if redis.call('HLEN', key) > 0 then"),),
        caught_by=_redis("test_only_a_touched_partition_without_fields_vanishes_by_itself"),
    ),
    Mutant(
        name="redis-refused-part-writes",
        breaks="all runs of one call are created, or none",
        edits=(
            Edit(
                _COMMIT_LUA,
                "if failed == 0 and writes[kind](KEYS[key], first, place - 1) then",
                "if writes[kind](KEYS[key], first, place - 1) then",
            ),
        ),
        caught_by=_redis("test_a_refused_part_writes_nothing"),
    ),
    Mutant(
        name="redis-refused-part-writes-index-entries",
        breaks="all runs of one call are created, or none",
        edits=(Edit(_COMMIT_LUA, "if answer[part + 2] == 0 then", "if true then"),),
        caught_by=_redis("test_the_index_entries_of_a_refused_part_are_not_written_with_those_of_others"),
    ),
    Mutant(
        name="redis-gain-not-checked",
        breaks="a checkpoint whose repeat arrives late changes nothing",
        edits=(Edit(_COMMIT_LUA, "failed = failed_check(key, place + 1, 2)", "failed = 0"),),
        caught_by=_redis("test_a_gain_is_written_if_both_checks_hold"),
    ),
    Mutant(
        name="redis-repeat-of-a-commit-not-told",
        breaks="a start whose answer was lost is a start",
        edits=(Edit(_DRIVER, "            is_repeat = is_again\n", "            is_repeat = False\n"),),
        caught_by=_redis("test_a_commit_is_repeated_and_its_checks_keep_it_from_happening_twice"),
    ),
    Mutant(
        name="redis-hint-of-a-refused-commit",
        breaks="no hint comes without a write",
        edits=(Edit(_COMMIT_LUA, "if is_written and hint ~= '' then", "if hint ~= '' then"),),
        caught_by=_redis("test_a_hint_is_sent_only_if_a_part_was_written"),
    ),
)

LEASES = (
    Mutant(
        name="redis-token-not-raised",
        breaks="each claim has its own token",
        edits=(Edit(_CLAIM_LUA, "math.max(moving[TOKEN], base + 1)) + 1", "math.max(moving[TOKEN] - 1, base)) + 1"),),
        caught_by=_redis("test_a_claim_equals_the_shared_rules"),
    ),
    Mutant(
        name="redis-lease-claimed-before-its-end",
        breaks="a run has one holder until its lease has ended",
        edits=(
            Edit(
                _CLAIM_LUA, "return lane.first <= now and not lane", "return lane.first <= now + 60000000 and not lane"
            ),
            Edit(_CLAIM_LUA, "'-inf', whole(now), 'WITHSCORES'", "'-inf', whole(now + 60000000), 'WITHSCORES'"),
            Edit(_CLAIM_LUA, "elseif ready > now then", "elseif ready > now + 60000000 then"),
        ),
        caught_by=_redis("test_no_two_claims_get_the_same_run"),
    ),
    Mutant(
        name="redis-repeated-claim-is-a-new-one",
        breaks="the runs of a claim whose answer was lost are worked on",
        edits=(Edit(_CLAIM_LUA, "    if #won > 0 then\n", "    if false then\n"),),
        caught_by=_redis("test_a_repeated_claim_returns_the_runs_that_it_has_won"),
    ),
    Mutant(
        name="redis-lost-claim-repeated-as-new",
        breaks="the runs of a claim whose answer was lost are worked on",
        edits=(Edit(_DRIVER, "replace(request, is_repeat=True) if is_again else request", "request"),),
        caught_by=_redis("test_a_claim_whose_answer_was_lost_returns_the_runs_that_it_has_won"),
    ),
    Mutant(
        name="redis-disabled-type-claimed",
        breaks="runs of a disabled type are not claimed",
        edits=(Edit(_CLAIM_LUA, "if rule ~= 'off' then", "if true then"),),
        caught_by=_redis("test_disabled_types_are_not_claimed"),
    ),
    Mutant(
        name="redis-limits-ignored",
        breaks="a limit of running runs holds",
        edits=(Edit(_CLAIM_LUA, "lanes_of(type, rule == 'limited', is_marked)", "lanes_of(type, false, is_marked)"),),
        caught_by=_redis("test_a_due_run_of_a_limited_type_is_left_to_the_shared_operations"),
    ),
    Mutant(
        name="redis-shares-ignored",
        breaks="no rank starves",
        edits=(Edit(_CLAIM_LUA, "local new, child = since_new, since_child", "local new, child = 0, 0"),),
        caught_by=_redis("test_a_claim_equals_the_shared_rules"),
    ),
    Mutant(
        name="redis-suspects-together",
        breaks="a run that kills its workers takes no other runs with it",
        edits=(
            Edit(_CLAIM_LUA, "            may_suspect = false\n", ""),
            Edit(_CLAIM_LUA, "            ranks[BEGUN] = without_suspects(ranks[BEGUN])\n", ""),
        ),
        caught_by=_redis("test_a_claim_equals_the_shared_rules"),
    ),
    Mutant(
        name="redis-renewal-with-any-token",
        breaks="a worker that lost its lease does not renew the lease of another",
        edits=(Edit(_RENEW_LUA, "not moving or moving[TOKEN] ~= token or", "not moving or"),),
        caught_by=_redis("test_a_lease_that_is_not_held_any_more_is_lost"),
    ),
    Mutant(
        name="dictionary-renewal-with-any-token",
        breaks="a worker that lost its lease does not renew the lease of another",
        edits=(Edit(_DICTIONARY, "if run.token != holding.token or not run.is_held:", "if not run.is_held:"),),
        caught_by=(
            Catch("contract on dictionaries", "test_a_renewal_with_a_wrong_token_or_of_an_unknown_run_is_lost"),
        ),
    ),
    Mutant(
        name="redis-renewal-changes-the-version",
        breaks="a heartbeat does not collide with checkpoints",
        edits=(
            Edit(
                _RENEW_LUA,
                "redis.call('HSET', KEYS[number + 2], 't', until_text)",
                "redis.call('HSET', KEYS[number + 2], 't', until_text, '', redis.call('INCR', prefix .. '#'))",
            ),
        ),
        caught_by=_redis("test_a_renewal_extends_leases_and_changes_no_version"),
    ),
    Mutant(
        name="redis-clock-of-the-client",
        breaks="one clock decides when a lease ends",
        edits=(
            Edit(
                _DRIVER,
                'return "" if self._clock is None else self._clock.now()',
                "return __import__('time').time_ns() // 1_000 if self._clock is None else self._clock.now()",
            ),
        ),
        caught_by=_redis("test_the_time_is_that_of_the_server_without_a_clock"),
    ),
)

SERVERS = (
    Mutant(
        name="redis-new-connection-without-epoch",
        breaks="a token is not given twice after a failover",
        edits=(
            Edit(
                _DRIVER,
                "        info = yield from handshake(self._address)\n        yield from self._epochs.check(info)\n",
                "        yield from handshake(self._address)\n",
            ),
        ),
        caught_by=_redis("test_a_token_is_not_given_twice_after_a_failover_that_lost_writes"),
    ),
    Mutant(
        name="redis-epoch-leaves-leases",
        breaks="a restart of the server ends all leases",
        edits=(Edit(_EPOCH_LUA, "    moving[WORKER], moving[CLAIM_ID] = null, null\n", ""),),
        caught_by=_redis("test_a_restart_makes_all_leases_void_and_charges_no_crash"),
    ),
    Mutant(
        name="redis-epoch-leaves-tokens",
        breaks="a token is not given twice after a failover",
        edits=(Edit(_EPOCH_LUA, "        base = base + {{token_leap}}\n", ""),),
        caught_by=_redis("test_a_token_is_not_given_twice_after_a_failover_that_lost_writes"),
    ),
    Mutant(
        name="redis-user-without-info-begins-an-epoch",
        breaks="users of one namespace leave each other their leases",
        edits=(
            Edit(
                _IDENTITY,
                "is_same = own_witness is None and bool(noted.run_id) and not noted.witness",
                "is_same = False",
            ),
        ),
        caught_by=_redis("test_users_with_and_without_info_leave_each_other_their_leases"),
    ),
    Mutant(
        name="redis-user-with-info-begins-an-epoch",
        breaks="users of one namespace leave each other their leases",
        edits=(
            Edit(
                _IDENTITY,
                "noted.run_id == run_id if noted.run_id else (yield from _has_witness(noted.witness))",
                "noted.run_id == run_id",
            ),
        ),
        caught_by=_redis("test_users_with_and_without_info_leave_each_other_their_leases"),
    ),
    Mutant(
        name="redis-foreign-witness-trusted",
        breaks="a token is not given twice after a failover",
        edits=(Edit(_IDENTITY, "is_known = own_witness is None or own_witness == noted.witness", "is_known = True"),),
        caught_by=_redis("test_a_client_that_lost_its_claim_notices_a_failover_that_a_user_without_info_did_not"),
    ),
    Mutant(
        name="redis-old-primary-accepted",
        breaks="nothing is written to a server that was replaced",
        edits=(
            Edit(
                "stores/redis/epochs.py",
                "        if number < self.number:\n            raise",
                "        if False:\n            raise",
            ),
        ),
        caught_by=_redis("test_an_old_primary_that_does_not_know_of_its_successor_is_refused"),
    ),
    Mutant(
        name="redis-forgotten-script",
        breaks="a server that lost its scripts is used on",
        edits=(Edit(_DRIVER, "                if is_unknown_script(reply):\n", "                if False:\n"),),
        caught_by=_redis("test_a_server_that_forgot_the_scripts_gets_them_again"),
    ),
    Mutant(
        name="redis-hints-before-confirmation",
        breaks="each hint after the opening is heard",
        edits=(
            Edit(
                "stores/redis/hints.py",
                'await connection.converse(asked(packed("SUBSCRIBE", self._channel)))',
                'asyncio.get_running_loop().call_later(1, connection.send, packed("SUBSCRIBE", self._channel))',
            ),
        ),
        caught_by=_redis("test_hints_are_received_by_all_drivers_from_the_moment_of_listening"),
    ),
    Mutant(
        name="redis-sockets-outlive-the-loop",
        breaks="a program that ends leaves no open connection",
        edits=(Edit("stores/redis/connections.py", "        self._loop_end = LoopEnd(self.close)\n", ""),),
        caught_by=_redis("test_the_sockets_are_closed_when_the_event_loop_ends"),
    ),
    Mutant(
        name="redis-out-of-memory-not-named",
        breaks="a full server is an outage that says what to do",
        edits=(Edit("stores/redis/errors.py", '    "OOM": (\n', '    "OUT": (\n'),),
        caught_by=(
            Catch("unit tests of Redis", "test_error_replies_say_what_happened_and_what_to_do"),
            Catch("driver of Redis", "test_a_server_without_memory_writes_nothing_and_says_so"),
        ),
    ),
    Mutant(
        name="redis-clean-up-needs-memory",
        breaks="a full server can be cleaned up",
        edits=(
            Edit(
                _COMMIT_LUA,
                "local owner\n",
                "local owner\nversion = version or string.format('%.0f', redis.call('INCR', KEYS[2]))\n",
            ),
        ),
        caught_by=_redis("test_a_server_without_memory_can_be_cleaned_up"),
    ),
    Mutant(
        name="redis-eviction-accepted",
        breaks="a server that may remove runs is refused",
        edits=(Edit(_SETTINGS, "    if settings.policy not in (POLICY, None):\n", "    if False:\n"),),
        caught_by=(Catch("unit tests of Redis", "test_an_unsafe_server_is_refused"),),
    ),
    Mutant(
        name="redis-volatile-server-accepted",
        breaks="a server that keeps nothing on disk is used only if that is wanted",
        edits=(
            Edit(
                _SETTINGS,
                "    if settings.is_volatile and not address.may_be_volatile:\n        return (\n",
                "    if False:\n        return (\n",
            ),
        ),
        caught_by=(Catch("unit tests of Redis", "test_an_unsafe_server_is_refused"),),
    ),
    Mutant(
        name="redis-password-in-errors",
        breaks="no message shows a password",
        edits=(
            Edit(
                "stores/redis/address.py",
                "        if not self.password:\n            return text\n",
                "        return text\n",
            ),
        ),
        caught_by=(Catch("unit tests of Redis", "test_errors_of_the_network_say_what_to_check"),),
    ),
)

MUTANTS = (*STORE, *COMMITS, *LEASES, *SERVERS)
