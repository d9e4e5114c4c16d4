"""The JSON of the port: what is encoded decodes to the same value, and bad input is refused with its path."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.checkpoint import Checkpoint, Finish, Hold, Next, StartRollback
from holdfast.core.codec import DEPTH_LIMIT
from holdfast.core.commands import AnyCommand, Pause, SendMessages
from holdfast.core.errors import ErrorRecord, InvalidRequest, PayloadTooLarge
from holdfast.core.model import Lease, MessageToRun
from holdfast.core.questions import AnyAwaited, AnyListing, AnyStat
from holdfast.core.states import RunState
from holdfast.core.wire import as_json, decoded
from tests.port_types import UNIONS, answer_of, members, port_types
from tests.record_types import record_types
from tests.unit.core.strategies import values_of

PORT = port_types()
RECORDS = record_types()

# Round trips


@pytest.mark.parametrize("name", PORT)
@settings(max_examples=20)
@given(data=st.data())
def test_every_value_of_the_port_comes_back_from_its_json(name: str, data: st.DataObject) -> None:
    value = data.draw(values_of(PORT[name]))
    text = msgspec.json.encode(value)

    assert decoded(text, PORT[name]) == value
    assert msgspec.json.Decoder(PORT[name]).decode(text) == value


@pytest.mark.parametrize("union", UNIONS.values(), ids=[base.__name__ for base in UNIONS])
@given(data=st.data())
def test_a_union_decodes_to_the_same_class(union: Any, data: st.DataObject) -> None:
    value = data.draw(values_of(union))
    back = decoded(msgspec.json.encode(value), union)

    assert (type(back), back) == (type(value), value)


def test_the_port_has_its_commands_questions_and_answers() -> None:
    named = {kind for union in UNIONS.values() for kind in members(union)}

    assert named | {Checkpoint} <= set(PORT.values())
    assert {answer_of(kind) for kind in named} - {type(None)} <= set(PORT.values())


@pytest.mark.parametrize("name", RECORDS)
@settings(max_examples=20)
@given(data=st.data())
def test_every_record_that_users_read_comes_back_from_its_json(name: str, data: st.DataObject) -> None:
    kind = RECORDS[name]
    record = data.draw(values_of(kind))
    text = as_json(record)

    # Lengths of time are numbers of seconds, which only this mode takes for a timedelta.
    assert msgspec.json.Decoder(kind, strict=False).decode(text) == record
    assert list(msgspec.json.decode(text)) == list(kind.__struct_encode_fields__)


# Tags


def test_the_kind_of_a_command_is_its_class_name_in_snake_case() -> None:
    command = SendMessages(messages=[MessageToRun(id="m", name="ping", payload="1", run_id="r")], by="ada")
    text = b'{"kind":"send_messages","by":"ada","messages":[{"id":"m","name":"ping","payload":"1","run_id":"r"}]}'

    assert msgspec.json.encode(command) == text
    assert decoded(text, AnyCommand) == command


def test_a_checkpoint_decodes_with_its_next_state() -> None:
    text = '{"run_id":"r","token":1,"seen":0,"next":{"kind":"hold"}}'

    assert decoded(text, Checkpoint) == Checkpoint(run_id="r", token=1, seen=0, next=Hold())


@pytest.mark.parametrize("state", [state for state in RunState if not state.is_end])
def test_a_state_that_is_no_end_ends_no_run(state: RunState) -> None:
    with pytest.raises(ValueError, match="cannot end"):
        Finish(state=state)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot end"):
        StartRollback(end=state, error=ErrorRecord(type="E", message=""))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="cannot end"):
        decoded(f'{{"kind":"finish","state":"{state}"}}', Next)


def test_a_rollback_does_not_end_in_success() -> None:
    with pytest.raises(ValueError, match="ends as failed or cancelled"):
        StartRollback(end=RunState.SUCCEEDED, error=ErrorRecord(type="E", message=""))  # type: ignore[arg-type]


# Bad input

ERROR = '{"type":"E","message":"","cause":'
BLOCK = '{"run_id":"r","token":1,"seen":0,"next":{"kind":"block","error":%s}}'

HOSTILE: list[tuple[Any, str | bytes, str]] = [
    (AnyCommand, "", "Input data was truncated - at `$`"),
    (AnyCommand, "{", "Input data was truncated - at `$`"),
    (AnyCommand, "[]", "Expected `object`, got `array` - at `$`"),
    (AnyCommand, "null", "Expected `object`, got `null` - at `$`"),
    (AnyCommand, "{}", "Object missing required field `kind` - at `$`"),
    (AnyCommand, '{"kind":"explode"}', "Invalid value 'explode' - at `$.kind`"),
    (AnyCommand, '{"kind":7}', "Expected `str` - at `$.kind`"),
    (AnyCommand, '{"kind":"pause","id":"1"}', "Object missing required field `run_id` - at `$`"),
    (AnyCommand, '{"kind":"pause","id":"1","run_id":null}', "Expected `str`, got `null` - at `$.run_id`"),
    (AnyCommand, '{"kind":"pause","id":"1","run_id":"r","by":["a"]}', "Expected `str`, got `array` - at `$.by`"),
    (AnyCommand, '{"kind":"pause","id":"1","run_id":"r"}}', "trailing characters"),
    (AnyCommand, '{"kind":"pause","id":"1","run_id":"r","reson":""}', "`reson`; did you mean `reason`? - at `$`"),
    (AnyCommand, '{"kind":"pause","id":"1","id":"2","run_id":"r"}', "has the field `id` twice - at `$`"),
    (AnyCommand, '{"kind":"pause","id":"1","run_id":"\\ud800"}', "is refused: "),
    (AnyCommand, '{"kind":"pause","id":"1","run_id":"\ud800"}', "surrogates not allowed - at `$`"),
    (AnyCommand, b'{"kind":"pause","id":"1","run_id":"\xff"}', "can't decode byte 0xff"),
    (AnyCommand, b'\xef\xbb\xbf{"kind":"pause","id":"1","run_id":"r"}', "malformed"),
    (AnyCommand, '{"kind":"pause","id":"1","run_id":"a\\u0000"}', "NUL, which not every store keeps - at `$.run_id`"),
    (AnyCommand, '{"kind":"recover","id":"1","run_id":"r","limit":NaN}', "malformed"),
    (AnyCommand, '{"kind":"recover","id":"1","run_id":"r","limit":true}', "Expected `int`, got `bool` - at `$.limit`"),
    (AnyCommand, '{"kind":"recover","id":"1","run_id":"r","limit":1e999}', "out of range - at `$.limit`"),
    (AnyCommand, '{"kind":"recover","id":"1","run_id":"r","limit":0.5}', "got `float` - at `$.limit`"),
    (AnyCommand, f'{{"kind":"recover","id":"1","run_id":"r","limit":{2**63}}}', "more than 64 bits - at `$.limit`"),
    (AnyCommand, f'{{"kind":"recover","id":"1","run_id":"r","limit":{"9" * 9_999}}}', "out of range - at `$.limit`"),
    (AnyCommand, '{"kind":"send_messages","messages":[{"id":"m","name":"n"}]}', "`payload` - at `$.messages[0]`"),
    (
        AnyCommand,
        '{"kind":"send_messages","messages":[{"id":"m","name":"n","payload":"1","rum_id":"r"}]}',
        "`rum_id`; did you mean `run_id`? - at `$.messages[0]`",
    ),
    (
        AnyCommand,
        f'{{"kind":"change_types","changes":[{{"name":"t","per_key":{{"shop":{2**64}}}}}]}}',
        "more than 64 bits - at `$.changes[0].per_key['shop']`",
    ),
    (AnyCommand, f'{{"kind":"pause","id":"1","run_id":"r","x":{"[" * 99_999}{"]" * 99_999}}}', "nested deeper than 64"),
    (Checkpoint, BLOCK % (ERROR * 5_000 + "null" + "}" * 5_000), "nested deeper than 64 levels"),
    (Checkpoint, BLOCK % (ERROR * DEPTH_LIMIT + "null" + "}" * DEPTH_LIMIT), "nested deeper than 64 levels"),
    (Checkpoint, '{"run_id":"r","token":1,"seen":0,"next":{"kind":"sleep"}}', "'sleep' - at `$.next.kind`"),
    (Checkpoint, '{"run_id":"r","token":1,"seen":0,"next":{"kind":"finish","state":"paused"}}', "at `$.next`"),
    (AnyStat, '{"kind":"list_topics"}', "Invalid value 'list_topics' - at `$.kind`"),
    (AnyListing, '{"kind":"list_messages"}', "Object missing required field `run_id` - at `$`"),
    (AnyAwaited, '{"kind":"replies_to","messages":[["r"]]}', "Expected `array` of length 2 - at `$.messages[0]`"),
    (Lease, '{"run":{"id":"r"}}', "Object missing required field `type` - at `$.run`"),
]


def test_bad_json_is_refused_with_the_path_of_the_mistake() -> None:
    told = []
    for kind, text, _ in HOSTILE:
        with pytest.raises(InvalidRequest) as refused:
            decoded(text, kind, "the body")
        told.append(str(refused.value))

    wrong = [(text[:80], found) for (_, text, words), found in zip(HOSTILE, told, strict=True) if words not in found]
    assert wrong == []
    assert [found for found in told if not found.startswith("the body is ") or len(found) > 200] == []


@given(text=st.text() | st.binary())
def test_any_text_is_a_command_or_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidRequest):
        decoded(text, AnyCommand)


def test_a_request_that_is_too_long_is_not_parsed() -> None:
    with pytest.raises(PayloadTooLarge, match="the request has 101 bytes as JSON; the limit is 100"):
        decoded("?" * 101, Pause, limit=100)
