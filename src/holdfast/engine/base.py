"""The base of the engine: what each of its parts needs of the object that is composed of them."""

from __future__ import annotations

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ports import Store
from holdfast.core.signals import Signals
from holdfast.engine.replies import Replies
from holdfast.engine.results import Results
from holdfast.runner.asyncio_private import get_running_loop_or_none
from holdfast.runner.loop import RunLoop
from holdfast.runner.violation import holdfast_call


class EngineBase:
    """A store that is opened at the first use, those who wait for something to appear in it, and those who listen."""

    signals: Signals

    @property
    def store(self) -> Store:
        """The store, once it is open."""
        raise NotImplementedError

    @property
    def results(self) -> Results:
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


INSTEAD = {
    "start": "ctx.start",
    "start_many": "ctx.map",
    "execute": "ctx.call",
    "result": "ctx.call, or await what ctx.start gave",
    "send": "ctx.send",
    "emit": "ctx.emit",
    "connection": "ctx.tx",
}
"""What workflow code has in place of methods of an engine or a handle."""


def refuse_workflow_code() -> None:
    """Refuse a call on the loop of a run: what it finds or does would not be recorded, and its store lives elsewhere.

    It is a violation, whatever the code makes of the error.
    """
    loop = get_running_loop_or_none()
    if isinstance(loop, RunLoop):
        owner, _, name = holdfast_call().rpartition(".")
        word = {"RunHandle": "run", "Worker": "worker"}.get(owner, "hf")
        call = f"`async with` on {word}" if name == "__aenter__" else f"{word}.{name}()"
        raise loop.refuse(call, INSTEAD.get(name, ""))


def opened_elsewhere(what: str, pid: int) -> StoreUnavailable:
    """The error of a forked child that uses what its parent has opened."""
    return StoreUnavailable(
        f"{what} was opened in another process (pid {pid}), and a fork does not take its threads along; "
        "close it before the fork, or make another one after it"
    )
