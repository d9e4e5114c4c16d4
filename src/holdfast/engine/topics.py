"""Topics: how their events are delivered and kept; and the dead letters, which could not be delivered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import timedelta

from holdfast.core.commands import PurgeDeadLetters, ReplayDeadLetters, SetTopics
from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import check_topic
from holdfast.core.model import Topic, TopicMode
from holdfast.core.questions import PAGE_LIMIT, ListDeadLetters, ListTopics
from holdfast.core.topics import checked_topic
from holdfast.engine.base import EngineBase
from holdfast.engine.controls import check_actor
from holdfast.engine.info import DeadLetterInfo, TopicInfo
from holdfast.engine.paging import letter_pages


class TopicVerbs(EngineBase):
    """The part of an engine that sets rules for topics and looks after dead letters."""

    async def topic(
        self,
        name: str,
        *,
        mode: TopicMode | None = None,
        retention: float | timedelta | None = None,
        max_pending: int | None = None,
    ) -> TopicInfo:
        """Set how events of a topic are delivered and kept; what is not said stays as it is.

        `mode`: `fanout` (to every run that waits, the default) or `queue` (to exactly one). `retention` (seconds or a
        timedelta, default 7 days) and `max_pending` (default 10,000) limit how long and how many are kept. A name that
        ends in `*` covers a family; the rules of the exact name, or else of the longest such prefix, count.
        """
        checked_topic(Topic(name=name), mode, retention, max_pending)  # refused before anything is opened
        await self.opened()
        known = {topic.name: topic for topic in await self.store.catalog(ListTopics())}
        topic = checked_topic(known.get(name) or Topic(name=name), mode, retention, max_pending)
        await self.store.apply(SetTopics(topics=[topic]))
        return TopicInfo.of(topic)

    async def topics(self) -> Sequence[TopicInfo]:
        """The rules that were set for topics, by name."""
        await self.opened()
        return [TopicInfo.of(topic) for topic in await self.store.catalog(ListTopics())]

    async def dead_letters(
        self, topic: str | None = None, *, limit: int | None = None
    ) -> AsyncIterator[DeadLetterInfo]:
        """What could not be delivered, oldest first; of a topic, or of a family such as `orders.*`."""
        if topic is not None:
            check_topic(topic)
        await self.opened()
        async for page in letter_pages(self.store, ListDeadLetters(topic=topic), limit):
            for letter in page:
                yield DeadLetterInfo.of(letter)

    async def replay_dead_letters(
        self, numbers: Iterable[int] | None = None, *, topic: str | None = None, by: str = ""
    ) -> int:
        """Deliver dead letters after all: those of these numbers, or of a topic or family; how many were.

        An event of a queue goes to a run that waits, or is pending again. A message is sent again if its run is alive;
        otherwise it stays.
        """
        actor = check_actor(by)
        return await self._with_letters(numbers, topic, lambda some: ReplayDeadLetters(numbers=some, by=actor))

    async def purge_dead_letters(self, numbers: Iterable[int] | None = None, *, topic: str | None = None) -> int:
        """Forget dead letters: those of these numbers, or of a topic or family; how many there were."""
        return await self._with_letters(numbers, topic, lambda some: PurgeDeadLetters(numbers=some))

    async def _with_letters(
        self,
        numbers: Iterable[int] | None,
        topic: str | None,
        command: Callable[[Sequence[int]], ReplayDeadLetters | PurgeDeadLetters],
    ) -> int:
        """Do something with chosen letters, a page at a time."""
        if (numbers is None) == (topic is None):
            raise InvalidRequest("choose dead letters by numbers=[…] or by topic=…, and not by both; topic='*' is any")
        if numbers is None:
            await self.opened()
            chosen = [letter.number async for letter in self.dead_letters(topic)]
        else:
            chosen = [_check_number(number) for number in numbers]
            await self.opened()
        done = 0
        for start in range(0, len(chosen), PAGE_LIMIT):
            done += await self.store.apply(command(chosen[start : start + PAGE_LIMIT]))
        return done


def _check_number(number: object) -> int:
    if type(number) is not int or not 0 <= number < 2**63:
        raise InvalidRequest(f"{number!r} is no number of a dead letter; `hf.dead_letters()` lists them")
    return number
