"""The meaning of a Postgres URL, and the protection of its password."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast.core.errors import InvalidRequest
from holdfast.stores.postgres.address import CONNECT_SECONDS, PostgresAddress

PASSWORD = "tr0ub4dor"  # noqa: S105 - not a real password


def test_a_plain_url_uses_the_schema_holdfast_with_hints_and_prepared_statements() -> None:
    address = PostgresAddress.of("postgresql://ann@db.example:5433/shop")

    assert (address.schema, address.is_prepared, address.has_hints) == ("holdfast", True, True)
    assert (address.user, address.database, address.connect_timeout) == ("ann", "shop", CONNECT_SECONDS)
    assert address.shown == "postgresql://ann@db.example:5433/shop"


def test_options_of_holdfast_are_read_and_not_passed_to_the_driver() -> None:
    address = PostgresAddress.of("postgres://db/shop?schema=jobs&sslmode=require&prepare=off&hints=off")

    assert (address.schema, address.is_prepared, address.has_hints) == ("jobs", False, False)
    given = conninfo_to_dict(address.conninfo)
    assert given["sslmode"] == "require"
    assert not {"schema", "prepare", "hints"}.intersection(given)


def test_only_a_writable_server_is_used_unless_the_url_says_otherwise() -> None:
    usual = PostgresAddress.of("postgresql://one,two/shop")
    other = PostgresAddress.of("postgresql://one,two/shop?target_session_attrs=any&connect_timeout=9")

    assert conninfo_to_dict(usual.conninfo)["target_session_attrs"] == "read-write"
    assert conninfo_to_dict(usual.conninfo)["host"] == "one,two"
    assert conninfo_to_dict(other.conninfo)["target_session_attrs"] == "any"
    assert other.connect_timeout == 9


def test_an_option_of_libpq_may_contain_any_character() -> None:
    address = PostgresAddress.of("postgresql:///shop?host=/run/pg&options=-c%20search_path%3Da%26b&schema=jobs")

    assert conninfo_to_dict(address.conninfo)["options"] == "-c search_path=a&b"
    assert address.shown == "postgresql:///shop?host=/run/pg&schema=jobs"


@pytest.mark.parametrize("schema", ["Jobs", "1st", "a-b", 'a"b', "pg_jobs", "", "x" * 42, "jobs%3Bdrop"])
def test_a_schema_that_would_need_quoting_is_refused(schema: str) -> None:
    with pytest.raises(InvalidRequest, match="schema="):
        PostgresAddress.of(f"postgresql://db/shop?schema={schema}")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://db/shop?prepare=no", "prepare=on or prepare=off"),
        ("postgresql://db/shop?hints=1", "hints=on or hints=off"),
        ("postgresql://db/shop?colour=blue", "colour"),
        ("postgresql://db/shop?connect_timeout=soon", "connect_timeout"),
        ("mysql://db/shop", "postgresql://user:password@host:port/database"),
        ("postgresql://db:abc/shop", "the port must be a number from 1 to 65535, not 'abc'"),
        ("postgresql://db:99999/shop", "the port must be a number from 1 to 65535, not '99999'"),
        ("postgresql://one:5432,two:0/shop", "the port must be a number from 1 to 65535, not '0'"),
        ("postgresql://db/shop?port=-1", "the port must be a number from 1 to 65535, not '-1'"),
        ("postgresql://[::1/shop", "lacks a bracket around the host; write an IPv6 address like [::1]"),
    ],
)
def test_an_unknown_option_is_refused_by_name(url: str, told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        PostgresAddress.of(url)

    assert told in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{PASSWORD}@db/shop?colour=blue",
        f"postgresql://ann:{PASSWORD}%zz@db/shop",
        f"postgresql://ann:x@{PASSWORD}@db/shop",
        f"postgresql://ann:x/{PASSWORD}@db/shop",
        f"postgresql://db/shop?password={PASSWORD}&colour=blue",
        f"postgresql://db/shop?password={PASSWORD}%zz",
        f"mysql://ann:{PASSWORD}@db/shop",
        f"postgresql:ann:{PASSWORD}@db/shop",
        f"postgresql://ann:{PASSWORD}@[::1/shop",
        f"postgresql://ann:{PASSWORD}@db:abc/shop",
    ],
)
def test_a_url_that_is_refused_does_not_reveal_its_password(url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        PostgresAddress.of(url)

    assert PASSWORD not in str(refused.value)
    assert refused.value.__cause__ is None


def test_ports_of_all_hosts_and_brackets_in_a_password_are_read() -> None:
    assert conninfo_to_dict(PostgresAddress.of("postgresql://one:5432,two/shop").conninfo)["port"] == "5432,"
    assert PostgresAddress.of(f"postgresql://ann:[{PASSWORD}]]@[::1]:5433/shop").secrets == (f"[{PASSWORD}]]",)


def test_an_address_that_is_shown_does_not_reveal_its_password() -> None:
    address = PostgresAddress.of(f"postgresql://ann:{PASSWORD}@db/shop")

    assert PASSWORD in address.conninfo
    assert PASSWORD not in repr(address) + address.shown
    assert address.scrubbed(f"cannot use {PASSWORD}, says libpq") == "cannot use ***, says libpq"
