"""Snapshots: the whole state survives, and nothing else is accepted as one."""

from __future__ import annotations

import json
from contextlib import suppress
from random import Random

import pytest

from holdfast.core.errors import FlowRefused, InvalidRequest, Unreadable
from holdfast.flows.compiler import compile_flow
from holdfast.flows.machine import Machine
from holdfast.flows.operations import MAIN_PATH
from holdfast.flows.program import Program
from holdfast.flows.requests import FlowRaised, FlowReturned, Waiting
from tests.plugin.tiers import amount
from tests.unit.flows.actor import START, Actor, body

SOURCE = body("""
a = [1]
b = {"h": 1, "": a, "c": {"e": 0}, "[0]": [], "x": {}}
a.append(a)
for i, (k, v) in enumerate(zip("ab", [1, 2])):
    try:
        await call("x", n=i)
    except ChildFailed as e:
        b["e"] = e
a.append(3)
return [b[""] == 1, len(b[""]), len(a[1][1]), 10 ** 50, 1.0, b["e"]["type"], k, list(b)]
""")


def test_aliases_cycles_odd_keys_and_cursors_survive() -> None:
    actor = Actor(SOURCE)
    actor.run()
    actor.done(1)

    end = actor.failed(2, "ChildFailed")

    assert isinstance(end, FlowReturned)
    keys = ["h", "", "c", "[0]", "x", "e"]
    assert json.loads(end.result) == [False, 3, 3, 10**50, 1.0, "ChildFailed", "b", keys]


def test_program_survives_its_encoding() -> None:
    program = compile_flow(SOURCE)

    assert Program.decode(program.encode()) == program


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"check":1,"program":{}}', "\ud800", "{" * 5_000])
def test_what_is_no_program_or_snapshot_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        Program.decode(text)
    with pytest.raises(Unreadable):
        Machine.resume(compile_flow(SOURCE), SOURCE, text)


@pytest.mark.both_tiers
def test_damaged_programs_and_snapshots_are_unreadable() -> None:
    chance = Random(1)
    actor = Actor(SOURCE)
    actor.run()
    texts = [actor.machine.snapshot(), actor.program.encode()]
    for _ in range(amount(short=200, long=5_000)):
        text = chance.choice(texts)
        at = chance.randrange(len(text))
        damaged = text[:at] + chance.choice('0123456789"{}[],:ab') + text[at + chance.randrange(2) :]
        if damaged == text:
            continue
        is_snapshot = text is texts[0]
        with pytest.raises(Unreadable):
            _ = Machine.resume(actor.program, SOURCE, damaged) if is_snapshot else Program.decode(damaged)


def test_snapshot_of_another_flow_is_unreadable() -> None:
    actor = Actor(SOURCE)
    actor.run()
    other = compile_flow(body("await sleep(1)"))

    with pytest.raises(Unreadable, match="another version"):
        Machine.resume(other, "", actor.machine.snapshot())


def test_version_ignores_formatting_and_comments_only() -> None:
    one = compile_flow('async def main():\n    return {"a": 1}\n').version

    assert compile_flow("# hi\nasync def main( ):\n\n    return {'a':1}  # there\n").version == one
    assert compile_flow('async def main():\n    return {"a": 1.0}\n').version != one
    assert len(one) == 64


def test_state_that_exceeds_its_limit_fails_the_run() -> None:
    actor = Actor(body("x = ['a' * 900000, 'b' * 900000]\nawait sleep(1)"))

    progress = actor.run()

    assert isinstance(progress, FlowRaised)
    assert "state_bytes" in progress.error.message


def test_variables_frames_and_marks_show_where_a_flow_waits() -> None:
    source = "async def inner(n):\n    await receive('decision', timeout=60)\n\n" + body("x = [1]\nawait inner(5)")
    actor = Actor(source)
    assert actor.run() == Waiting()

    assert actor.machine.variables() == {"n": 5}
    frames = actor.machine.handles.paths[MAIN_PATH].frames
    assert [actor.machine.variables_of(frame) for frame in frames] == [{"x": [1]}, {"n": 5}]
    (mark,) = actor.machine.marks()
    assert (mark.line, mark.column, mark.function, mark.handle) == (2, 5, "inner", 1)
    assert mark.sentence.startswith("waits for message decision until 2023-11-14 ")


def test_variables_can_be_edited() -> None:
    actor = Actor(body("x = 1\nawait sleep(1)\nreturn x"))
    actor.run()
    actor.machine.edit_variables({"x": "[5]"})

    with pytest.raises(InvalidRequest, match="unknown variable y"):
        actor.machine.edit_variables({"y": "1"})
    assert actor.done(1) == FlowReturned("[5]")


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ("[]", "JSON object"),
        ("{", "cannot be read as JSON"),
        ("{}", "missing arguments: user"),
        ('{"user":"a","hour":1}', "did you mean hours"),
        ('{"user":1}', "the parameter user of main is str, and the payload has an int"),
        ('{"user":"a","hours":true}', "the parameter hours of main is int"),
        ('{"user":"a","tags":[]}', "the parameter tags of main is dict | None"),
    ],
)
def test_payload_that_does_not_fit_main_is_refused(payload: str, message: str) -> None:
    source = body(
        "return [user, hours, rate, tags]", "user: str, hours: int = 8, rate: float = 1.5, tags: dict | None = None"
    )
    program = compile_flow(source)

    with pytest.raises(InvalidRequest) as refused:
        Machine.begin(program, source, payload, run_id="r", now=START)
    assert message in str(refused.value)


def test_payload_fills_the_parameters_of_main() -> None:
    source = body("return [user, hours, rate, tags]", "user: str, hours: int = 8, rate: float = 1.5, tags: dict = None")

    assert Actor(source, user="bo", rate=2, tags=None).run() == FlowReturned('["bo",8,2.0,null]')


@pytest.mark.both_tiers
def test_mutated_text_is_a_program_or_refused() -> None:
    chance = Random(7)
    pieces = [
        *"()[]{}:,.=+-*\n\t '\"\\#",
        "await ",
        "async ",
        "def ",
        "lambda ",
        "yield ",
        "\0",
        "é",
        "\ud800",
        "f'{",
        "1e999",
    ]
    pieces += [
        "__class__",
        "**",
        " if ",
        " for ",
        " in ",
        "return ",
        "try:\n",
        "finally:",
        "0" * 50,
        "match ",
        "*",
        ":=",
    ]
    programs = 0
    for _ in range(amount(short=600, long=30_000)):
        text = SOURCE
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(text))
            text = text[:at] + chance.choice(pieces) + text[at + chance.randrange(4) :]
        with suppress(FlowRefused):
            program = compile_flow(text)
            programs += 1
            assert Program.decode(program.encode()) == program
    assert programs


@pytest.mark.both_tiers
def test_random_text_is_refused() -> None:
    chance = Random(8)
    for _ in range(amount(short=500, long=10_000)):
        text = bytes(chance.randrange(256) for _ in range(chance.randrange(200))).decode("latin-1")
        with pytest.raises(FlowRefused):
            compile_flow(text)
