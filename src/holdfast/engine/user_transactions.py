"""Users' transactions: tables of users in the store's database, and what is written together with them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from holdfast.core.codec import encode_any
from holdfast.core.ids import new_id
from holdfast.core.intent import check_topic
from holdfast.core.model import Event
from holdfast.core.ports import Database
from holdfast.engine.base import EngineBase, refuse_workflow_code
from holdfast.engine.capabilities import database_of
from holdfast.engine.controls import check_actor

if TYPE_CHECKING:
    from holdfast.engine.handle import RunHandle


class UserTransactions(EngineBase):
    """The part of an engine that writes in transactions of users: with them it is committed, or it never was."""

    def run(self, run_id: str, /) -> RunHandle[Any]:
        """A handle on a run."""
        raise NotImplementedError

    def connection(self, *, readonly: bool = False) -> AbstractContextManager[Any]:
        """A transaction in the store's database, for tables of yours: `with hf.connection() as connection: …`.

        It is committed at the end of the block, and rolled back if that raises. Nobody else can write meanwhile, so
        keep it short; one that is `readonly` keeps nobody waiting. Needs an open store: `async with hf`.
        """
        refuse_workflow_code()
        return self.database_for("connection").connection(readonly=readonly)

    async def send_in(
        self,
        connection: object,
        run: RunHandle[Any] | str,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,
        by: str = "",
    ) -> None:
        """Send a run a message in your own transaction: it arrives when you commit what is open on the connection.

        The run is a handle, by id or by key, or an id. Refused at once are runs that do not exist or have ended.
        """
        handle = self.run(run) if isinstance(run, str) else run
        await handle.send_in(connection, name, payload, id=id, by=by)

    async def emit_in(self, connection: object, topic: str, payload: Any = None, *, by: str = "") -> int:
        """Publish an event in your own transaction: it is there when you commit what is open on the connection.

        The answer is how many runs that wait now it will reach then.
        """
        event = an_event(topic, payload)
        await self.opened()
        (reached,) = await self.database_for("emit_in").emit_in(connection, [event], by=check_actor(by))
        return reached

    def database_for(self, what: str) -> Database:
        """The store as a database; `InvalidRequest` names what needs it, if it is none."""
        return database_of(self.store, what)


def an_event(topic: str, payload: Any) -> Event:
    """An event to be published, if it can be."""
    return Event(id=new_id(), topic=check_topic(topic), payload=encode_any(payload, f"payload of event {topic!r}"))
