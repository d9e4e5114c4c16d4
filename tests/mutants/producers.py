"""Bugs in the promises to SQL producers, and in the handling of unreadable rows."""

from __future__ import annotations

from tests.mutants.mutant import Catch, Edit, Mutant

_CHECK_PAYLOAD = "stores/postgres/functions/producers.sql"
_VALUES = Catch("values in SQL", "cannot_read")
_NAMES = Catch("values in SQL", "accepts_a_name")

_ROWS = Catch("unreadable rows", "marked_and_hides")
_CLAIMED = Catch("unreadable rows", "blocks_an_unreadable_run")

UNREADABLE = (
    Mutant(
        name="an-instant-before-all-dates-hides-the-others",
        breaks="a row that cannot be read hides no other",
        edits=(
            Edit(
                "engine/info.py",
                "(ValueError, TypeError, OverflowError, RecursionError)",
                "(ValueError, TypeError, RecursionError)",
            ),
        ),
        caught_by=(_ROWS,),
    ),
    Mutant(
        name="postgres-odd-row-hides-the-others",
        breaks="a row that cannot be decoded hides no other",
        edits=(Edit("stores/postgres/reads.py", "        run, why = unreadable.marked(", "        raise\n        ("),),
        caught_by=(_ROWS,),
    ),
    Mutant(
        name="sqlite-odd-row-hides-the-others",
        breaks="a row that cannot be decoded hides no other",
        edits=(
            Edit(
                "stores/sqlite/reads.py",
                "        with suppress(OddRow):\n",
                "        with suppress(ZeroDivisionError):\n",
            ),
        ),
        caught_by=(_ROWS,),
    ),
    Mutant(
        name="odd-payload-hides-the-others",
        breaks="a payload that cannot be decoded hides no other run",
        edits=(
            Edit(
                "engine/info.py",
                "(ValueError, TypeError, OverflowError, RecursionError)",
                "(TypeError, OverflowError, RecursionError)",
            ),
        ),
        caught_by=(_ROWS,),
    ),
    Mutant(
        name="postgres-odd-row-stops-claims",
        breaks="a worker that meets a row it cannot read blocks that run alone",
        edits=(
            Edit(
                "stores/postgres/claims.py",
                "    except (msgspec.MsgspecError, RecursionError):\n        parts = members(text)\n",
                "    except ZeroDivisionError:\n        parts = members(text)\n",
            ),
        ),
        caught_by=(_CLAIMED,),
    ),
    Mutant(
        name="postgres-half-a-surrogate-pair-stops-claims",
        breaks="a worker that meets a row it cannot read blocks that run alone",
        edits=(
            Edit(
                "stores/postgres/claims.py",
                "        parts = members(text)\n    #",
                "        msgspec.json.decode(text, type=dict[str, msgspec.Raw])\n        parts = members(text)\n    #",
            ),
        ),
        caught_by=(_CLAIMED,),
    ),
    Mutant(
        name="sqlite-odd-row-stops-claims",
        breaks="a worker that meets a row it cannot read blocks that run alone",
        edits=(
            Edit("stores/sqlite/store.py", "        except reads.FAILURES:\n", "        except ZeroDivisionError:\n"),
        ),
        caught_by=(_CLAIMED,),
    ),
    Mutant(
        name="odd-payload-fails-the-run",
        breaks="a run with an unreadable payload is blocked, and continues when it is repaired",
        edits=(
            Edit(
                "runner/turn.py",
                "        except (Unreadable, HistoryDiverged) as error:\n",
                "        except HistoryDiverged as error:\n",
            ),
        ),
        caught_by=(_CLAIMED,),
    ),
)

MUTANTS = (
    *UNREADABLE,
    Mutant(
        name="sql-number-out-of-range",
        breaks="SQL accepts no number that Python cannot read",
        edits=(
            Edit(_CHECK_PAYLOAD, "    if outside ~ '[0-9.]{190}|[eE][+-]?0*[0-9]{3}' then\n", "    if false then\n"),
        ),
        caught_by=(_VALUES,),
    ),
    Mutant(
        name="sql-surrogates",
        breaks="SQL accepts no string that Python cannot read",
        edits=(
            Edit(
                _CHECK_PAYLOAD,
                "has_surrogates constant boolean := payload ~ '\\\\u[dD][89a-fA-F]'",
                "has_surrogates constant boolean := false",
            ),
        ),
        caught_by=(_VALUES,),
    ),
    Mutant(
        name="sql-nested-too-deep",
        breaks="SQL accepts no value that is nested deeper than Python allows",
        edits=(Edit(_CHECK_PAYLOAD, "        perform check_depth_v1(what, outside);\n", "        null;\n"),),
        caught_by=(_VALUES,),
    ),
    Mutant(
        name="sql-key-twice",
        breaks="an object that SQL accepts is stored completely",
        edits=(Edit(_CHECK_PAYLOAD, "replace(outside, ':', '')) < pairs then", "replace(outside, ':', '')) < 0 then"),),
        caught_by=(_VALUES,),
    ),
    Mutant(
        name="sql-control-characters",
        breaks="SQL accepts the names that Python accepts, and no others",
        edits=(
            Edit("stores/postgres/functions/producers.sql", "    if value ~ refused then\n", "    if false then\n"),
        ),
        caught_by=(_NAMES,),
    ),
    Mutant(
        name="sql-message-name-with-a-slash",
        breaks="SQL accepts the names of messages that Python accepts, and no others",
        edits=(
            Edit(
                "stores/postgres/functions/producers.sql",
                "perform check_name_v1('name', send.name);",
                "perform check_text_v1('name', send.name);",
            ),
        ),
        caught_by=(_NAMES,),
    ),
    Mutant(
        name="sql-request-of-the-owner",
        breaks="a request of a SQL producer records its actor",
        edits=(Edit("stores/postgres/schema.sql", "('sql:' || session_user)", "('sql:' || current_user)"),),
        caught_by=(Catch("producers in SQL", "test_a_request_records_the_session_user"),),
    ),
    Mutant(
        name="bidirectional-characters-in-names",
        breaks="no name, key, topic or tag has characters that hide or reorder others",
        edits=(
            Edit(
                "core/location.py",
                '    (0x202A, 0x202E, "bidirectional embeddings and overrides"),\n',
                "",
            ),
        ),
        caught_by=(Catch("unit tests of names", "test_the_list_has_all_control_and_bidirectional_characters"),),
    ),
    Mutant(
        name="request-forgets-who-asked",
        breaks="a request of a SQL producer names the role that wrote it",
        edits=(
            Edit(
                "stores/postgres/sql_requests.py",
                "return EmitEvents(events=(request.event,), by=by)",
                "return EmitEvents(events=(request.event,))",
            ),
        ),
        caught_by=(Catch("producers in SQL", "test_an_event_is_left_for_a_worker_to_publish"),),
    ),
    Mutant(
        name="requests-only-with-a-free-slot",
        breaks="requests of SQL producers are executed whether or not a worker has a free slot",
        edits=(
            Edit(
                "worker/worker.py",
                "            self._leaving.append(database.serve())\n",
                "            pass\n",
            ),
        ),
        caught_by=(Catch("busy workers", "only_slot"),),
    ),
)
