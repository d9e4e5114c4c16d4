"""Index of recorded locations by loop and iteration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.core.location import iterations_around


class Iterations:
    """Locations by loop and iteration. A location inside nested loops is listed under each of them."""

    def __init__(self, locations: Iterable[str]) -> None:
        self._loops: dict[str, dict[int, set[str]]] = {}
        for location in locations:
            self.add(location)

    def add(self, location: str) -> None:
        """Add a location if it is inside a loop. The mark at the start of an iteration belongs to that iteration."""
        if "/~" in location:
            for loop, number in iterations_around(location):
                self._loops.setdefault(loop, {}).setdefault(number, set()).add(location)

    def numbers(self, loop: str) -> list[int]:
        """Return the numbers of the iterations that have entries."""
        return list(self._loops.get(loop, ()))

    def inside(self, loop: str, *, before: int | None = None) -> Iterator[str]:
        """Yield the locations inside a loop, or only those before an iteration."""
        for number, locations in self._loops.get(loop, {}).items():
            if before is None or number < before:
                yield from locations

    def pop(self, path: str) -> set[str]:
        """Remove an iteration and return its locations."""
        loop, _, number = path.rpartition("/~")
        locations = self._loops.get(loop, {}).pop(int(number), set())
        for location in locations:
            self._drop(location)
        return locations

    def _drop(self, location: str) -> None:
        """Remove a location from all loops around it, outer and inner."""
        for loop, number in iterations_around(location):
            iterations = self._loops.get(loop, {})
            if number in iterations:
                iterations[number].discard(location)
                if not iterations[number]:
                    del iterations[number]
            if not iterations:
                self._loops.pop(loop, None)
