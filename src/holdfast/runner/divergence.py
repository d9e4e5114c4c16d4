"""The report of a divergence: history and code side by side, and advice how to fix it. Pure text."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from itertools import zip_longest

from holdfast.core.model import Entry, EntryKind

_BEFORE = 4
_AFTER = 12
_NAME_LIMIT = 48

Side = tuple[str, ...]
Row = tuple[Side | None, str, Side | None]
Requested = tuple[str, EntryKind]
"""The location and kind of an operation that the code asks for."""

Hints = Callable[[Entry | None, Requested | None, Container[str]], tuple[str, ...]]
"""Returns lines that let a run continue, from a recorded entry, a requested operation and the recorded locations."""

ADVICE = (
    "What to do: deploy code that fits. Workers retry a blocked run by themselves; it continues when the code fits.",
    "Or rewind the run to before the difference, or cancel it.",
)
_WANTED = "If the change is intended, one of these lines lets older runs continue:"
_NOT_REMOVABLE = frozenset({EntryKind.REMOVED, EntryKind.ROLLBACK, EntryKind.UNDO})


def requested_instead(recorded: Entry, asked: Mapping[str, EntryKind], known: Container[str]) -> Requested | None:
    """Return the operation that the code asks for instead of a recorded one: if possible new, and in the same scope."""
    scope = _scope_of(recorded.location)
    return min(asked.items(), key=lambda item: (item[0] in known, _scope_of(item[0]) != scope), default=None)


def shown(location: str, kind: EntryKind) -> str:
    """Return an operation as short text: `charge (step)`."""
    return f"{_short(location)} ({kind.value})"


def hints(recorded: Entry | None, requested: Requested | None, known: Container[str]) -> tuple[str, ...]:
    """Return lines to paste into the code, so that it fits runs with `recorded` and without `requested`."""
    lines = []
    if requested is not None:
        name, _ = _called(*requested)
        lines.append(f"if ctx.version({_quoted(name.lstrip('~+'))}, 2) == 1:  # the old code; else the new code")
    is_same_or_moved = requested is not None and requested[0] in known
    if recorded is not None and recorded.kind not in _NOT_REMOVABLE and not is_same_or_moved:
        name, kind = _called(recorded.location, recorded.kind)
        lines.append(f"ctx.removed({_quoted(name)}, {_quoted(kind)})  # at its old place, if you removed it")
    return tuple(lines)


def _called(location: str, kind: EntryKind) -> tuple[str, str]:
    """Return the name and kind of an operation as code writes them: the loop of a mark, the map of a child."""
    *outer, last = (part.partition("#")[0] for part in location.split("/"))
    if outer and kind is EntryKind.LOOP and last.startswith("~"):
        return outer[-1], kind.value
    if outer and kind is EntryKind.CHILD and last.isdigit():
        return outer[-1], "map"
    return last, kind.value


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _scope_of(location: str) -> str:
    return location.rpartition("/")[0]


def report(
    what: str,
    entries: Sequence[Entry],
    missing: Collection[str],
    asked: Mapping[str, EntryKind],
    *,
    pair: tuple[str | None, str | None] = (None, None),
    hints: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> str:
    """Return the report: the pair that differs, history and code around the first difference, and advice.

    `missing` has the locations of entries that the code has not reached, `asked` the operations that it asks for now.
    """
    lines = [f"{what}.", ""]
    if any(pair):
        lines += [f"  recorded:   {pair[0] or 'nothing'}", f"  requested:  {pair[1] or 'nothing'}", ""]
    lines += _side_by_side(entries, missing, asked)
    lines += ["", *notes, *ADVICE]
    if hints:
        lines += ["", _WANTED, "", *(f"    {hint}" for hint in hints)]
    return "\n".join(lines)


def _side_by_side(entries: Sequence[Entry], missing: Collection[str], asked: Mapping[str, EntryKind]) -> list[str]:
    rows = list(_cut(_rows(entries, missing, asked)))
    left, right = _widths([row[0] for row in rows]), _widths([row[2] for row in rows])
    history, code = "recorded", "asked for by the code now"
    left_width = max(len(history), _length(left))
    lines = [
        f"  {history:<{left_width}}     {code}".rstrip(),
        f"  {'-' * left_width}     {'-' * max(len(code), _length(right))}",
    ]
    for recorded, mark, now in rows:
        text = _padded(recorded, left) if recorded is not None else ""
        lines.append(f"  {text:<{left_width}}  {mark or ' '}  {_padded(now, right) if now else ''}".rstrip())
    return lines


def _rows(entries: Sequence[Entry], missing: Collection[str], asked: Mapping[str, EntryKind]) -> list[Row]:
    """Pair each entry that the code has reached with its request, and each other entry with a new request."""
    known = {entry.location for entry in entries}
    new = iter([(_short(location), kind.value) for location, kind in asked.items() if location not in known])
    rows: list[Row] = []
    for entry in sorted(entries, key=lambda entry: (not entry.is_settled, entry.position, entry.started_at)):
        kind = asked.get(entry.location, entry.kind)
        if entry.location in missing:
            rows.append((_recorded(entry), "≠", next(new, None)))
        else:
            rows.append((_recorded(entry), "" if kind is entry.kind else "≠", (_short(entry.location), kind.value)))
    return rows + [(None, "≠", now) for now in new]


def _recorded(entry: Entry) -> Side:
    position = str(entry.position) if entry.is_settled else "-"
    return (position, _short(entry.location), entry.kind.value, entry.state.value)


def _cut(rows: list[Row]) -> Iterator[Row]:
    """Yield the rows around the first difference."""
    first = next((number for number, row in enumerate(rows) if row[1]), len(rows))
    begin, end = max(0, first - _BEFORE), first + _AFTER
    if begin:
        yield (("", f"… {begin} before"), "", None)
    yield from rows[begin:end]
    if rows[end:]:
        yield (("", f"… {len(rows) - end} after"), "", None)


def _widths(sides: Sequence[Side | None]) -> list[int]:
    cells = zip_longest(*(side for side in sides if side is not None), fillvalue="")
    return [max(map(len, column)) for column in cells]


def _length(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1) if widths else 0


def _padded(side: Side, widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(side, widths, strict=False))


def _short(location: str) -> str:
    """Shorten a location to its end, which says more than its beginning."""
    return location if len(location) <= _NAME_LIMIT else f"…{location[1 - _NAME_LIMIT :]}"
