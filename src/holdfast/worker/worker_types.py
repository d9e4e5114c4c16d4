"""The types of a worker: the registered types that it executes, including types registered while it runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import matches_type
from holdfast.core.model import TypeOffer
from holdfast.runner.registry import Registry


class WorkerTypes:
    """The types of a registry that match a worker's patterns. Without patterns, all types."""

    def __init__(self, registry: Registry, patterns: Sequence[str] | None) -> None:
        _check(patterns)
        self._registry = registry
        self._patterns = None if patterns is None else tuple(patterns)
        self._types: tuple[str, ...] = ()
        self._counted = 0

    def types(self) -> tuple[str, ...]:
        count = self._registry.count()
        if count != self._counted:
            self._counted = count
            self._types = tuple(sorted(type for type in self._registry.types() if self._is_wanted(type)))
        return self._types

    def offers(self) -> list[TypeOffer]:
        """Return the types as the store records them."""
        return [self._offer_of(type) for type in self.types()]

    @property
    def wanted(self) -> str:
        """Description of the wanted types, as a phrase that follows `no registered type`."""
        return "" if self._patterns is None else f" that matches {', '.join(self._patterns)}"

    def _offer_of(self, type: str) -> TypeOffer:
        definition = self._registry.get(type)
        return TypeOffer(name=type, runtime="python", description=definition.description if definition else "")

    def _is_wanted(self, type: str) -> bool:
        return self._patterns is None or any(matches_type(type, pattern) for pattern in self._patterns)


def _check(patterns: object) -> None:
    # A string is also a collection of strings: its characters.
    is_list = (
        isinstance(patterns, Collection)
        and not isinstance(patterns, str)
        and all(isinstance(one, str) for one in patterns)
    )
    if patterns is not None and not is_list:
        raise InvalidRequest(
            f"worker(types={patterns!r}): expected a list of type names or patterns, such as ['billing.*']"
        )
