"""Hints: news of commits, for the listeners of this store at once, and for other processes through the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec

from holdfast.core.hint import Hint, News
from holdfast.core.ids import new_id
from holdfast.stores.loops import call_on

Listener = Callable[[Hint], None]
_decode = msgspec.json.Decoder(Hint).decode


class KvHints:
    """The listeners of one store. A hint that this store has sent itself is not heard twice."""

    def __init__(self) -> None:
        self._sender = new_id().encode()
        self._listeners: list[tuple[asyncio.AbstractEventLoop, Listener]] = []

    def encoded(self, news: News) -> bytes:
        """Return news for other processes; nothing if there is none."""
        hint = news.hint()
        return b"" if hint is None else self._sender + b" " + msgspec.json.encode(hint)

    def heard(self, message: bytes) -> None:
        """Pass on a hint from the driver. An empty message means that hints may have been lost."""
        if not message:
            self._pass_on(Hint(is_elsewhere=True, is_foreign=True))
            return
        sender, _, encoded = message.partition(b" ")
        if sender != self._sender:
            with suppress(msgspec.MsgspecError):  # sent by another version of holdfast; polling finds the change
                self._pass_on(msgspec.structs.replace(_decode(encoded), is_foreign=True))

    def tell(self, news: News) -> None:
        """Pass on the news of a commit of this store."""
        hint = news.hint()
        if hint is not None:
            self._pass_on(hint)

    def stir(self) -> None:
        """Tell the listeners to look: an answer was lost, and with it perhaps news."""
        self._pass_on(Hint(is_elsewhere=True))

    def listen(self, listener: Listener) -> Callable[[], None]:
        subscription = asyncio.get_running_loop(), listener
        self._listeners.append(subscription)

        def stop() -> None:
            with suppress(ValueError):
                self._listeners.remove(subscription)

        return stop

    def _pass_on(self, hint: Hint) -> None:
        for loop, listener in list(self._listeners):
            call_on(loop, listener, hint)
