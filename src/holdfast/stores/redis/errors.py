"""Translation of errors of the server and the network into holdfast's, which say what happened and what to do."""

from __future__ import annotations

import errno
import re
import socket
import ssl

from holdfast.core.errors import HoldfastError, InvalidRequest, StoreUnavailable
from holdfast.stores.redis.address import RedisAddress


class ServerError(Exception):
    """An error reply of the server. Its text begins with a code in most cases."""

    @property
    def code(self) -> str:
        """The code of the error, such as `OOM`. In an error of a script, it may be in the middle of the text."""
        text = str(self)
        found = _CODE.match(text)
        code = found[1] if found else ""
        if code in ("", "ERR") and "script" in text and (inner := _INNER_CODE.search(text)):
            return inner[1]  # Redis 6.2 wraps errors of commands in scripts
        return "NOPERM" if "ACL failure" in text or "no permissions" in text else code


class ConnectionLost(Exception):
    """Raised for calls without an answer when a connection ends. The server may have carried them out."""


class HandshakeBroken(Exception):
    """Raised when a new connection ends before it can be used."""


class Silence(Exception):
    """Raised when the server did not answer in time, not even with an error."""


_FAILOVER = frozenset({"READONLY", "MASTERDOWN", "LOADING", "CLUSTERDOWN", "MOVED", "ASK", "TRYAGAIN"})
_LOGIN = frozenset({"NOAUTH", "WRONGPASS", "NOPERM", "DENIED"})

_NOPERM_ADVICE = (
    "does not allow this user what the store needs; for a user of its own, run: "
    "ACL SETUSER {user} on >password ~{{{namespace}}}:* resetchannels &{{{namespace}}}:* +@all -@dangerous +info "
    "+config|get"
)

_ADVICE = {
    "OOM": (
        "is out of memory; nothing was written; raise maxmemory, or remove old runs (`holdfast prune` works even now), "
        "then it works again"
    ),
    "READONLY": "is a replica, which cannot be written; name the primary, or wait until the failover is over",
    "MASTERDOWN": "is a replica without a connection to its primary; name the primary",
    "LOADING": "is loading its data from disk; it can be used again when that is done",
    "BUSY": "is busy with a script of another client; nothing was written",
    "NOAUTH": "requires a password; write redis://:password@host or redis://user:password@host",
    "WRONGPASS": "refuses user or password; check both in the URL",
    "NOPERM": _NOPERM_ADVICE,
    "DENIED": "is in protected mode and takes connections only from its own machine; set a password on the server",
    "MISCONF": "cannot save its data, so it refuses to write; nothing was written; check its disk and its log",
    "NOREPLICAS": "has fewer connected replicas than min-replicas-to-write; nothing was written",
    "CLUSTERDOWN": "is part of a cluster that is down",
    "MOVED": "is part of a cluster, which this store does not support; use a server without cluster mode",
    "CROSSSLOT": "is part of a cluster, which this store does not support; use a server without cluster mode",
    "WRONGTYPE": (
        "has keys of another program under the names of this store; choose another namespace (?namespace=…) or "
        "another database"
    ),
    "EXECABORT": "refused a transaction; nothing was written",
}

_TEXTS = (
    (re.compile(r"max number of clients"), "has no connection left; raise maxclients, or use fewer processes"),
    (
        re.compile(r"DB index is out of range|invalid DB index"),
        "has no database with this number; most servers have 0 to 15, a cluster only 0",
    ),
    (
        re.compile(r"without any password configured|no password is set"),
        "has no password; remove user and password from the URL, or set them on the server",
    ),
    (
        re.compile(r"unknown command|unknown subcommand"),
        "does not know a command that the store needs; is it Redis 6.2 or newer, or Valkey?",
    ),
    (
        re.compile(r"undeclared key|non local key|not declared"),
        "insists that scripts declare all keys, which claims cannot do; use Redis or Valkey itself",
    ),
)

_REFUSED = "no server listens there; is it running, and are host and port right?"
_CODE = re.compile(r"([A-Z]+)\b")
_INNER_CODE = re.compile(r"-([A-Z]{2,}) ")


def is_lasting(error: ServerError) -> bool:
    """True if the connection should be given up, because the server is not, or no longer, the one to use."""
    return error.code in _FAILOVER or error.code in _LOGIN


def unavailable(address: RedisAddress, error: BaseException) -> BaseException:
    """Return the error for the caller, to be raised `from` the given one. Other errors are returned unchanged."""
    match error:
        case HoldfastError():
            return error
        case ServerError():
            return _refusal(address, error)
        case Silence():
            return StoreUnavailable(
                f"{address.shown} does not answer ({error}); the operation may or may not have been applied, and may "
                "be repeated"
            )
        case ConnectionLost():
            return StoreUnavailable(
                f"{address.shown} cannot be reached: the connection broke ({address.scrubbed(str(error))}); the "
                "operation may or may not have been applied, and may be repeated"
            )
        case HandshakeBroken():
            is_plain = ", and does this port take connections without TLS" if address.tls is None else ""
            return StoreUnavailable(
                f"{address.shown} cannot be reached: a new connection broke at once; is it a Redis server{is_plain}? "
                f"({address.scrubbed(str(error))})"
            )
        case UnicodeEncodeError():
            return InvalidRequest(f"a value cannot be stored in Redis: {error}")
        case OSError():
            return StoreUnavailable(f"{address.shown} cannot be reached: {_network_advice(address, error)}")
        case _:
            return error


def _refusal(address: RedisAddress, error: ServerError) -> StoreUnavailable:
    text = address.scrubbed(" ".join(str(error).split()))
    code = error.code
    advice = next((advice for words, advice in _TEXTS if words.search(text)), "") or _ADVICE.get(code, "")
    if code == "NOPERM":
        advice = advice.format(user=address.user or "holdfast", namespace=address.namespace)
    refusal = StoreUnavailable(f"{address.shown} {advice or 'reports an error'} ({text})")
    refusal.is_held_up = code == "BUSY"
    return refusal


def _network_advice(address: RedisAddress, error: OSError) -> str:
    text = address.scrubbed(" ".join(str(error).split()))
    match error:
        case ssl.SSLCertVerificationError():
            advice = "its certificate is not accepted; name the authority with ssl_ca_certs=file"
        case ssl.SSLError():
            advice = "it does not speak TLS here; write redis:// instead of rediss://, or name its TLS port"
        case socket.gaierror():
            advice = "the host name is unknown; is it spelled right?"
        case ConnectionRefusedError():
            advice = _REFUSED
        case TimeoutError() if address.tls is not None:
            advice = (
                "no answer; is the host right, does a firewall block the port, and does the server speak TLS there?"
            )
        case TimeoutError():
            advice = "no answer; is the host right, and does a firewall block the port?"
        case _ if f"[Errno {errno.ECONNREFUSED}]" in text:  # of several addresses, all refuse
            advice = _REFUSED
        case _:
            advice = "is the server running?"
    return f"{advice} ({text or type(error).__name__})"
