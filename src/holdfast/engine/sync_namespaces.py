"""The namespaces of `hf.sync`: schedules, flows, topics, types, dead letters and workers, for code that blocks."""

from __future__ import annotations

from typing import Any

from holdfast.engine.dead_letters import DeadLetters
from holdfast.engine.facade import Facade, blocking, iterating, listing
from holdfast.engine.flows import Flows
from holdfast.engine.handle import SyncRunHandle
from holdfast.engine.schedules import Schedules
from holdfast.engine.topics import Topics
from holdfast.engine.types import Types
from holdfast.engine.workers import Workers


class SyncSchedules(Facade):
    """`hf.sync.schedules`: create, change, list and control the schedules that start runs over time."""

    put = blocking(Schedules.put)
    get = blocking(Schedules.get)
    next = blocking(Schedules.next)
    pause = blocking(Schedules.pause)
    resume = blocking(Schedules.resume)
    remove = blocking(Schedules.remove)
    list = iterating(Schedules.list)

    def trigger(self, name: str) -> SyncRunHandle[Any]:
        """Start a run of a schedule now, even if it is paused. Its next times do not change."""
        return SyncRunHandle(self._call("trigger", name), self._loop)


class SyncFlows(Facade):
    """`hf.sync.flows`: register, list and read flows."""

    register = blocking(Flows.register)
    list = listing(Flows.list)
    get = blocking(Flows.get)


class SyncTopics(Facade):
    """`hf.sync.topics`: set and list how events are delivered and kept."""

    set = blocking(Topics.set)
    list = listing(Topics.list)


class SyncTypes(Facade):
    """`hf.sync.types`: limit, enable, disable and list types of runs."""

    set = blocking(Types.set)
    enable = blocking(Types.enable)
    disable = blocking(Types.disable)
    list = listing(Types.list)


class SyncDeadLetters(Facade):
    """`hf.sync.dead_letters`: list, replay and purge events and messages that could not be delivered."""

    replay = blocking(DeadLetters.replay)
    purge = blocking(DeadLetters.purge)
    list = iterating(DeadLetters.list)


class SyncWorkers(Facade):
    """`hf.sync.workers`: list the workers of all processes."""

    list = listing(Workers.list)
