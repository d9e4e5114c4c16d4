"""The Lua scripts of the Redis store. Each one is one atomic operation on the server.

The files in `lua` name rules of `core` and limits of this store in double braces. This module fills them in, so that
Lua defines none of them itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from hiredis import pack_command

from holdfast.core import audit
from holdfast.core.claim_order import BEGUN, CHILD, EPOCH_TOKENS, NEW, SHARE
from holdfast.core.entries import FLOW_LOCATION
from holdfast.core.location import PEOPLE_PREFIX
from holdfast.core.model import Run, StoredColumn, columns_of
from holdfast.core.rules import SUSPECT_CRASHES
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import MARK_MICROS, TOUCH_MICROS
from holdfast.stores.kv.names import MOVING_FIELDS
from holdfast.stores.sql_text import filled_in

CHUNK = 4_000
"""Maximum number of arguments of one command in a script. Lua passes at most about 8,000 values to a function."""
OWN_RUNS = 64
"""Number of held runs of a lane that a claim examines for one of another worker."""

VERSION_LEAP = 1_000_000_000
"""Distance by which versions leap ahead in a new epoch: more than a server can write before its replicas follow."""
TOKEN_LEAP = EPOCH_TOKENS
"""Distance by which tokens leap ahead in a new epoch: more than the claims of a run in one epoch."""
NUMBER_LEAP = 1_000_000
"""Distance by which numbers of events and dead letters leap ahead. It is smaller, because people see them."""
EPOCHS_KEPT = 100
"""Number of lines in the log of epochs."""

_MOVING = {name.upper(): columns_of(Run)[name] for name in MOVING_FIELDS}
_NUMBERS = [name for name, column in _MOVING.items() if column.scalar is int and column.default is not None]


def _json_value(name: str, column: StoredColumn) -> str:
    """Return the expression for the JSON of a field of the moving part. A number is formatted as it is."""
    text = "text_or_null" if column.default is None else "quoted"
    function = {bool: "tostring", int: "" if name in _NUMBERS else "whole_or_null"}.get(column.scalar, text)
    return f"{function}(moving[{name}])"


_CONSTANTS = {
    "moving_names": ", ".join(_MOVING),
    "moving_places": ", ".join(map(str, range(1, len(_MOVING) + 1))),
    "moving_numbers": "{" + ", ".join(_NUMBERS) + "}",
    "moving_formats": ",".join("%.0f" if name in _NUMBERS else "%s" for name in _MOVING),
    "moving_values": ", ".join(_json_value(name, column) for name, column in _MOVING.items()),
    "chunk": str(CHUNK),
    "own_runs": str(OWN_RUNS),
    "mark_micros": str(MARK_MICROS),
    "touch_millis": str(TOUCH_MICROS // 1_000),
    "version_leap": str(VERSION_LEAP),
    "token_leap": str(TOKEN_LEAP),
    "number_leap": str(NUMBER_LEAP),
    "epochs_kept": str(EPOCHS_KEPT),
    "time_digits": str(names.TIME_DIGITS),
    "time_high_digits": str(names.TIME_DIGITS - 8),
    "flow_location": FLOW_LOCATION,
    "people_prefix": PEOPLE_PREFIX,
    "begun": str(BEGUN),
    "child": str(CHILD),
    "new": str(NEW),
    "share": str(SHARE),
    "suspect_crashes": str(SUSPECT_CRASHES),
    "routine": "{" + ", ".join(f"{event} = true" for event in audit.ROUTINE) + "}",
    "routine_kept": str(audit.KEPT),
    "trim_every": str(audit.TRIM_EVERY),
}

_FILES = {
    "load": ("time", "fields", "load"),
    "commit": ("time", "commit"),
    "claim": ("time", "fields", "moving", "claim"),
    "renew": ("time", "moving", "renew"),
    "epoch": ("time", "moving", "epoch"),
}
"""The files that make up each script, in order."""

Argument = str | bytes | int

pack: Callable[[tuple[Argument, ...]], bytes] = pack_command  # type: ignore[assignment]
"""Returns a command as the server reads it."""


@dataclass(frozen=True, slots=True)
class LuaScript:
    """A script, as the server knows it: by the hash of its text."""

    name: str
    text: str
    sha: str

    def call(self, keys: Sequence[str], arguments: Sequence[Argument]) -> bytes:
        """Return the command that runs the script, if the server has it already."""
        return pack((b"EVALSHA", self.sha, len(keys), *keys, *arguments))

    def whole_call(self, keys: Sequence[str], arguments: Sequence[Argument]) -> bytes:
        """Return the command that runs the script by its text. The server keeps the script afterwards."""
        return pack((b"EVAL", self.text, len(keys), *keys, *arguments))


@dataclass(frozen=True, slots=True)
class LuaScripts:
    """All scripts of the store."""

    load: LuaScript
    commit: LuaScript
    claim: LuaScript
    renew: LuaScript
    epoch: LuaScript


def lua_scripts() -> LuaScripts:
    """Read the scripts from their files."""
    folder = files(__package__) / "lua"
    wanted = {part for parts in _FILES.values() for part in parts}
    found = {name: (folder / f"{name}.lua").read_text("utf-8") for name in wanted}
    texts = {name: filled_in("\n".join(found[part] for part in parts), _CONSTANTS) for name, parts in _FILES.items()}
    return LuaScripts(**{name: LuaScript(name, text, script_sha(text)) for name, text in texts.items()})


def script_sha(text: str) -> str:
    """Return the name under which a server keeps a script."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


# Keys: all keys of a namespace have its name in braces, so they are in one slot


VERSIONS = "#"
"""The counter of versions."""
MARKS = "x"
"""A key that exists while there may be marks. The mark of a partition has the name `x:<partition>`."""


class Keys:
    """The keys of one namespace."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.channel = f"{prefix}hints"
        """The channel of hints."""
        self.meta = prefix + names.META
        self.versions = prefix + VERSIONS
        self.of_epoch = tuple(
            prefix + name for name in (names.META, VERSIONS, "epochs", names.EVENT_NUMBERS, names.LETTER_NUMBERS)
        )

    def of(self, name: str) -> str:
        return self.prefix + name
