"""Playing a flow without a store: stubs answer, and time jumps."""
# ruff: noqa: E501 - a program stands on one line

from __future__ import annotations

import pytest

from holdfast.core.clock import DAY, SECOND
from holdfast.core.errors import InvalidRequest
from holdfast.flows.compiler import compile_flow
from holdfast.flows.play import PlayedArrival, StubError, StubSequence, play
from holdfast.flows.requests import FlowRaised, FlowReturned
from tests.unit.flows.actor import body

GRANT = '''"""Grant access for a while, after somebody approved it."""

async def main(user: str, hours: int = 8):
    mails = [start("notify.email.v1", to=a, user=user) for a in await call("access.approvers.v1", user=user)]
    try:
        answer = await receive("decision", timeout=days(2))
    except WaitTimeout:
        return {"state": "expired"}
    if not answer["approved"]:
        return {"state": "denied", "by": answer["by"]}
    await call("access.grant.v1", user=user)
    key, _ = await race({"end": sleep(hours * 3600), "revoke": receive("revoke")})
    await call("access.revoke.v1", user=user)
    return {"state": "ended", "why": key}
'''
STUBS = {"access.approvers.v1": ["a", "b"], "notify.email.v1": None, "access.grant.v1": 1, "access.revoke.v1": 1}


def test_flow_without_a_decision_expires() -> None:
    played = play(compile_flow(GRANT), GRANT, '{"user":"bo"}', STUBS)

    assert played.outcome == FlowReturned('{"state":"expired"}')
    assert played.now == 2 * DAY


def test_flow_with_a_decision_ends_after_its_hours() -> None:
    decision = PlayedArrival("decision", {"approved": True}, at=60 * SECOND)
    played = play(compile_flow(GRANT), GRANT, '{"user":"bo"}', STUBS, arrivals=[decision])

    assert played.outcome == FlowReturned('{"state":"ended","why":"end"}')
    assert played.now == (60 + 8 * 3600) * SECOND
    assert any("line 11" in line and "access.grant.v1" in line for line in played.trace)
    assert played.trace[-1].endswith('returned {"state":"ended","why":"end"}')


def test_stubs_give_errors_and_sequences() -> None:
    source = body(
        "try:\n    await call('x')\nexcept ChildFailed as e:\n    return [e['message'], await call('x'), await call('x')]"
    )
    stubs = {"x": StubSequence((StubError(message="no"), 1, 2))}

    assert play(compile_flow(source), source, "{}", stubs).outcome == FlowReturned('["no",1,2]')


def test_missing_stub_is_named() -> None:
    source = body("await call('x.v1')")

    with pytest.raises(InvalidRequest, match=r"calls 'x\.v1', which has no stub"):
        play(compile_flow(source), source, "{}", {})


def test_flow_that_waits_for_ever_has_no_outcome() -> None:
    source = body("await receive('m')")

    played = play(compile_flow(source), source, "{}", {})

    assert (played.outcome, played.waits) == (None, ("waits for message m",))


def test_events_batches_and_maps_are_played() -> None:
    source = body(
        "return [await wait_event('t'), await receive_batch('m', 5), await map('x', [{}, {}]), await receive()]"
    )
    arrivals = [PlayedArrival("t", 1, is_event=True), PlayedArrival("m", 2, at=5), PlayedArrival("n", 3)]

    played = play(compile_flow(source), source, "{}", {"x": 7}, arrivals=arrivals)

    assert played.outcome == FlowReturned('[1,[2],[7,7],["n",3]]')


def test_error_of_a_played_flow_is_given() -> None:
    source = body("return 1 / 0")

    played = play(compile_flow(source), source, "{}", {})

    assert isinstance(played.outcome, FlowRaised)
    assert played.error is not None
    assert played.error.type == "ZeroDivisionError"


@pytest.mark.parametrize("program", ["await call('x')", "h = call('x')\n    cancel(h)\n    await h"])
def test_the_error_of_a_child_has_its_cause(program: str) -> None:
    source = body(f"try:\n    {program}\nexcept ChildFailed as e:\n    return e['cause']['message'] == e['message']")

    played = play(compile_flow(source), source, "{}", {"x": StubError(message="no")})

    assert played.outcome == FlowReturned("true")
