"""The address of a Postgres store, parsed from its URL. It never shows the password."""

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
    """The location of a Postgres database, and options for its sessions.

    `conninfo` is for the driver and contains the password. `shown` is for people and does not. `connect_timeout` is in
    seconds per host. `is_prepared` is False behind a transaction pooler, which may give each transaction another
    server connection.
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
        """Parse `postgresql://user:password@host:port/database?option=value`.

        holdfast's own options are `schema`, `prepare` and `hints`. All others, such as `sslmode`, go to libpq.
        """
        bare, own = _divided(url)
        parts = _parsed(url, bare)
        # Writes need the primary. With this setting the driver picks the primary among several hosts.
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
        """Return a text with every password hidden. The text may come from the driver or the server."""
        for secret in self.secrets:
            # Whole words only: a one-letter password would otherwise remove that letter from every word.
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", _HIDDEN, text)
        return text


def _divided(url: str) -> tuple[str, dict[str, str]]:
    """Split holdfast's own options from a URL. The rest stays exactly as written, because libpq parses it."""
    scheme = next((one for one in _SCHEMES if url.startswith(one)), None)
    if scheme is None:
        raise InvalidRequest(
            f"{_guarded(url)!r} is not a Postgres URL; write postgresql://user:password@host:port/database"
        )
    # The same rule as libpq: everything before the first @ is user and password, unless a / comes first.
    rest = url.removeprefix(scheme)
    account, at, place = rest.partition("@")
    if not at or "/" in account:
        account, at, place = "", "", rest
    where, mark, query = place.partition("?")
    if "@" in where:
        raise InvalidRequest(
            f"{_guarded(url)!r} has one @ too many; in user and password write %40 for @, %2F for / and %3A for :"
        )
    if where.count("[") != where.count("]"):
        raise InvalidRequest(f"{_guarded(url)!r} lacks a bracket around the host; write an IPv6 address like [::1]")
    pieces = [piece for piece in query.split("&") if piece]
    own = {name: unquote(value) for name, _, value in (one.partition("=") for one in pieces) if name in _OWN_OPTIONS}
    theirs = [piece for piece in pieces if piece.partition("=")[0] not in _OWN_OPTIONS]
    return scheme + account + at + where + (mark if theirs else "") + "&".join(theirs), own


def _parsed(url: str, bare: str) -> dict[str, str]:
    try:
        return {name: str(value) for name, value in conninfo_to_dict(bare).items()}
    except psycopg.ProgrammingError as error:
        # `from None`, because the text of the driver's error may quote the password.
        text = str(error).strip()
        account = bare.partition("://")[2].partition("@")[0]
        if "password" in url or any(piece and piece in text for piece in account.split(":")[1:]):
            text = "it contains an invalid name or value"
        raise InvalidRequest(
            f"{_guarded(url)!r}: {text}; valid options are schema, prepare, hints and those of libpq; in user, "
            "password and values write characters such as @ : / ? % as %40 %3A %2F %3F %25"
        ) from None


def _check_ports(url: str, ports: str) -> None:
    for port in ports.split(","):
        if port and not (port.isdecimal() and 1 <= int(port) <= _PORT_LIMIT):
            raise InvalidRequest(f"{_guarded(url)!r}: the port must be a number from 1 to {_PORT_LIMIT}, not {port!r}")


def _schema(name: str) -> str:
    if not _SCHEMA.fullmatch(name) or name.startswith("pg_"):
        raise InvalidRequest(
            f"schema={name!r} is not allowed: use at most 41 characters from a-z, 0-9 and _, and do not begin with a "
            "digit or pg_"
        )
    return name


def _switch(option: str, value: str) -> bool:
    if value not in _SWITCH:
        raise InvalidRequest(f"{option}={value!r} is not valid: write {option}=on or {option}=off")
    return _SWITCH[value]


def _seconds(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidRequest(f"connect_timeout={text!r} is not a whole number of seconds") from None


def _shown(parts: dict[str, str], schema: str) -> str:
    """Return the address as a URL for people, without the password and with no option except the schema."""
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
    """Return an invalid URL with everything hidden that may be a password."""
    scheme, mark, rest = url.partition("://" if "://" in url else ":")
    rest = re.sub(r"(?i)([a-z_]*(?:password|secret)=)[^&]*", rf"\1{_HIDDEN}", rest)
    if "@" in rest:
        rest = f"{_HIDDEN}@{rest.rpartition('@')[2]}"
    return scheme + mark + rest
