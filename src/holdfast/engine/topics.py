"""Topics: the rules for the delivery and retention of their events."""

from __future__ import annotations

from datetime import timedelta

from holdfast.core.commands import SetTopics
from holdfast.core.model import Topic, TopicMode
from holdfast.core.questions import ListTopics
from holdfast.core.topics import checked_topic
from holdfast.engine.async_list import AsyncList
from holdfast.engine.session import SessionPart
from holdfast.engine.store_info import TopicInfo


class Topics(SessionPart):
    """`hf.topics`: set and list how events are delivered and kept. A topic without rules needs no setting."""

    async def set(
        self,
        name: str,
        *,
        mode: TopicMode | None = None,
        retention: float | timedelta | None = None,
        max_pending: int | None = None,
    ) -> TopicInfo:
        """Set how events of a topic are delivered and kept. An option that is left out stays as it is.

        - `mode`: `fanout` (the default) delivers an event to every run that waits for it and began before it. `queue`
          delivers it to exactly one run, even if that run begins later.
        - `retention`: how long events are kept, in seconds or as a timedelta (default: 7 days).
        - `max_pending`: how many events are kept (default: 10,000).

        About once a minute, workers remove events that are too old or too many. Events of a queue become dead letters.

        A name that ends in `*` covers all topics with that prefix. The exact name wins over a prefix, and a longer
        prefix over a shorter one.
        """
        checked_topic(Topic(name=name), mode, retention, max_pending)  # refuses wrong values before the store is opened
        store = await self._session.opened_store()
        known = {topic.name: topic for topic in await store.catalog(ListTopics())}
        topic = checked_topic(known.get(name) or Topic(name=name), mode, retention, max_pending)
        await store.apply(SetTopics(topics=[topic]))
        return TopicInfo.of(topic)

    def list(self) -> AsyncList[TopicInfo]:
        """List the topics for which rules were set, by name."""

        async def topics() -> list[TopicInfo]:
            store = await self._session.opened_store()
            return [TopicInfo.of(topic) for topic in await store.catalog(ListTopics())]

        return AsyncList.of(topics)
