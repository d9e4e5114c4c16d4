"""Topics: the locks by which those who emit events and those who begin to wait for them see each other."""

from __future__ import annotations

import hashlib

BUCKETS = 65_536
"""Fewer would make strangers wait for each other; a lock for each topic would need a row for each."""


def bucket(topic: str) -> int:
    """The lock of a topic among those of its schema."""
    return int.from_bytes(hashlib.blake2b(topic.encode(), digest_size=2).digest(), "big")


def classid(schema: str) -> int:
    """What keeps the locks of one schema apart from those of others in the same database."""
    return int.from_bytes(hashlib.blake2b(f"holdfast {schema}".encode(), digest_size=4).digest(), "big", signed=True)
