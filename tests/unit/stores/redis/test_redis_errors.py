"""Errors of Redis servers and networks, in the words of holdfast."""

from __future__ import annotations

import socket
import ssl

import pytest

from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.stores.redis.address import RedisAddress
from holdfast.stores.redis.errors import ConnectionLost, HandshakeBroken, ServerError, Silence, is_lasting, unavailable
from tests.rows import each_row

ADDRESS = RedisAddress.of("redis://ann:secret@db?namespace=jobs")


@each_row(
    ("text", "code", "told"),
    [
        (
            "OOM command not allowed when used memory > 'maxmemory'. script: 1f, on @user_script:9.",
            "OOM",
            "out of memory",
        ),
        (
            "ERR Error running script (call to f_1): @user_script:9: @user_script: 9: -OOM command not allowed",
            "OOM",
            "nothing was written",
        ),
        ("READONLY You can't write against a read only replica.", "READONLY", "is a replica"),
        ("LOADING Redis is loading the dataset in memory", "LOADING", "loading its data"),
        ("MASTERDOWN Link with MASTER is down", "MASTERDOWN", "name the primary"),
        ("NOAUTH Authentication required.", "NOAUTH", "requires a password"),
        ("WRONGPASS invalid username-password pair", "WRONGPASS", "refuses user or password"),
        ("NOPERM this user has no permissions to run the 'eval' command", "NOPERM", "ACL SETUSER ann on"),
        (
            "ERR ACL failure in script: User ann has no permissions to run the 'time' command",
            "NOPERM",
            "~{jobs}:* resetchannels &{jobs}:*",
        ),
        ("MISCONF Errors writing to the AOF file: No space left on device", "MISCONF", "check its disk"),
        ("NOREPLICAS Not enough good replicas to write.", "NOREPLICAS", "min-replicas-to-write"),
        ("BUSY Redis is busy running a script.", "BUSY", "busy with a script"),
        ("MOVED 3999 127.0.0.1:6381", "MOVED", "part of a cluster"),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", "WRONGTYPE", "another namespace"),
        ("DENIED Redis is running in protected mode", "DENIED", "protected mode"),
        ("ERR max number of clients reached", "ERR", "raise maxclients"),
        ("ERR DB index is out of range", "ERR", "has no database with this number"),
        ("ERR AUTH <password> called without any password configured", "ERR", "has no password"),
        ("ERR unknown command 'EVALSHA'", "ERR", "Redis 6.2 or newer"),
        ("ERR something else", "ERR", "reports an error (ERR something else)"),
    ],
)
def test_error_replies_say_what_happened_and_what_to_do(text: str, code: str, told: str) -> None:
    error = ServerError(text)

    translated = unavailable(ADDRESS, error)

    assert error.code == code
    assert isinstance(translated, StoreUnavailable)
    assert told in str(translated)
    assert str(translated).startswith("redis://ann:***@db:6379/0?namespace=jobs ")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionRefusedError(111, "refused"), "no server listens there"),
        (socket.gaierror(-2, "Name or service not known"), "the host name is unknown"),
        (TimeoutError(), "does a firewall block the port? (TimeoutError)"),
        (ssl.SSLCertVerificationError("self-signed"), "ssl_ca_certs=file"),
        (ssl.SSLError("wrong version number"), "it does not speak TLS here"),
        (OSError("No route to host"), "is the server running? (No route to host)"),
        (ConnectionLost("reset by secret"), "the connection broke (reset by ***); the operation may or may not"),
        (HandshakeBroken("reset by secret"), "does this port take connections without TLS? (reset by ***)"),
        (Silence("no reply for 9 s"), "may or may not have been applied, and may be repeated"),
    ],
)
def test_errors_of_the_network_say_what_to_check(error: Exception, told: str) -> None:
    translated = unavailable(ADDRESS, error)

    assert isinstance(translated, StoreUnavailable)
    assert told in str(translated)
    assert "secret" not in str(translated)


def test_a_text_that_has_no_bytes_is_an_invalid_request() -> None:
    with pytest.raises(UnicodeEncodeError) as caught:
        "\ud800".encode()

    assert isinstance(unavailable(ADDRESS, caught.value), InvalidRequest)


def test_other_errors_stay_as_they_are() -> None:
    for error in (KeyError("x"), StoreUnavailable("closed")):
        assert unavailable(ADDRESS, error) is error


def test_a_connection_is_given_up_when_the_server_is_not_the_one_to_use() -> None:
    assert is_lasting(ServerError("READONLY You can't write"))
    assert is_lasting(ServerError("NOAUTH Authentication required."))
    assert not is_lasting(ServerError("OOM command not allowed"))


def test_only_a_busy_server_holds_a_call_up() -> None:
    held_up = unavailable(ADDRESS, ServerError("BUSY Redis is busy"))
    out_of_memory = unavailable(ADDRESS, ServerError("OOM"))

    assert isinstance(held_up, StoreUnavailable)
    assert isinstance(out_of_memory, StoreUnavailable)
    assert (held_up.is_held_up, out_of_memory.is_held_up) == (True, False)
