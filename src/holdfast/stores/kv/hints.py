"""Hints: news of commits, for the listeners of this store at once, and for other processes through the driver."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from holdfast.core.hint import Hint, News
from holdfast.core.ids import new_id
from holdfast.stores.loops import Listeners

_decode = msgspec.json.Decoder(Hint).decode


class KvHints(Listeners[Hint]):
    """The listeners of one store. They get a hint that this store has sent itself only once."""

    def __init__(self) -> None:
        super().__init__()
        self._sender = new_id().encode()

    def encoded(self, news: News) -> bytes:
        """Return news for other processes; nothing if there is none."""
        hint = news.hint()
        return b"" if hint is None else self._sender + b" " + msgspec.json.encode(hint)

    def receive(self, message: bytes) -> None:
        """Send a hint from the driver to the listeners. An empty message means that hints may have been lost."""
        if not message:
            self.send(Hint(is_elsewhere=True, is_foreign=True))
            return
        sender, _, encoded = message.partition(b" ")
        if sender != self._sender:
            with suppress(msgspec.MsgspecError):  # sent by another version of holdfast; polling finds the change
                self.send(msgspec.structs.replace(_decode(encoded), is_foreign=True))

    def send_news(self, news: News) -> None:
        """Send the news of a commit of this store to the listeners."""
        hint = news.hint()
        if hint is not None:
            self.send(hint)

    def wake_all(self) -> None:
        """Let the listeners check for changes: an answer was lost, and with it perhaps news."""
        self.send(Hint(is_elsewhere=True))
