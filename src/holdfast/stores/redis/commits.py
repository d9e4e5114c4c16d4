"""Commits: how parts become arguments of `commit.lua`, and how its answer is read. It is the hot path of all writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from holdfast.core.clock import Micros
from holdfast.stores.kv.driver import Part
from holdfast.stores.redis.keys import MARKS
from holdfast.stores.redis.scripts import Argument

PARTS_AT_ONCE = 500
"""Maximum number of parts in one call, so that a call does not stop the server for long."""
CALL_BYTES = 256 * 1024
"""Maximum size of a call with several parts. One part is never cut."""

_NAME_BYTES = 60
"""About the size of the name of a partition or member in a call, with its framing and numbers."""
_FIELD_BYTES = 40
"""About the size of the name of a field, with the framing of its value."""

_flat = chain.from_iterable


def packed_parts(parts: Sequence[Part], prefix: str) -> tuple[list[str], list[Argument]]:
    """Return the keys and arguments of parts. `commit.lua` describes their order."""
    keys: list[str] = []
    arguments: list[Argument] = []
    add_key, add = keys.append, arguments.append
    for part in parts:
        checks = part.checks
        add(part.owner)
        add(len(checks))
        for name, version in checks.items():
            add_key(prefix + name)
            add(version)
        if part.clears:
            _pack_names("C", part.clears, prefix, keys, arguments)
        for name, fields in part.puts.items():
            add_key(prefix + name)
            add("P")
            add(2 * len(fields))
            arguments += _flat(fields.items())
        if part.drops or part.touches:
            _pack_lists("D", part.drops, prefix, keys, arguments)
            _pack_names("T", part.touches, prefix, keys, arguments)
        if part.removes:
            _pack_lists("R", part.removes, prefix, keys, arguments)
        for name, scores in part.adds.items():
            add_key(prefix + name)
            add("A")
            add(2 * len(scores))
            arguments += _flat(zip(scores.values(), scores, strict=True))
        if part.cuts or part.appends or part.marks:
            _pack_lists("X", part.cuts, prefix, keys, arguments)
            _pack_lists("L", part.appends, prefix, keys, arguments)
            if part.marks:
                add_key(prefix + MARKS)
                arguments += ("M", len(part.marks) + 1, part.mark_micros // 1_000, *part.marks)
        add(".")
    return keys, arguments


def _pack_names(kind: str, written: Sequence[str], prefix: str, keys: list[str], arguments: list[Argument]) -> None:
    for name in written:
        keys.append(prefix + name)
        arguments += (kind, 0)


def _pack_lists(
    kind: str,
    written: Mapping[str, Sequence[str]] | Mapping[str, Sequence[bytes]],
    prefix: str,
    keys: list[str],
    arguments: list[Argument],
) -> None:
    for name, items in written.items():
        keys.append(prefix + name)
        arguments += (kind, len(items), *items)


def in_batches(parts: Sequence[Part]) -> list[Sequence[Part]]:
    """Return parts in batches that are probably neither too many nor too large for one call: at least one batch.

    A call that is too large after all costs time twice, because it is packed again in halves.
    """
    batches: list[Sequence[Part]] = []
    first = size = 0
    for place, part in enumerate(parts):
        more = _estimated_bytes(part)
        size += more
        if place > first and (size > CALL_BYTES or place - first == PARTS_AT_ONCE):
            batches.append(parts[first:place])
            first, size = place, more
    return [*batches, parts[first:]]


def _estimated_bytes(part: Part) -> int:
    """Return about how many bytes a part takes in a call. The values of fields count exactly."""
    size = _NAME_BYTES * (len(part.checks) + len(part.puts))
    if part.adds or part.removes or part.drops:
        others = len(part.drops) + len(part.removes) + len(part.adds) + len(part.appends)
        size += 2 * _NAME_BYTES * others  # with the names of their members
    for fields in part.puts.values():
        for value in fields.values():
            size += len(value) + _FIELD_BYTES
    return size


def written_names(parts: Sequence[Part]) -> set[str]:
    """Return the partitions to which parts give a new version."""
    return {name for part in parts for name in chain(part.puts, part.drops, part.touches)}


class CommitReply(NamedTuple):
    """The answer to one call: the time, the version (0 if none was needed), and what was refused, for each part.

    `is_repeat`: the answer to a first attempt was lost.
    """

    now: Micros
    version: int
    refused: list[str | None]
    is_repeat: bool


def commit_reply(reply: list[int], parts: Sequence[Part], *, is_repeat: bool) -> CommitReply:
    """Read the answer to a call."""
    if len(reply) == 2:
        return CommitReply(reply[0], reply[1], [None] * len(parts), is_repeat)
    refused = [
        None if failed == 0 else part.marks[0] if failed < 0 else list(part.checks)[failed - 1]
        for part, failed in zip(parts, reply[2:], strict=True)
    ]
    return CommitReply(reply[0], reply[1], refused, is_repeat)
