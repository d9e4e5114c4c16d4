"""An address: what a URL says about where the database is and how to use it, without ever showing its password."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.core.errors import InvalidRequest

DEFAULT_SCHEMA = "holdfast"
CONNECT_SECONDS = 5
_PORT_LIMIT = 65_535

_SCHEMES = ("postgresql://", "postgres://")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_OWN_OPTIONS = frozenset({"schema", "prepare", "hints"})
_SWITCH = {"on": True, "off": False}
_SECRET_OPTIONS = ("password", "sslpassword", "oauth_client_secret")
_HIDDEN = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresAddress:
    """Where a Postgres database is, and how its sessions behave.

    `conninfo` is for the driver and holds the password; `shown` is for people. `connect_timeout` is in seconds, for
    each host. Not `is_prepared`: behind a pooler that gives each transaction another connection of the server.
    """

    conninfo: str = field(repr=False)
    shown: str
    schema: str = DEFAULT_SCHEMA
    user: str = ""
    database: str = ""
    connect_timeout: int = CONNECT_SECONDS
    is_prepared: bool = True
    has_hints: bool = True
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, url: str) -> Self:
        """Read `postgresql://user:password@host:port/database?option=value`.

        Options of ours are `schema`, `prepare` and `hints`; all others are libpq's, such as `sslmode`.
        """
        bare, own = _divided(url)
        parts = _parsed(url, bare)
        # Whatever writes must reach the primary; of several hosts the driver then takes the one that is.
        parts.setdefault("target_session_attrs", "read-write")
        parts.setdefault("connect_timeout", str(CONNECT_SECONDS))
        _check_ports(url, parts.get("port", ""))
        schema = _schema(own.get("schema", DEFAULT_SCHEMA))
        return cls(
            conninfo=make_conninfo(**parts),
            shown=_shown(parts, schema),
            schema=schema,
            user=parts.get("user", ""),
            database=parts.get("dbname", "") or parts.get("user", ""),
            connect_timeout=_seconds(parts["connect_timeout"]),
            is_prepared=_switch("prepare", own.get("prepare", "on")),
            has_hints=_switch("hints", own.get("hints", "on")),
            secrets=tuple(parts[name] for name in _SECRET_OPTIONS if parts.get(name)),
        )

    def scrubbed(self, text: str) -> str:
        """A text in which no password is left, whoever wrote it."""
        for secret in self.secrets:
            # Whole words only: a password of one letter would take that letter out of every word.
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", _HIDDEN, text)
        return text


def _divided(url: str) -> tuple[str, dict[str, str]]:
    """A URL without the options that are ours, and those. What is left stays as it is written: libpq reads it."""
    scheme = next((one for one in _SCHEMES if url.startswith(one)), None)
    if scheme is None:
        raise InvalidRequest(f"{_guarded(url)!r}: a Postgres URL is postgresql://user:password@host:port/database")
    # As libpq does: everything before the first @ is user and password, unless a / comes first.
    rest = url.removeprefix(scheme)
    account, at, place = rest.partition("@")
    if not at or "/" in account:
        account, at, place = "", "", rest
    where, mark, query = place.partition("?")
    if "@" in where:
        raise InvalidRequest(
            f"{_guarded(url)!r}: there is one @ too many; in user and password write %40 for @, %2F for / and %3A for :"
        )
    if where.count("[") != where.count("]"):
        raise InvalidRequest(f"{_guarded(url)!r}: a bracket around the host is missing; an IPv6 address is like [::1]")
    pieces = [piece for piece in query.split("&") if piece]
    own = {name: unquote(value) for name, _, value in (one.partition("=") for one in pieces) if name in _OWN_OPTIONS}
    theirs = [piece for piece in pieces if piece.partition("=")[0] not in _OWN_OPTIONS]
    return scheme + account + at + where + (mark if theirs else "") + "&".join(theirs), own


def _parsed(url: str, bare: str) -> dict[str, str]:
    try:
        return {name: str(value) for name, value in conninfo_to_dict(bare).items()}
    except psycopg.ProgrammingError as error:
        # Without the driver's error as its cause, whose text may quote the password.
        text = str(error).strip()
        account = bare.partition("://")[2].partition("@")[0]
        if "password" in url or any(piece and piece in text for piece in account.split(":")[1:]):
            text = "a name or value in it cannot be read"
        raise InvalidRequest(
            f"{_guarded(url)!r}: {text}; options are schema, prepare, hints and those of libpq, and characters such as "
            "@ : / ? % in user, password and values are written %40 %3A %2F %3F %25"
        ) from None


def _check_ports(url: str, ports: str) -> None:
    for port in ports.split(","):
        if port and not (port.isdecimal() and 1 <= int(port) <= _PORT_LIMIT):
            raise InvalidRequest(f"{_guarded(url)!r}: the port is a number from 1 to {_PORT_LIMIT}, not {port!r}")


def _schema(name: str) -> str:
    if not _SCHEMA.fullmatch(name) or name.startswith("pg_"):
        raise InvalidRequest(
            f"schema={name!r} is not allowed: use at most 41 of a-z, 0-9 and _, not beginning with a digit or pg_"
        )
    return name


def _switch(option: str, value: str) -> bool:
    if value not in _SWITCH:
        raise InvalidRequest(f"{option}={value!r} is not known: write {option}=on or {option}=off")
    return _SWITCH[value]


def _seconds(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidRequest(f"connect_timeout={text!r} is not a whole number of seconds") from None


def _shown(parts: dict[str, str], schema: str) -> str:
    """The address as a URL a person recognises: no password, and of the options only the schema."""
    account = parts.get("user", "") + (f":{_HIDDEN}" if parts.get("password") else "")
    hosts = parts.get("host", "").split(",")
    ports = parts.get("port", "").split(",")
    options = [] if schema == DEFAULT_SCHEMA else [f"schema={schema}"]
    if hosts[0].startswith(("/", "@")):  # a Unix socket
        options.insert(0, f"host={hosts[0]}")
        place = f":{ports[0]}" if ports[0] else ""
    else:
        ports += ports[-1:] * (len(hosts) - len(ports))
        place = ",".join(f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False))
    query = "?" + "&".join(options) if options else ""
    return f"postgresql://{account}{'@' if account else ''}{place}/{parts.get('dbname', '')}{query}"


def _guarded(url: str) -> str:
    """A URL that could not be read, without all that may be a password."""
    scheme, mark, rest = url.partition("://" if "://" in url else ":")
    rest = re.sub(r"(?i)([a-z_]*(?:password|secret)=)[^&]*", rf"\1{_HIDDEN}", rest)
    if "@" in rest:
        rest = f"{_HIDDEN}@{rest.rpartition('@')[2]}"
    return scheme + mark + rest
