"""Publishing events: at once, or in a transaction of the user."""

from __future__ import annotations

from typing import Any

from holdfast.core.codec import encode_any
from holdfast.core.commands import EmitEvents
from holdfast.core.ids import new_id
from holdfast.core.intent import check_actor, check_topic
from holdfast.core.model import Event
from holdfast.engine.capabilities import database_of
from holdfast.engine.session import Session


async def emit(session: Session, topic: str, payload: Any, *, by: str) -> int:
    """Publish an event. Returns the number of waiting runs that it reached."""
    event, actor = _event(topic, payload), check_actor(by)
    await session.open()
    (reached,) = await session.store.apply(EmitEvents(events=[event], by=actor))
    return reached


async def emit_in(session: Session, connection: object, topic: str, payload: Any, *, by: str) -> int:
    """Publish an event in a transaction of the user. Returns the number of waiting runs that it will reach."""
    event, actor = _event(topic, payload), check_actor(by)
    await session.open()
    (reached,) = await database_of(session, "emit_in").emit_in(connection, [event], by=actor)
    return reached


def _event(topic: str, payload: Any) -> Event:
    return Event(id=new_id(), topic=check_topic(topic), payload=encode_any(payload, f"payload of event {topic!r}"))
