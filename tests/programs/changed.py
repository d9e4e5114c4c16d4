"""A performer of changed code: another version of the code under the same type, as a bad deploy brings it.

It changes something that the run has recorded, so its next operation must not happen: the divergence has to be detected
before anything is executed. Where nothing of that is recorded it behaves like the original code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec

from holdfast import Context
from holdfast.runner.context import requests_of
from tests.programs.expectation import At
from tests.programs.interpreter import Node
from tests.programs.ledger import EffectLedger
from tests.programs.performer import Performer

CHANGES = ("rename", "insert", "remove", "swap", "violate")
_PARTNERS = frozenset({"step", "flaky", "sleep"})
"""Operations that a step may be swapped with: each records its own outcome."""

_SHARE = 2


class Change(msgspec.Struct, frozen=True):
    """A change, and the steps it applies to, by the remainder of their number."""

    what: str
    number: int = 0

    def concerns(self, number: int) -> bool:
        return number % _SHARE == self.number % _SHARE


class ChangedPerformer(Performer):
    """Executes a program with a change.

    `forbid` records steps that were executed wrongly; `note` the location of the result that code received before it
    did what only a step may do.
    """

    def __init__(
        self,
        ctx: Context,
        ledger: EffectLedger,
        peer: str,
        change: Change,
        *,
        forbid: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        super().__init__(ctx, ledger, peer)
        self._change = change
        self._forbid = forbid
        self._note = note

    async def _step(self, at: At, number: int, undo: int, is_ephemeral: int) -> Any:
        what = self._change.what if self._concerns(at, number) else ""
        if what == "rename":
            return await self._new(f"renamed{number}")
        if what == "insert":
            await self._new(f"inserted{number}")
        elif what == "remove":
            return [number, at.iteration]
        found = await super()._step(at, number, undo, is_ephemeral)
        if what == "violate":
            self._note(f"{at.scope}step{number}")
            await asyncio.to_thread(print)
        return found

    async def _seq(self, at: At, nodes: list[Node]) -> Any:
        order = list(range(len(nodes)))
        for place, (node, partner) in enumerate(pairwise(nodes)):
            is_pair = node[0] == "step" and partner[0] in _PARTNERS
            if self._change.what == "swap" and is_pair and self._concerns(at, node[1]):
                order[place : place + 2] = [place + 1, place]
                break
        values = {place: await self.play(nodes[place], at) for place in order}
        return [values[place] for place in range(len(nodes))]

    def _concerns(self, at: At, number: int) -> bool:
        """True if a step is changed and recorded. A violation by I/O shows also in a new step."""
        is_recorded = requests_of(self.ctx).recorded(f"{at.scope}step{number}") is not None
        return self._change.concerns(number) and (is_recorded or self._change.what == "violate")

    async def _new(self, name: str) -> Any:
        async def body() -> None:
            self._forbid(f"{name} of {self.ctx.run.id} was executed, though it is not in the recorded history")

        return await self.ctx.step(name, body)
