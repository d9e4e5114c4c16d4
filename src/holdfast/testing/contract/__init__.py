"""The store contract: the promises of every store, as a test suite that any store can run.

The suite needs pytest and pytest-asyncio. Subclass `StoreContract` in a test file and give it a fixture `store`: a
store that is open and empty, and that reads its time from the fixture `clock`.

    class TestMyStore(StoreContract):
        @pytest_asyncio.fixture
        async def store(self, clock: SettableClock) -> AsyncIterator[Store]:
            store = MyStore(clock=clock)
            await store.open()
            yield store
            await store.close()

Each test cites the rule that it proves. `docs/protocol.md` lists S1 to S8 and T1 to T9.
A store with the capability `Transfer` also subclasses `TransferContract`, and one with `Database` also subclasses
`DatabaseContract`. A store without hints subclasses all parts except `HintContract` itself.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "actor",
    "child",
    "checkpoint",
    "claim",
    "claim_order",
    "control",
    "database",
    "delete",
    "event",
    "flow",
    "flow_history",
    "flow_revision",
    "fork",
    "generation",
    "group",
    "hint",
    "letter",
    "limit",
    "message",
    "moved_event",
    "pause",
    "queue",
    "rate",
    "read",
    "recover",
    "renew",
    "reopen",
    "repeat",
    "retention",
    "rewind",
    "rollback",
    "schedule",
    "slot",
    "start",
    "transfer",
    "type",
)

# Register the modules before importing them, so that a failed assertion shows its values.
pytest.register_assert_rewrite(f"{__name__}.arrange", *(f"{__name__}.{part}" for part in _PARTS))

from holdfast.testing.contract.actor import ActorContract  # noqa: E402
from holdfast.testing.contract.checkpoint import CheckpointContract  # noqa: E402
from holdfast.testing.contract.child import ChildContract  # noqa: E402
from holdfast.testing.contract.claim import ClaimContract  # noqa: E402
from holdfast.testing.contract.claim_order import ClaimOrderContract  # noqa: E402
from holdfast.testing.contract.clock import START, SettableClock  # noqa: E402
from holdfast.testing.contract.control import ControlContract  # noqa: E402
from holdfast.testing.contract.database import DatabaseContract  # noqa: E402
from holdfast.testing.contract.delete import DeleteContract  # noqa: E402
from holdfast.testing.contract.event import EventContract  # noqa: E402
from holdfast.testing.contract.flow import FlowContract, MovedFlowContract  # noqa: E402
from holdfast.testing.contract.flow_history import FlowHistoryContract  # noqa: E402
from holdfast.testing.contract.flow_revision import FlowRevisionContract  # noqa: E402
from holdfast.testing.contract.fork import ForkContract  # noqa: E402
from holdfast.testing.contract.generation import GenerationContract  # noqa: E402
from holdfast.testing.contract.group import GroupContract  # noqa: E402
from holdfast.testing.contract.hint import HintContract  # noqa: E402
from holdfast.testing.contract.letter import LetterContract  # noqa: E402
from holdfast.testing.contract.limit import LimitContract  # noqa: E402
from holdfast.testing.contract.message import MessageContract  # noqa: E402
from holdfast.testing.contract.moved_event import MovedEventContract  # noqa: E402
from holdfast.testing.contract.pause import PauseContract  # noqa: E402
from holdfast.testing.contract.queue import QueueContract  # noqa: E402
from holdfast.testing.contract.rate import RateContract  # noqa: E402
from holdfast.testing.contract.read import ReadContract  # noqa: E402
from holdfast.testing.contract.recover import RecoverContract  # noqa: E402
from holdfast.testing.contract.renew import RenewContract  # noqa: E402
from holdfast.testing.contract.reopen import ReopenContract  # noqa: E402
from holdfast.testing.contract.repeat import RepeatContract  # noqa: E402
from holdfast.testing.contract.retention import RetentionContract  # noqa: E402
from holdfast.testing.contract.rewind import RewindContract  # noqa: E402
from holdfast.testing.contract.rollback import RollbackContract  # noqa: E402
from holdfast.testing.contract.schedule import ScheduleContract  # noqa: E402
from holdfast.testing.contract.slot import SlotContract  # noqa: E402
from holdfast.testing.contract.start import StartContract  # noqa: E402
from holdfast.testing.contract.transfer import ExportContract  # noqa: E402
from holdfast.testing.contract.type import TypeContract  # noqa: E402

__all__ = [
    "START",
    "ActorContract",
    "ArrivalContract",
    "CheckpointContract",
    "ChildContract",
    "ClaimContract",
    "ClaimOrderContract",
    "ControlContract",
    "DatabaseContract",
    "DeleteContract",
    "EventContract",
    "ExportContract",
    "FlowContract",
    "FlowHistoryContract",
    "FlowRevisionContract",
    "ForkContract",
    "GenerationContract",
    "GroupContract",
    "HintContract",
    "LetterContract",
    "LimitContract",
    "MessageContract",
    "MovedEventContract",
    "MovedFlowContract",
    "PauseContract",
    "QueueContract",
    "RateContract",
    "ReadContract",
    "RecoverContract",
    "RenewContract",
    "ReopenContract",
    "RepeatContract",
    "RetentionContract",
    "RewindContract",
    "RollbackContract",
    "ScheduleContract",
    "SettableClock",
    "SlotContract",
    "StartContract",
    "StoreContract",
    "TransferContract",
    "TypeContract",
]


class ArrivalContract(MessageContract, EventContract, QueueContract, LetterContract, ChildContract):
    """Arrivals of a run: messages, events and the ends of children."""


class TransferContract(ExportContract, MovedEventContract, MovedFlowContract):
    """The tests for a store whose runs can be exported and imported. Use it like `StoreContract`."""


class StoreContract(
    StartContract,
    ClaimContract,
    ClaimOrderContract,
    RenewContract,
    CheckpointContract,
    RepeatContract,
    ArrivalContract,
    GroupContract,
    GenerationContract,
    RollbackContract,
    ControlContract,
    ActorContract,
    PauseContract,
    RewindContract,
    RecoverContract,
    ReopenContract,
    ForkContract,
    ScheduleContract,
    TypeContract,
    FlowContract,
    FlowHistoryContract,
    FlowRevisionContract,
    LimitContract,
    SlotContract,
    RateContract,
    DeleteContract,
    RetentionContract,
    ReadContract,
    HintContract,
):
    """The tests that every store must pass. Subclass it in a test file and give it a fixture `store`.

        class TestMyStore(StoreContract):
            @pytest_asyncio.fixture
            async def store(self, clock: SettableClock) -> AsyncIterator[Store]:
                store = MyStore(clock=clock)
                await store.open()
                yield store
                await store.close()

    The store is open, empty, and reads its time from the fixture `clock`. Needs pytest and pytest-asyncio.
    """
