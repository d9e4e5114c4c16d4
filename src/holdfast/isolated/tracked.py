"""A dictionary that notes which of its keys have changed, so that only these are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Tracked(dict[K, V]):
    """A dictionary of stored values by key. `dirty` are the keys that were set or removed since the last batch."""

    __slots__ = ("dirty",)

    def __init__(self, values: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        super().__init__(values)
        self.dirty: dict[K, None] = {}
        """The changed keys, in the order of the changes."""

    def __setitem__(self, key: K, value: V) -> None:
        self.dirty[key] = None
        super().__setitem__(key, value)

    def __delitem__(self, key: K) -> None:
        self.dirty[key] = None
        super().__delitem__(key)

    def pop(self, key: K, *default: Any) -> Any:
        if key in self:
            self.dirty[key] = None
        return super().pop(key, *default)

    def clear(self) -> None:
        self.dirty |= dict.fromkeys(self)
        super().clear()

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]  # `dict` declares overloads
        changed = dict(other)
        self.dirty |= dict.fromkeys(changed)
        self.update(changed)
        return self
