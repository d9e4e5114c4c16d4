"""Bugs in the durability of accepted work after a crash or power cut: database settings, and their checks."""

# ruff: noqa: E501 - what is replaced stands here as it stands in the code

from __future__ import annotations

from tests.mutants.mutant import Catch, Edit, Mutant

_SQLITE = "stores/sqlite/connections.py"
_POSTGRES = "stores/postgres/connections.py"
_DOCTOR = "stores/postgres/checkup.py"

_POWER_CUT = Catch("power cuts", "test_no_accepted_write_is_lost_whenever_the_power_fails")
_HEALTH = Catch("durability of Postgres", "test_the_doctor_finds_a_server_that_does_not_survive_a_crash")

SQLITE = (
    Mutant(
        name="sqlite-files-readable-by-all",
        breaks="other users of the machine cannot read payloads",
        edits=(Edit("stores/sqlite/files.py", "PRIVATE_MODE = 0o600", "PRIVATE_MODE = 0o644"),),
        caught_by=(Catch("privacy of SQLite", "test_all_files_are_private_whatever_the_umask"),),
    ),
    Mutant(
        name="sqlite-commit-not-flushed",
        breaks="accepted writes survive a power cut",
        edits=(Edit(_SQLITE, "pragma synchronous = full", "pragma synchronous = normal"),),
        caught_by=(_POWER_CUT,),
    ),
    Mutant(
        name="sqlite-nothing-flushed",
        breaks="accepted writes survive a power cut",
        edits=(Edit(_SQLITE, "pragma synchronous = full", "pragma synchronous = off"),),
        caught_by=(_POWER_CUT,),
    ),
    Mutant(
        name="sqlite-journal-in-memory",
        breaks="a power cut during a commit leaves an intact file",
        edits=(Edit(_SQLITE, "pragma journal_mode = wal", "pragma journal_mode = memory"),),
        caught_by=(_POWER_CUT,),
    ),
    Mutant(
        name="sqlite-flush-ends-in-the-drive",
        breaks="accepted writes survive a power cut, on macOS too",
        edits=(Edit(_SQLITE, "pragma fullfsync = on", "pragma fullfsync = off"),),
        caught_by=(Catch("power cuts", "test_each_write_is_flushed_past_the_cache_of_the_drive"),),
    ),
    Mutant(
        name="sqlite-answer-before-the-commit",
        breaks="when start, send or emit returns, the write is on disk",
        edits=(
            Edit(
                "stores/sqlite/writer.py",
                '            transaction.flush()\n            connection.execute("commit")\n',
                '            transaction.flush()\n            deliver(jobs)\n            time.sleep(0.5)\n            connection.execute("commit")\n',
            ),
        ),
        caught_by=(_POWER_CUT,),
    ),
    Mutant(
        name="sqlite-user-turns-off-flushing",
        breaks="a ctx.tx function that changes its connection harms no other run",
        edits=(Edit("stores/sqlite/database.py", '    {"data_version",', '    {"synchronous", "data_version",'),),
        caught_by=(
            Catch("transactions", "test_a_forbidden_statement_in_a_transaction_fails_it_at_once_and_leaves_nothing"),
        ),
    ),
    Mutant(
        name="sqlite-writer-begins-without-the-lock",
        breaks="no other process writes between the read and the write of an operation",
        edits=(
            Edit(
                "stores/sqlite/writer.py",
                '            connection.execute("begin immediate")\n            if connection',
                '            connection.execute("begin")\n            if connection',
            ),
        ),
        caught_by=(
            Catch("commits of SQLite", "test_no_other_process_writes_between_the_read_and_the_write_of_an_operation"),
        ),
    ),
    Mutant(
        name="sqlite-user-begins-without-the-lock",
        breaks="no other process writes between the read and the write of a user's transaction",
        edits=(Edit("stores/sqlite/database.py", '"begin immediate"', '"begin"'),),
        caught_by=(
            Catch(
                "commits of SQLite", "test_no_other_process_writes_between_the_read_and_the_write_of_a_user_transaction"
            ),
        ),
    ),
    Mutant(
        name="sqlite-log-filled-up-without-the-lock",
        breaks="no other process appends to the log while it is filled with zeros",
        edits=(
            Edit(
                "stores/sqlite/writer.py",
                'connection.execute("begin immediate")\n        try:',
                'connection.execute("begin")\n        try:',
            ),
        ),
        caught_by=(Catch("log of SQLite", "test_the_log_is_not_preallocated_while_another_program_writes"),),
    ),
)

