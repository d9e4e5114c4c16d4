"""The namespaces of `hf.sync`: schedules, topics, types, dead letters and workers, for code that blocks."""

from __future__ import annotations

from typing import Any

from holdfast.engine.dead_letters import DeadLetters
from holdfast.engine.facade import Facade, blocking, iterating, listing
from holdfast.engine.schedules import Schedules
from holdfast.engine.sync_handle import SyncRunHandle
from holdfast.engine.topics import Topics
from holdfast.engine.types import Types
from holdfast.engine.workers import Workers


class SyncSchedules(Facade):
    """`hf.sync.schedules`: sets, lists and controls the schedules that start runs over time."""

    put = blocking(Schedules.put)
    get = blocking(Schedules.get)
    next = blocking(Schedules.next)
    pause = blocking(Schedules.pause)
    resume = blocking(Schedules.resume)
    remove = blocking(Schedules.remove)
    list = iterating(Schedules.list)

    def trigger(self, name: str) -> SyncRunHandle[Any]:
        """Start a run of a schedule now, also if it is paused. Its times stay as they are."""
        return SyncRunHandle(self._call("trigger", name), self._loop)


class SyncTopics(Facade):
    """`hf.sync.topics`: sets and lists the rules of topics."""

    set = blocking(Topics.set)
    list = listing(Topics.list)


class SyncTypes(Facade):
    """`hf.sync.types`: limits types, disables and enables them, and lists them."""

    set = blocking(Types.set)
    enable = blocking(Types.enable)
    disable = blocking(Types.disable)
    list = listing(Types.list)


class SyncDeadLetters(Facade):
    """`hf.sync.dead_letters`: lists, replays and purges what could not be delivered."""

    replay = blocking(DeadLetters.replay)
    purge = blocking(DeadLetters.purge)
    list = iterating(DeadLetters.list)


class SyncWorkers(Facade):
    """`hf.sync.workers`: lists the workers of all processes."""

    list = listing(Workers.list)
