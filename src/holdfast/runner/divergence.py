"""A divergence: history and code side by side, for whoever has to make them fit again. Pure text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest

from holdfast.core.model import Entry, EntryKind

_BEFORE = 4
_AFTER = 12
_NAME_LIMIT = 48

Side = tuple[str, ...]
Row = tuple[Side | None, str, Side | None]

ADVICE = (
    "What to do: deploy code that fits. Where an operation is new or changed, ask `ctx.version(name, 2)` which way to",
    "go; where one is gone, say `ctx.removed(name, kind)`. A blocked run is tried again by itself and goes on when the",
    "code fits. Else rewind the run to before the difference, or cancel it.",
)


def report(
    what: str,
    entries: Sequence[Entry],
    missing: Collection[str],
    asked: Mapping[str, EntryKind],
    notes: Sequence[str] = (),
) -> str:
    """What is recorded next to what the code asks for, around the first place where they differ.

    `missing` are the locations of entries that the code has not come to, `asked` what it asks for now.
    """
    rows = list(_cut(_rows(entries, missing, asked)))
    left, right = _widths([row[0] for row in rows]), _widths([row[2] for row in rows])
    history, code = "recorded", "asked for by the code now"
    left_width = max(len(history), _length(left))
    lines = [
        f"{what}.",
        "",
        f"  {history:<{left_width}}     {code}".rstrip(),
        f"  {'-' * left_width}     {'-' * max(len(code), _length(right))}",
    ]
    for recorded, mark, now in rows:
        text = _padded(recorded, left) if recorded is not None else ""
        lines.append(f"  {text:<{left_width}}  {mark or ' '}  {_padded(now, right) if now else ''}".rstrip())
    return "\n".join([*lines, "", *notes, *ADVICE])


def _rows(entries: Sequence[Entry], missing: Collection[str], asked: Mapping[str, EntryKind]) -> list[Row]:
    """Entries the code has come to beside what it asked for there; the rest of both sides beside each other."""
    ordered = sorted(entries, key=lambda entry: (not entry.is_settled, entry.position, entry.started_at))
    rows: list[Row] = []
    for entry in ordered:
        if entry.location not in missing:
            kind = asked.get(entry.location, entry.kind)
            mark = "" if kind is entry.kind else "≠"
            rows.append((_recorded(entry), mark, (_short(entry.location), kind.value)))
    known = {entry.location for entry in entries}
    left = [_recorded(entry) for entry in ordered if entry.location in missing]
    right: list[Side] = [(_short(location), kind.value) for location, kind in asked.items() if location not in known]
    return rows + [(recorded, "≠", now) for recorded, now in zip_longest(left, right)]


def _recorded(entry: Entry) -> Side:
    position = str(entry.position) if entry.is_settled else "-"
    return (position, _short(entry.location), entry.kind.value, entry.state.value)


def _cut(rows: list[Row]) -> Iterator[Row]:
    """The rows around the first difference."""
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
    """The end of a location, which tells more than its beginning."""
    return location if len(location) <= _NAME_LIMIT else f"…{location[1 - _NAME_LIMIT :]}"