POSTGRES = (
    Mutant(
        name="postgres-commit-not-flushed",
        breaks="accepted writes survive a crash with any default of the server, database or role",
        edits=(Edit(_POSTGRES, "{limits.options} {_DURABLE} {given", "{limits.options} {given"),),
        caught_by=(
            Catch("durability of Postgres", "test_sessions_wait_for_the_disk_whatever_the_default_is"),
            Catch("durability of Postgres", "test_accepted_writes_survive_the_crash_of_a_server"),
        ),
    ),
    Mutant(
        name="postgres-every-session-like-that-of-hints",
        breaks="accepted writes survive a crash",
        edits=(Edit(_POSTGRES, '_DURABLE = f"-c {_COMMIT_LEVEL}=on"', '_DURABLE = f"-c {_COMMIT_LEVEL}=off"'),),
        caught_by=(Catch("durability of Postgres", "test_accepted_writes_survive_the_crash_of_a_server"),),
    ),
    Mutant(
        name="postgres-level-of-the-url-ignored",
        breaks="a synchronous_commit level in the URL is used",
        edits=(
            Edit(
                _POSTGRES,
                "{limits.options} {_DURABLE} {given.get('options', '')}",
                "{limits.options} {given.get('options', '')} {_DURABLE}",
            ),
        ),
        caught_by=(Catch("durability of Postgres", "test_a_setting_of_the_url_about_waiting_for_the_disk_wins"),),
    ),
    Mutant(
        name="postgres-pooler-without-flushing",
        breaks="accepted writes survive a crash, behind a pooler too",
        edits=(Edit(_POSTGRES, "    if not is_chosen and _setting(", "    if False and _setting("),),
        caught_by=(
            Catch("durability of Postgres", "test_where_synchronous_commit_cannot_be_set_a_default_of_off_is_refused"),
        ),
    ),
    Mutant(
        name="postgres-user-turns-off-flushing",
        breaks="a ctx.tx function that changes its session harms no other run",
        edits=(Edit("stores/postgres/database.py", "    reset all;\n", ""),),
        caught_by=(Catch("functions of users on Postgres", "test_a_session_is_restored_after_a_function"),),
    ),
    Mutant(
        name="doctor-overlooks-fsync",
        breaks="the doctor finds a server that does not survive a crash",
        edits=(
            Edit(_DOCTOR, '    "fsync": ("problem", "a crash of the machine can destroy the whole database"),\n', ""),
        ),
        caught_by=(_HEALTH,),
    ),
    Mutant(
        name="doctor-overlooks-torn-pages",
        breaks="the doctor finds a server that does not survive a crash",
        edits=(
            Edit(_DOCTOR, '    "full_page_writes": ("problem", "a crash of the machine can damage tables"),\n', ""),
        ),
        caught_by=(_HEALTH,),
    ),
    Mutant(
        name="doctor-overlooks-commits-that-do-not-wait",
        breaks="the doctor finds sessions that lose their last commits",
        edits=(
            Edit(
                _DOCTOR,
                '    "synchronous_commit": ("warning", "a crash of the server loses the latest commits, so effects may be repeated"),\n',
                "",
            ),
        ),
        caught_by=(Catch("check-up of Postgres", "test_a_session_that_does_not_wait_for_the_disk_is_a_warning"),),
    ),
)

MUTANTS = (*SQLITE, *POSTGRES)
