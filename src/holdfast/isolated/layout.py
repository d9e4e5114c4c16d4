"""The layout of a namespace: what each key means. Locations are keys of numbers from the registry of names.

| key | value |
| --- | --- |
| (1, index) | a name: part of a location |
| (2, part, …) | an entry of the history, at its location |
| (3, id), (3, id, kind) | mail: what the host has written and the run has not taken in |
| (3, number) | an arrival in the inbox |
| (4, 1) … (4, 9) | the run: state, result, error, header, input, input of the generation, waits, values, seal |
| (4, 10, id) | the receipt of a message |
| (4, 11) | the opening: a copy of the seal, which a batch writes first, as it writes the seal last |
| (5, part, …) | the metadata of the entry at that location: state, attempts, times |
| (6, run id) | a child that has not ended |
| (7, number) | an item of the outbox |
| (8, number) | an event that was published in this namespace |
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.isolated.keys import Part, pack, pack_part

SCHEMA = 1
"""Number of this layout. A namespace with another number is refused."""

NAMES, HISTORY, MESSAGES, WORKFLOW, METADATA, CHILDREN, OUTBOX, EVENTS = range(1, 9)

STATE = pack((WORKFLOW, 1))
RESULT = pack((WORKFLOW, 2))
ERROR = pack((WORKFLOW, 3))
HEADER = pack((WORKFLOW, 4))
INPUT = pack((WORKFLOW, 5))
CONTINUED = pack((WORKFLOW, 6))
WAITS = pack((WORKFLOW, 7))
VALUES = pack((WORKFLOW, 8))
SEAL = pack((WORKFLOW, 9))
RECEIPTS = 10
OPENING = pack((WORKFLOW, 11))

RUN = (STATE, RESULT, ERROR, HEADER, INPUT, CONTINUED, WAITS, VALUES, SEAL, OPENING)
"""The keys of the run itself."""

_HISTORY, _METADATA = pack((HISTORY,)), pack((METADATA,))
_NUMBERED = re.compile(r"(~|\+|[^#]+#)(0|[1-9]\d{0,17})")


class NameRegistry:
    """The names in the locations of a run, numbered in the order in which they first occurred.

    A numbered part of a location is a tuple: `charge#2` is (name of `charge#`, 2), `~3` is (name of `~`, 3). So the
    iterations of a loop are next to each other, in order, and take no names of their own.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = list(names)
        self._indexes = {name: index for index, name in enumerate(names)}
        self._packed: dict[str, bytes] = {}

    def keys_of(self, location: str) -> tuple[bytes, bytes]:
        """Return the keys of the entry and of the metadata at a location. New names get the next numbers."""
        path = b"".join([self._packed.get(segment) or self._pack(segment) for segment in location.split("/")])
        return _HISTORY + path, _METADATA + path

    def location(self, parts: Sequence[Part]) -> str:
        """Return the location of a key. Raises `ValueError` if a part is not in the registry."""
        return "/".join(map(self._segment, parts))

    def _pack(self, segment: str) -> bytes:
        numbered = _NUMBERED.fullmatch(segment)
        if numbered is None:
            packed = pack_part(self._index(segment))
        else:
            packed = pack_part((self._index(numbered[1]), int(numbered[2])))
        if numbered is None or numbered[1] != "~":  # iterations occur once, and a loop may have millions
            self._packed[segment] = packed
        return packed

    def _index(self, name: str) -> int:
        index = self._indexes.get(name)
        if index is None:
            index = self._indexes[name] = len(self.names)
            self.names.append(name)
        return index

    def _segment(self, part: Part) -> str:
        match part:
            case int(index):
                return self._name(index)
            case (int(index), int(number)):
                return f"{self._name(index)}{number}"
            case _:
                raise ValueError(f"{part!r} is not part of a location")

    def _name(self, index: int) -> str:
        if index >= len(self.names):
            raise ValueError(f"there is no name {index}")
        return self.names[index]
