"""Topics: the rules by which their events are delivered and kept."""

from __future__ import annotations

from datetime import timedelta

from holdfast.core.commands import SetTopics
from holdfast.core.model import Topic, TopicMode
from holdfast.core.questions import ListTopics
from holdfast.core.topics import checked_topic
from holdfast.engine.async_list import AsyncList
from holdfast.engine.session import Session
from holdfast.engine.store_info import TopicInfo


class Topics:
    """`hf.topics`: set and list how events are delivered and kept. A topic without rules needs no setting."""

    def __init__(self, session: Session) -> None:
        self._session = session

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
          delivers it to exactly one run, however late that begins.
        - `retention`: how long events are kept, in seconds or as a timedelta (default: 7 days).
        - `max_pending`: how many events are kept (default: 10,000).

        Workers remove what is older or too many about once a minute. From a queue it goes to the dead letters.

        A name that ends in `*` covers all topics with that prefix. The exact name wins over a prefix, and a longer
        prefix over a shorter one.
        """
        checked_topic(Topic(name=name), mode, retention, max_pending)  # refused before anything is opened
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
