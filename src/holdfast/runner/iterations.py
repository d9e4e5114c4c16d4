"""Which entries of a history were recorded in which iteration of which loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.core.location import iterations_around


class Iterations:
    """Locations by loop and iteration. A location inside nested loops stands under each of them."""

    def __init__(self, locations: Iterable[str]) -> None:
        self._loops: dict[str, dict[int, set[str]]] = {}
        for location in locations:
            self.add(location)

    def add(self, location: str) -> None:
        """Take in a location, if it is inside a loop; the mark with which an iteration begins is one of its own."""
        if "/~" in location:
            for loop, number in iterations_around(location):
                self._loops.setdefault(loop, {}).setdefault(number, set()).add(location)

    def numbers(self, loop: str) -> list[int]:
        """The iterations of which anything is recorded."""
        return list(self._loops.get(loop, ()))

    def inside(self, loop: str, *, before: int | None = None) -> Iterator[str]:
        """What was recorded in a loop, or only before an iteration of it."""
        for number, locations in self._loops.get(loop, {}).items():
            if before is None or number < before:
                yield from locations

    def pop(self, path: str) -> set[str]:
        """Forget an iteration, and give what was recorded in it."""
        loop, _, number = path.rpartition("/~")
        locations = self._loops.get(loop, {}).pop(int(number), set())
        for location in locations:
            self._drop(location)
        return locations

    def _drop(self, location: str) -> None:
        """Forget a location in the loops around the one it is dropped from, and in those inside."""
        for loop, number in iterations_around(location):
            iterations = self._loops.get(loop, {})
            if number in iterations:
                iterations[number].discard(location)
                if not iterations[number]:
                    del iterations[number]
            if not iterations:
                self._loops.pop(loop, None)
