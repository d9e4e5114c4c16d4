"""Settings of a private server, by the names that they have in `redis.conf`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

DATABASES = 128

Setting = str | int | Sequence[str]
"""The words after the name of a setting, as in `redis.conf`. A sequence is one line for each item."""

DEFAULTS: dict[str, Setting] = {
    "appendonly": "yes",
    # Not `everysec`: while the disk is busy, that setting confirms writes that are only in the memory of the server,
    # and a kill loses them.
    "appendfsync": "always",
    "save": "",
    "maxmemory-policy": "noeviction",
    "databases": DATABASES,
    # By default a primary waits seconds for more replicas, and a replica a second for its disk.
    "repl-diskless-sync-delay": 0,
    "repl-diskless-load": "swapdb",
}
"""Settings of a server that keeps everything that it has confirmed, and never evicts."""


def words_of(setting: Setting) -> Sequence[str]:
    """Return a setting as the lines that it has."""
    return [str(setting)] if isinstance(setting, str | int) else setting


def text_of(settings: Mapping[str, Setting]) -> str:
    """Return the content of `redis.conf`."""
    lines = [(name, words) for name, setting in settings.items() for words in words_of(setting)]
    return "".join(f"{name} {words}\n" if words else f'{name} ""\n' for name, words in lines)
