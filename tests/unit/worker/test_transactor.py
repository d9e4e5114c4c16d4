"""The transactor: transactions are repeated until there is an answer."""

from __future__ import annotations

import asyncio
import logging
from itertools import repeat
from typing import Any, cast

import pytest

from holdfast.core.checkpoint import Checkpoint, Hold, Verdict
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ports import Database, Transacted
from holdfast.testing.patience import until
from holdfast.worker.committer import Transactor


class Away:
    """A database that is unreachable until the test says otherwise."""

    is_back = False
    asked = 0

    async def transact(self, checkpoint: Checkpoint, location: str, transaction: Any) -> Transacted:
        self.asked += 1
        if not self.is_back:
            raise StoreUnavailable("away")
        return Transacted(verdict=Verdict(run_id=checkpoint.run_id), now=1)


async def test_an_outage_is_logged_once_however_many_transactions_meet_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.outage.pauses", lambda: repeat(0.0))
    database = Away()
    transactor = Transactor(cast("Database", database), lambda _: None)
    answers: list[Transacted | Exception] = []
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        tasks = [
            transactor.start(
                Checkpoint(run_id=run_id, token=1, seen=0, next=Hold()), "tx", cast("Any", None), answers.append
            )
            for run_id in ("a", "b", "c")
        ]
        await until("all have failed", lambda: database.asked >= len(tasks))
        database.is_back = True
        await asyncio.wait(tasks)
        await until("all are answered", lambda: len(answers) == len(tasks))

    assert [record.getMessage().partition(" after ")[0] for record in caplog.records] == [
        "cannot execute transactions; trying again: away",
        "executing transactions works again",
    ]
