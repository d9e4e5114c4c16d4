"""Descent: follows families down while an operation loads, so that depth costs loads but no decisions.

An operation that closes or reopens a family asks for one level at a time, and starts over each time. For a chain of a
thousand runs that would be a thousand decisions. So a load also follows the runs that it has found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.core.model import EntryKind
from holdfast.core.states import RunState
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import AllFields, Fields, Log, Range, Read
from holdfast.stores.kv.histories import entry_of
from holdfast.stores.kv.names import run_of
from holdfast.stores.kv.runs import FAILURES, HEAD, head_of, payload_of, reads_to_close
from holdfast.stores.kv.workspace import KnownPartitions

Follow = Callable[[KnownPartitions, Sequence[Read]], list[Read]]
"""Returns what to load next, after some reads were loaded."""

_CLOSES = b'"on_close":"cancel"'
_LOST = (RunState.FAILED, RunState.CANCELLED)
_CHILDREN = names.children_index("")
_HEAD = names.head("")
_HISTORY = names.history("")


def closing(known: KnownPartitions, loaded: Sequence[Read]) -> list[Read]:
    """Return what a cancel of whole families reads next.

    The head of a child shows if it ends with its parent. If so, its own children are read, and then their heads.
    """
    more: list[Read] = []
    for read in loaded:
        if isinstance(read, Range) and read.index.startswith(_CHILDREN):
            heads = (head_of(member[names.TIME_DIGITS :]) for member in known.range(read)[0])
            more += [head for head in heads if not known.has(head)]
        elif isinstance(read, Fields) and read.fields == HEAD and read.partition.startswith(_HEAD):
            body = known.field(read.partition, names.BODY)
            if body is not None and _CLOSES in body and known.field(read.partition, names.MOVING) is not None:
                run_id = read.partition[len(_HEAD) :]
                more += [one for one in reads_to_close(run_id) if not known.has(one)]
    return more


def reopening(limit: int) -> Follow:
    """Return what a recovery reads next: failed and cancelled children with their histories, at most `limit`."""
    left = [limit]

    def follow(known: KnownPartitions, loaded: Sequence[Read]) -> list[Read]:
        more: list[Read] = []
        for read in loaded:
            if isinstance(read, AllFields) and read.partition.startswith(_HISTORY):
                more += _children_in(known, read.partition)
            elif isinstance(read, Fields) and read.fields == HEAD and left[0] > 0 and _is_lost(known, read.partition):
                left[0] -= 1
                run_id = read.partition[len(_HEAD) :]
                reads = (AllFields(names.history(run_id)), Log(names.audit(run_id)), payload_of(run_id))
                more += [one for one in reads if not known.has(one)]
        return more

    return follow


def _children_in(known: KnownPartitions, history: str) -> list[Read]:
    refs: list[str] = []
    for location, value in known.whole(history).items():
        if b'"child"' in value:
            try:
                entry = entry_of(location, value)
            except FAILURES:
                continue  # the operation itself reports that it cannot be read
            if entry.kind is EntryKind.CHILD and entry.ref is not None:
                refs.append(entry.ref)
    return [head for head in map(head_of, refs) if not known.has(head)]


def _is_lost(known: KnownPartitions, head: str) -> bool:
    if not head.startswith(_HEAD) or known.field(head, names.MOVING) is not None:
        return False
    body = known.field(head, names.BODY)
    try:
        return body is not None and run_of({names.BODY: body}).state in _LOST
    except FAILURES:
        return False
