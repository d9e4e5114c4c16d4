"""Topics: the rules by which their events are delivered and kept."""

from __future__ import annotations

from datetime import timedelta

from holdfast.core.commands import SetTopics
from holdfast.core.model import Topic, TopicMode
from holdfast.core.questions import ListTopics
from holdfast.core.topics import checked_topic
from holdfast.engine.async_list import AsyncList
from holdfast.engine.info import TopicInfo
from holdfast.engine.session import Session


class Topics:
    """`hf.topics`: sets and lists the rules of topics."""

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
        """Set how events of a topic are delivered and kept; what is not given stays as it is.

        `mode`: `fanout` (to every run that waits, the default) or `queue` (to exactly one). `retention` (seconds or a
        timedelta, default 7 days) and `max_pending` (default 10,000) limit how long and how many are kept. A name that
        ends in `*` covers a family; the rules of the exact name, or else of the longest such prefix, count.
        """
        checked_topic(Topic(name=name), mode, retention, max_pending)  # refused before anything is opened
        store = await self._session.opened_store()
        known = {topic.name: topic for topic in await store.catalog(ListTopics())}
        topic = checked_topic(known.get(name) or Topic(name=name), mode, retention, max_pending)
        await store.apply(SetTopics(topics=[topic]))
        return TopicInfo.of(topic)

    def list(self) -> AsyncList[TopicInfo]:
        """The rules that were set for topics, by name."""

        async def topics() -> list[TopicInfo]:
            store = await self._session.opened_store()
            return [TopicInfo.of(topic) for topic in await store.catalog(ListTopics())]

        return AsyncList.of(topics)
