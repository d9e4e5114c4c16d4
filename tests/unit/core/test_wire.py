"""The JSON of the port: what is encoded decodes to the same value, and bad input is refused with its path."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.checkpoint import Checkpoint, Finish, Hold, Next, StartRollback
from holdfast.core.commands import AnyCommand, SendMessages
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import MessageToRun
from holdfast.core.states import RunState


def test_the_kind_of_a_command_is_its_class_name_in_snake_case() -> None:
    command = SendMessages(messages=[MessageToRun(id="m", name="ping", payload="1", run_id="r")], by="ada")
    text = b'{"kind":"send_messages","by":"ada","messages":[{"id":"m","name":"ping","payload":"1","run_id":"r"}]}'

    assert msgspec.json.encode(command) == text
    assert msgspec.json.Decoder(AnyCommand).decode(text) == command


def test_a_checkpoint_decodes_with_its_next_state() -> None:
    text = b'{"run_id":"r","token":1,"seen":0,"next":{"kind":"hold"}}'

    assert msgspec.json.Decoder(Checkpoint).decode(text) == Checkpoint(run_id="r", token=1, seen=0, next=Hold())


@pytest.mark.parametrize("state", [state for state in RunState if not state.is_end])
def test_a_state_that_is_no_end_ends_no_run(state: RunState) -> None:
    decoder = msgspec.json.Decoder(Next)

    with pytest.raises(ValueError, match="cannot end"):
        Finish(state=state)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot end"):
        StartRollback(end=state, error=ErrorRecord(type="E", message=""))  # type: ignore[arg-type]
    with pytest.raises(msgspec.ValidationError, match="cannot end"):
        decoder.decode(f'{{"kind":"finish","state":"{state}"}}')


def test_a_rollback_does_not_end_in_success() -> None:
    with pytest.raises(ValueError, match="ends as failed or cancelled"):
        StartRollback(end=RunState.SUCCEEDED, error=ErrorRecord(type="E", message=""))  # type: ignore[arg-type]
