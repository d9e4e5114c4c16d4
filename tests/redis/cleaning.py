"""Cleaning: finds the keys of a namespace, and removes them after a test.

All keys of a namespace begin with its name in braces: `{namespace}:…`. So all of them are on one node of a cluster.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdfast.core.errors import InvalidRequest
from holdfast.testing.patience import GUARD_SECONDS

MAX_STRAYS = 20
"""Number of stray keys that a message names."""

# One script, so that no other client writes in between. It removes the keys that begin with the first argument, ignores
# those that begin with the second one, if there is one, and answers with the others.
_CLEAN = """
local own, other, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local strays, cursor = {}, '0'
repeat
    local page = redis.call('scan', cursor, 'count', 1000)
    cursor = page[1]
    for _, key in ipairs(page[2]) do
        if string.sub(key, 1, #own) == own then
            redis.call('unlink', key)
        elseif #strays < limit and (other == '' or string.sub(key, 1, #other) ~= other) then
            strays[#strays + 1] = key
        end
    end
until cursor == '0'
return strays
"""


def connect(url: str, **options: Any) -> redis.Redis:
    """Return a client of the server of a store's URL. It does not repeat what fails.

    `options` are those of `redis.Redis`.
    """
    parts = urlsplit(url)
    # The client refuses the options of a store.
    query = {name: values for name, values in parse_qs(parts.query).items() if name.startswith("ssl_")}
    limits = {"socket_timeout": GUARD_SECONDS, "socket_connect_timeout": GUARD_SECONDS}
    return redis.Redis.from_url(
        urlunsplit(parts._replace(query=urlencode(query, doseq=True))),
        **{**limits, **options, "retry": Retry(NoBackoff(), 0)},
    )


def namespace_of(url: str) -> str:
    """Return the namespace that a URL names."""
    named = parse_qs(urlsplit(url).query).get("namespace", [])
    if len(named) != 1:
        raise InvalidRequest("the URL of a test must name one namespace: redis://host:port/0?namespace=name")
    return named[0]


def with_namespace(url: str, namespace: str) -> str:
    """Return a URL with this namespace in the place of its own, if it has one."""
    parts = urlsplit(url)
    query = {**parse_qs(parts.query), "namespace": [namespace]}
    return urlunsplit(parts._replace(query=urlencode(query, doseq=True)))


def keys_of(url: str) -> list[str]:
    """Return the names of all keys in the namespace of a URL, in order, each without the namespace."""
    beginning = f"{{{namespace_of(url)}}}"
    with connect(url) as client:
        found = client.scan_iter(match=_escaped(beginning) + "*", count=1000)
        return sorted({key.decode(errors="replace").removeprefix(beginning).removeprefix(":") for key in found})


def product_of(url: str) -> str:
    """Return the product and version of a server: `Valkey 9.1.2`."""
    with connect(url) as client:
        facts: Any = client.info("server")
    # Valkey reports the version of Redis that it stands for, and its own.
    own = facts.get("valkey_version")
    return f"Redis {facts['redis_version']}" if own is None else f"Valkey {own}"


class Cleaner:
    """A permanent connection to the server of a URL."""

    def __init__(self, url: str) -> None:
        self._client = connect(url)
        self._clean = self._client.register_script(_CLEAN)

    def clean(self, namespace: str, *, others: str = "") -> list[str]:
        """Remove all keys of namespaces whose names begin with this one. Return the other keys: the strays.

        Keys of namespaces that begin with `others` are no strays.
        """
        strays: Any = self._clean(args=["{" + namespace, others and "{" + others, MAX_STRAYS])
        return sorted({key.decode(errors="replace") for key in strays})

    def end_sessions(self) -> None:
        """End all other connections to the database. Requests of theirs that are under way are not executed."""
        with self._client.pipeline(transaction=False) as pipeline:
            pipeline.client_id()
            pipeline.client_list()
            own, sessions = pipeline.execute()
            database = str(self._client.get_connection_kwargs().get("db", 0))
            for session in sessions:
                if session["db"] == database and session["id"] != str(own):
                    pipeline.client_kill_filter(_id=session["id"])
            pipeline.execute()

    def empty(self) -> None:
        """Remove all keys of the database."""
        self._client.flushdb()

    def close(self) -> None:
        self._client.close()


def _escaped(text: str) -> str:
    """Return a pattern of Redis that matches this text only."""
    return re.sub(r"([*?\[\]\\^])", r"\\\1", text)
