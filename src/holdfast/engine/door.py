"""The door: what every part of the engine needs of the object that is put together from them."""

from __future__ import annotations

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ports import Store
from holdfast.core.signals import Signals
from holdfast.engine.ends import Ends
from holdfast.engine.replies import Replies


class Door:
    """A store that is opened at the first use, those who wait for something to appear in it, and those who listen."""

    signals: Signals

    @property
    def store(self) -> Store:
        """The store, once it is open."""
        raise NotImplementedError

    @property
    def ends(self) -> Ends:
        """Everybody who waits for an end."""
        raise NotImplementedError

    @property
    def replies(self) -> Replies:
        """Everybody who waits for a reply."""
        raise NotImplementedError

    async def opened(self) -> None:
        """Open the store, if that has not been done."""
        raise NotImplementedError

    async def close(self) -> None:
        """Let go of the store. It may be used again afterwards."""
        raise NotImplementedError


def opened_elsewhere(what: str, pid: int) -> StoreUnavailable:
    """The error of a forked child that uses what its parent has opened."""
    return StoreUnavailable(
        f"{what} was opened in another process (pid {pid}), and a fork does not take its threads along; "
        "close it before the fork, or make another one after it"
    )
