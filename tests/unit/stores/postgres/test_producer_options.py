"""The options of a run in plain SQL: the view `intent` stores them as Python does, and refuses what Python refuses."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast.core.clock import SECOND
from holdfast.core.intent import ACTOR_LIMIT, OPTIONS
from holdfast.core.model import RunOptions
from holdfast.core.states import RunState
from tests.unit.stores.postgres.database import Place
from tests.unit.stores.postgres.test_producers import run, user_of

COLUMNS = {"key": "idempotency_key", "ready_at": "run_at"}
ABSENT = {"reuse", "delay", "on_close"}
"""Options that SQL has in another form, or not at all."""


def test_the_view_has_every_declared_option(place: Place) -> None:
    columns = place.all("select column_name from information_schema.columns where table_name = 'intent'")

    assert {name for name in OPTIONS if COLUMNS.get(name, name) not in columns} == ABSENT


def test_the_view_stores_every_option(place: Place) -> None:
    place.execute(
        "insert into {schema}.intent"
        " (id, type, parent_id, max_run, max_suspend, retention, undelivered, max_attempts, by)"
        " values ('r', 't', 'p', '1 hour', '1.5 s', '1 day', 'dead_letter', 9, 'ada')"
    )

    found = run(place, "r")
    assert (found.parent_id, found.parent_location, found.on_close) == ("p", None, "abandon")
    assert found.retention == 86_400 * SECOND
    assert found.options == RunOptions(
        max_run=3600 * SECOND, max_suspend=1_500_000, undelivered="dead_letter", max_attempts=9, by="ada"
    )


def test_without_options_only_the_role_that_logged_in_is_stored(place: Place) -> None:
    place.execute("insert into {schema}.intent (id, type) values ('r', 't')")
    place.execute("insert into {schema}.intent (id, type, by) values ('nobody', 't', '')")

    found = run(place, "r")
    assert (found.parent_id, found.retention) == (None, None)
    assert found.options == RunOptions(by=f"sql:{user_of(place)}")
    assert run(place, "nobody").options == RunOptions()


def test_options_are_no_columns_of_a_stored_row(place: Place) -> None:
    place.execute("insert into {schema}.intent (id, type, max_run, by) values ('r', 't', '1 h', 'ada')")

    assert place.all("select num_nulls(asked_max_run, asked_max_suspend, asked_retention, asked_undelivered, "
                     "asked_max_attempts, asked_by) from {schema}.runs") == [6]  # fmt: skip


def test_a_key_finds_the_first_run_whatever_the_options(place: Place) -> None:
    insert = (
        "insert into {schema}.intent (type, idempotency_key, max_run, by) values ('t', 'k', %s, %s)"
        " on conflict (idempotency_key) where idempotency_key is not null do nothing returning id"
    )
    (first,) = place.all(insert, timedelta(hours=1), "ada")

    assert place.all(insert, timedelta(hours=2), "bob") == []
    assert run(place, first).options == RunOptions(max_run=3600 * SECOND, by="ada")


def test_many_rows_have_options_of_their_own(place: Place) -> None:
    place.execute(
        "insert into {schema}.intent (id, type, max_attempts) select n::text, 't', n from generate_series(1, 50) as n"
    )

    assert [run(place, str(n)).options.max_attempts for n in range(1, 51)] == list(range(1, 51))


@pytest.mark.parametrize(
    ("column", "value", "refusal"),
    [
        ("max_run", "0", "max_run 00:00:00: it is a length of time greater than zero, and at most 1,000 years"),
        ("max_suspend", "-1 s", "max_suspend -00:00:01: it is a length of time greater than zero"),
        (
            "retention",
            "1001 years",
            "retention 1001 years: it is a length of time greater than zero, and at most 1,000",
        ),
        ("max_run", "170000000 years", "max_run 170000000 years: it is a length of time greater than zero"),
        ("max_attempts", 0, "max_attempts 0: it is a number from 1 to 1,000,000"),
        ("max_attempts", 1_000_001, "max_attempts 1000001: it is a number from 1 to 1,000,000"),
        ("undelivered", "keep", "undelivered 'keep': it is one of discard, dead_letter"),
        ("parent_id", "", "parent_id '': it has 1 to 200 characters"),
        ("parent_id", "a\nb", "parent_id 'a�b': it has the character U+000A"),
        ("by", "x" * (ACTOR_LIMIT + 1), f"by has {ACTOR_LIMIT + 1} characters; it has at most {ACTOR_LIMIT}"),
    ],
)
def test_a_bad_option_is_refused_with_its_column_and_value(place: Place, column: str, value: Any, refusal: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as raised:
        place.execute("insert into {schema}.intent (type, COLUMN) values ('t', %s)".replace("COLUMN", column), value)

    assert refusal in str(raised.value)
    assert place.all("select count(*) from {schema}.runs") == [0]


def test_a_run_that_only_names_a_parent_is_cancelled_at_once(place: Place) -> None:
    place.execute("insert into {schema}.intent (id, type, parent_id) values ('r', 't', 'p')")

    assert place.all("select {schema}.cancel('r')") == [True]
    assert run(place, "r").state is RunState.CANCELLED
