"""Dead letters: events and messages that could not be delivered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from holdfast.core.commands import PurgeDeadLetters, ReplayDeadLetters
from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import check_actor, check_topic
from holdfast.core.questions import PAGE_LIMIT, ListDeadLetters
from holdfast.engine.async_list import AsyncList
from holdfast.engine.paging import letter_pages
from holdfast.engine.session import SessionPart
from holdfast.engine.store_info import DeadLetterInfo


class DeadLetters(SessionPart):
    """`hf.dead_letters`: list, replay and purge events and messages that could not be delivered."""

    def list(self, topic: str | None = None, *, limit: int | None = None) -> AsyncList[DeadLetterInfo]:
        """List dead letters, oldest first: of one topic, of a family such as `orders.*`, or all."""
        return AsyncList(self._each(topic, limit))

    async def _each(self, topic: str | None, limit: int | None) -> AsyncIterator[DeadLetterInfo]:
        if topic is not None:
            check_topic(topic)
        store = await self._session.opened_store()
        async for page in letter_pages(store, ListDeadLetters(topic=topic), limit):
            for letter in page:
                yield DeadLetterInfo.of(letter)

    async def replay(self, numbers: Iterable[int] | None = None, *, topic: str | None = None, by: str = "") -> int:
        """Deliver dead letters again, chosen by their `numbers`, or by a topic or family.

        Returns how many were delivered. An event goes back to its queue, for the next run that waits. A message is sent
        to its run again; if that has ended, the letter stays. `topic="*"` chooses all events.
        """
        actor = check_actor(by)
        return await self._with_letters(numbers, topic, lambda some: ReplayDeadLetters(numbers=some, by=actor))

    async def purge(self, numbers: Iterable[int] | None = None, *, topic: str | None = None) -> int:
        """Remove dead letters, chosen by their `numbers`, or by a topic or family. Returns how many were removed."""
        return await self._with_letters(numbers, topic, lambda some: PurgeDeadLetters(numbers=some))

    async def _with_letters(
        self,
        numbers: Iterable[int] | None,
        topic: str | None,
        command: Callable[[Sequence[int]], ReplayDeadLetters | PurgeDeadLetters],
    ) -> int:
        """Apply a command to the chosen letters, a page at a time."""
        if (numbers is None) == (topic is None):
            raise InvalidRequest(
                "choose dead letters by numbers=[…] or by topic=…, not both; topic='*' means all topics"
            )
        if numbers is None:
            await self._session.open()
            chosen = [letter.number async for letter in self.list(topic)]
        else:
            chosen = [_check_number(number) for number in numbers]
            await self._session.open()
        done = 0
        for start in range(0, len(chosen), PAGE_LIMIT):
            done += await self._session.store.apply(command(chosen[start : start + PAGE_LIMIT]))
        return done


def _check_number(number: object) -> int:
    if type(number) is not int or not 0 <= number < 2**63:
        raise InvalidRequest(f"{number!r} is not the number of a dead letter; `hf.dead_letters.list()` lists them")
    return number
