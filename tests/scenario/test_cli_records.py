"""The JSON of the command line is that of the records, as the Python API returns them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast
from holdfast.cli.view import Snapshot
from holdfast.core.ports import Finding
from holdfast.core.wire import as_json
from holdfast.engine.info import (
    AuditInfo,
    DeadLetterInfo,
    EntryInfo,
    MessageInfo,
    RunInfo,
    ScheduleInfo,
    TopicInfo,
    TypeInfo,
)
from holdfast.engine.namespaces import FlowInfo
from tests.unit.cli.rig import Shop

FLOW = "async def main(n):\n    return n"

COMMANDS: dict[str, Any] = {
    "ls": list[RunInfo],
    "show key:order-17": Snapshot,
    "history key:order-17": list[EntryInfo],
    "audit key:order-17": list[AuditInfo],
    "messages key:order-17": list[MessageInfo],
    "types ls": list[TypeInfo],
    "topics ls": list[TopicInfo],
    "topics dead-letters": list[DeadLetterInfo],
    "schedules ls": list[ScheduleInfo],
    "flows ls": list[FlowInfo],
    "flows show shop.flow.v1": FlowInfo,
    "doctor": list[Finding],
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = Shop(Path(tmp_path_factory.mktemp("shop")))
    shop.start("shop.broken.v1", key="broken")
    shop.start("shop.order.v1", {"name": "ann"}, key="order-17")
    shop.work()

    async def fill(hf: Holdfast) -> None:
        await hf.run(key="order-17").send("chat", {"text": "hello"})
        await hf.types.set("shop.add.v1", rate=(5, 60), retention=3600)
        await hf.topics.set("jobs", mode="queue", retention=60, max_pending=1)
        await hf.emit("jobs", 1)
        await hf.emit("jobs", 2)
        await hf.schedules.put("nightly", "shop.add.v1", {"a": 1, "b": 2}, every=60)
        await hf.flows.register(FLOW, type="shop.flow.v1")

    shop.do(fill)
    shop.read("prune")  # the second event is one too many
    return shop


@pytest.mark.parametrize("words", COMMANDS)
def test_the_json_of_a_command_is_that_of_its_records(shop: Shop, words: str) -> None:
    written = shop.type(*words.split(), "--json").stdout
    records = msgspec.json.Decoder(COMMANDS[words], strict=False).decode(written)

    assert records
    assert written == as_json(records, indent=2) + "\n"
