"""Waiting for replies: by hints, by occasional polling, and without needless queries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio

from holdfast.core.model import Reply
from holdfast.core.ports import Store
from holdfast.core.questions import Awaited, RepliesTo
from holdfast.engine.answers import Replies
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.contract.arrange import an_id, checkpoint_for, held, succeed, write
from holdfast.testing.patience import guarded, until

A = TypeVar("A")


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def changes(self, question: Awaited[A]) -> A:
        self.asked += isinstance(question, RepliesTo)
        return await super().changes(question)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest_asyncio.fixture
async def replies(store: CountingStore) -> AsyncIterator[Replies]:
    replies = Replies(store)
    replies._poll_seconds = 3600.0  # so that it queries only after a hint
    yield replies
    await replies.close()


async def answer(store: Store, number: int = 1, *, is_last: bool = False) -> None:
    lease = await held(store, number)
    reply = Reply(message_id="m", payload="17")
    await write(store, checkpoint_for(lease, succeed() if is_last else None, replies=(reply,)))


async def test_a_reply_is_announced_by_a_hint_and_queried_no_more_than_needed(
    store: CountingStore, replies: Replies
) -> None:
    waiting = [asyncio.create_task(replies.wait(an_id(1), "m")) for _ in range(3)]
    await until("the first look is taken", lambda: store.asked == 1)
    await answer(store)

    assert await asyncio.gather(*waiting) == ["17"] * 3
    assert store.asked == 2
    assert not replies.is_awaited


async def test_an_existing_reply_is_found_at_once(store: CountingStore, replies: Replies) -> None:
    await answer(store)

    assert await replies.wait(an_id(1), "m") == "17"


async def test_a_reply_in_the_last_checkpoint_is_not_missed(store: CountingStore, replies: Replies) -> None:
    waiting = asyncio.create_task(replies.wait(an_id(1), "m"))
    await asyncio.sleep(0.02)
    await answer(store, is_last=True)

    assert await waiting == "17"


async def test_an_end_without_a_reply_raises(store: CountingStore, replies: Replies) -> None:
    waiting = asyncio.create_task(replies.wait(an_id(1), "another"))
    await asyncio.sleep(0.02)
    await answer(store, is_last=True)

    assert await waiting is None


async def test_a_reply_whose_hint_was_lost_is_found_by_polling(store: CountingStore, replies: Replies) -> None:
    replies._poll_seconds = 0.001
    replies._unlisten()
    waiting = asyncio.create_task(replies.wait(an_id(1), "m"))
    await asyncio.sleep(0.01)
    await answer(store)

    assert await waiting == "17"


async def test_a_reply_from_another_process_is_found(tmp_path: Path) -> None:
    """Two stores on one file, as two processes have them."""
    asking, answering = SqliteStore(tmp_path / "runs.db"), SqliteStore(tmp_path / "runs.db")
    await asking.open()
    await answering.open()
    replies = Replies(asking)
    waiting = asyncio.create_task(replies.wait(an_id(1), "m"))
    await asyncio.sleep(0.02)

    await answer(answering)

    assert await guarded("the reply is heard of", waiting) == "17"
    await replies.close()
    await answering.close()
    await asking.close()


async def test_a_caller_that_waits_for_a_reply_is_cancelled_by_close(replies: Replies) -> None:
    waiting = asyncio.create_task(replies.wait(an_id(1), "m"))
    await asyncio.sleep(0)

    await replies.close()

    with pytest.raises(asyncio.CancelledError):
        await waiting
