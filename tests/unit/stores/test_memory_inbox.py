"""The inbox of a run in the memory store: its index of message ids follows every change."""

from __future__ import annotations

from holdfast.core.model import RECEIPT_RETENTION, Arrival, WaitKind
from holdfast.stores.memory.state import Record
from tests.unit.core.a_history import RUN

NOW = 2 * RECEIPT_RETENTION


def message(number: int, ref: str) -> Arrival:
    return Arrival(number=number, kind=WaitKind.MESSAGE, name="m", at=0, payload="1", ref=ref)


def test_index_of_messages_follows_the_inbox() -> None:
    record = Record(RUN)
    record.put_arrivals([message(1, "a")])
    assert record.knows_message("a", NOW)

    record.put_arrivals([message(2, "b")])
    assert record.knows_message("b", NOW)

    record.take_arrival(1)
    assert not record.knows_message("a", NOW)

    record.empty_inbox()
    assert not record.knows_message("b", NOW)


def test_index_keeps_a_message_that_was_put_back_under_another_number() -> None:
    record = Record(RUN)
    record.put_arrivals([message(1, "a")])
    assert record.knows_message("a", NOW)
    record.put_arrivals([message(2, "a")])

    record.take_arrival(1)

    assert record.knows_message("a", NOW)
