"""Keys: the names of things on the server. All keys of a namespace have its name in braces, so they are in one slot."""

from __future__ import annotations

from holdfast.stores.kv import names

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
