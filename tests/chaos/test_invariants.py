"""The checkers can fail: each kind of defect is planted into otherwise good evidence, and is found."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.clock import SECOND, Micros
from holdfast.core.codec import encode_any
from holdfast.core.model import AuditFact, Entry, EntryKind, EntryState, Run, Schedule, Wait, WaitKind
from holdfast.core.schedules import SLOT_TAG, slot_text
from holdfast.core.states import RunState
from tests.chaos import load
from tests.chaos.evidence import Delay, Evidence, Fate, Remark, Sighting, Story
from tests.chaos.invariants import Kind, check_all
from tests.chaos.journal import Acceptance, Expectation
from tests.chaos.verdict import judge
from tests.process.ledger import Deed

T0: Micros = 1_000_000 * SECOND
SUCCEEDED = Expectation()


def text(value: object) -> str:
    return encode_any(value, "value")


def run(id: str, type: str, state: RunState = RunState.SUCCEEDED, **more: Any) -> Run:
    usual: dict[str, Any] = {"payload": "{}", "token": 1, "created_at": T0, "first_claimed_at": T0}
    return Run(id=id, type=type, state=state, start_at=T0, updated_at=T0, **usual | more)


def fact(id: str, event: str, seconds: float = 0, **data: str | int) -> AuditFact:
    return AuditFact(run_id=id, event=event, at=T0 + round(seconds * SECOND), data=data)


def life(id: str, end: str = "succeeded", begun: float = 0, ended: float = 1) -> tuple[AuditFact, ...]:
    return fact(id, "claimed", begun, worker="w1", token=1), fact(id, end, ended)


def step(location: str, mark: str, position: int, **more: Any) -> Entry:
    usual: dict[str, Any] = {"kind": EntryKind.STEP, "attempts": 1}
    return Entry(location=location, position=position, state=EntryState.DONE, result=text(mark), **usual | more)


def deed(id: str, location: str, mark: str, *, what: str = "began", at: float = 0, word: str = "-") -> Deed:
    return Deed(what, id, location, 1, int(mark.split(".", maxsplit=1)[0]), mark, T0 / SECOND + at, word)


def start(id: str, kind: str, expect: Expectation = SUCCEEDED) -> Acceptance:
    return Acceptance(item=f"0-{id}", what="start", kind=kind, run_id=id, expect=expect)


def chain() -> Evidence:
    """A chain of two links, executed by process 7, which is worker w1."""
    id = "r"
    story = Story(
        run(id, "chain", result=text(["7.1", "7.2"])),
        (),
        (step("link", "7.1", 1), step("link#2", "7.2", 2)),
        life(id),
    )
    return Evidence(
        seconds=1,
        lease_seconds=1,
        accepted=[start(id, "chain")],
        stories={id: story},
        deeds=[deed(id, "link", "7.1"), deed(id, "link#2", "7.2", word="7.1")],
        fates=[Fate(7, "w1"), Fate(8, "w2")],
    )


def some(type: str, *stories: Story, **more: Any) -> Evidence:
    """Evidence of other runs."""
    accepted = [start(story.run.id, type) for story in stories]
    known = {story.run.id: story for story in stories}
    return Evidence(seconds=1, lease_seconds=1, **{"accepted": accepted, "stories": known, "deeds": []} | more)


def changed(evidence: Evidence, **of_run: Any) -> Evidence:
    """The same evidence, with the one run changed."""
    return with_story(evidence, run=replace(evidence.stories["r"].run, **of_run))


def with_story(evidence: Evidence, **of_story: Any) -> Evidence:
    return replace(evidence, stories={"r": replace(evidence.stories["r"], **of_story)})


def letters(got: list[list[object]]) -> Evidence:
    expect = Expectation(letters={"a": 2})
    story = Story(run("r", "letters", result=text(got)), (), (), life("r"))
    return some("letters", story, accepted=[start("r", "letters", expect)])


def takers(*got: int) -> Evidence:
    expect = Expectation(one_of="queue.x", payloads=([0], [1]))
    stories = [Story(run(f"{n}", "watch", result=text([one])), (), (), life(f"{n}")) for n, one in enumerate(got)]
    return some("watch", *stories, accepted=[start(one.run.id, "queue", expect) for one in stories])


def received_twice() -> Evidence:
    entries = [
        Entry(location=f"receive:{n}", kind=EntryKind.MESSAGE, state=EntryState.DONE, position=n, ref="m")
        for n in (1, 2)
    ]
    return some("letters", Story(run("r", "letters"), (), tuple(entries), life("r")))


def at_once(type: str, count: int, **more: Any) -> Evidence:
    stories = [Story(run(f"{n}", type, **more), (), (), life(f"{n}", begun=n / 100)) for n in range(count)]
    return some(type, *stories)


def awake(seconds_late: float) -> Evidence:
    due = T0 / SECOND + 5
    story = Story(run("r", "sleeper", result="1"), (), (step("awake", "7.1", 1),), life("r"))
    return some("sleeper", story, deeds=[deed("r", "awake", "7.1", at=5 + seconds_late, word=f"{due:.6f}")])


def tried(at: float) -> Evidence:
    """A step that was not to be retried before the fifth second."""
    story = Story(run("r", "flaky"), (), (step("try", "7.2", 1, attempts=2),), life("r"))
    deeds = [deed("r", "try", "7.1"), deed("r", "try", "7.1", what="failed")]
    again = Deed("began", "r", "try", 2, 7, "7.2", T0 / SECOND + at, "-")
    return some("flaky", story, deeds=[*deeds, again], delays=[Delay("r", "try", 1, T0 / SECOND + 5)])


def cancelled_retry(retried: int) -> Evidence:
    """A run that was cancelled after its first attempt had failed."""
    entry = Entry(location="try", kind=EntryKind.STEP, state=EntryState.RETRYING, attempts=1)
    claimed, cancelled = life("r", "cancelled")
    facts = (claimed, *(fact("r", "retried", location="try") for _ in range(retried)), cancelled)
    expect = Expectation(states=("cancelled",))
    story = Story(run("r", "hopeless", RunState.CANCELLED), (), (entry,), facts)
    return some("hopeless", story, accepted=[start("r", "hopeless", expect)])


def ticks(*slots: int, created: float = 10) -> Evidence:
    def tick(number: int, slot: int) -> Story:
        tags = {SLOT_TAG: slot_text(T0 + slot * SECOND)}
        id = f"{number}"
        return Story(run(id, "tick", tags=tags, created_at=T0 + round(created * SECOND)), (), (), life(id))

    schedule = Schedule(name="tick", type="tick", payload="{}", every=SECOND, anchor=T0, last_slot=T0 + 2 * SECOND)
    return some("tick", *(tick(number, slot) for number, slot in enumerate(slots)), accepted=[], schedule=schedule)


def deposits(*numbers: int, total: int | None = None, type: str = "cashiers") -> Evidence:
    story = Story(run("r", type, payload='{"count":2}', result="[0,1]"), (), (), life("r"))
    made = [("r", number) for number in numbers]
    return some(type, story, deposits=made, total=len(made) if total is None else total)


def trip(*undone: str) -> Evidence:
    steps = [step(name, f"7.{n}", n, has_undo=True) for n, name in enumerate(("stage", "stage#2"), 1)]
    undos = [step(f"~undo/{name}", f"7.{n}", n, kind=EntryKind.UNDO) for n, name in enumerate(undone, 3)]
    deeds = [deed("r", one.location, f"7.{one.position}") for one in steps]
    of_undos = zip(undos, undone, strict=True)
    deeds += [deed("r", u.location, f"7.{u.position}", word="7.1" if n == "stage" else "7.2") for u, n in of_undos]
    story = Story(run("r", "trip", RunState.FAILED), (), (*steps, *undos), life("r", "failed"))
    return some("trip", story, accepted=[start("r", "trip", Expectation(states=("failed",)))], deeds=deeds)


def parent(*locations: str) -> Evidence:
    """A parent that is expected to start two children, and the locations of those that it has."""
    children = [
        Story(run(f"{n}", "errand", parent_id="r", parent_location=at), (), (), life(f"{n}"))
        for n, at in enumerate(locations)
    ]
    accepted = [start("r", "flow errands", Expectation(children=2))]
    return some("flow.errands", Story(run("r", "flow.errands"), (), (), life("r")), *children, accepted=accepted)


def waiting(*waits: Wait, state: RunState = RunState.SUSPENDED) -> Evidence:
    expect = Expectation(states=("suspended",))
    facts = (fact("r", "claimed", worker="w1", token=1), fact("r", "suspended", 1))
    return some(
        "letters", Story(run("r", "letters", state), waits, (), facts), accepted=[start("r", "patient", expect)]
    )


def lost(**of_fate: Any) -> Evidence:
    """A run that was taken from w1 in the second second."""
    good = chain()
    again = fact("r", "claimed", 2, worker="w2", token=2, crashes=1, lost="w1")
    first, end = good.stories["r"].facts
    evidence = changed(with_story(good, facts=(first, again, replace(end, at=T0 + 3 * SECOND))), token=2, attempt=2)
    return replace(evidence, fates=[Fate(7, "w1", **of_fate), Fate(8, "w2")])


def executed_again(location: str) -> Evidence:
    """The successor of w1 executes a step, but the result of w1 is recorded."""
    evidence = lost(killed_at=LATER - 1)
    return replace(evidence, deeds=[*evidence.deeds, deed("r", location, "8.1", at=2.5)])


LATER = T0 / SECOND + 2
MESSAGE = Wait(location="receive", kind=WaitKind.MESSAGE, since=T0, names=("a",))

GOOD = {
    "a chain": chain(),
    "letters in order": letters([["a", 0], ["a", 1]]),
    "a queue": takers(1, 0),
    "as many at once as may be": at_once("limited", load.CONCURRENCY["limited"]),
    "a timer in time": awake(0.001),
    "a retry in time": tried(5.001),
    "a cancel between two attempts": cancelled_retry(1),
    "a run for each slot": ticks(1, 2),
    "deposits": deposits(0, 1),
    "deposits by idempotency key": deposits(0, 1, type="clerks"),
    "a trip undone": trip("stage#2", "stage"),
    "a parent of two": parent("@1/errand#1", "@1/errand#2"),
    "one that waits": waiting(MESSAGE),
    "a takeover after a death": lost(killed_at=LATER - 1),
    "a takeover from one who left": lost(left_at=LATER - 1),
    "a takeover while stopped": lost(stopped=((LATER - 1.5, LATER + 1),)),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_evidence_has_no_violations(name: str) -> None:
    assert [violation for check in check_all(GOOD[name]) for violation in check.violations] == []


PLANTED: dict[str, tuple[str, Kind, Evidence]] = {
    "a lost run": ("I1", "lost", replace(chain(), stories={})),
    "a stuck run": ("I1", "stuck", changed(with_story(chain(), facts=()), state=RunState.RUNNING)),
    "a wrong end": ("I1", "wrong", changed(with_story(chain(), facts=life("r", "failed")), state=RunState.FAILED)),
    "one that waits for nothing": ("I1", "stuck", waiting()),
    "a child that is stuck": ("I1", "stuck", some("errand", Story(run("c", "errand", RunState.PENDING)), accepted=[])),
    "two ends": ("I2", "other", with_story(chain(), facts=(*life("r"), fact("r", "succeeded", 2)))),
    "no fact about the end": ("I2", "other", with_story(chain(), facts=life("r")[:1])),
    "an end that changed": ("I2", "wrong", replace(chain(), sightings=[Sighting("r", "", "failed at 5: None")])),
    "a cancel that was promised": (
        "I2",
        "wrong",
        replace(chain(), accepted=[*chain().accepted, Acceptance(item="0", what="cancel", run_id="r", answer=True)]),
    ),
    "a location recorded twice": (
        "I3",
        "duplicate",
        with_story(chain(), entries=(*chain().stories["r"].entries, step("link", "7.1", 3))),
    ),
    "a body executed after its record": (
        "I3",
        "duplicate",
        replace(chain(), deeds=[*chain().deeds, deed("r", "link", "7.9", at=0.5)]),
    ),
    "a result nobody gave": ("I3", "wrong", replace(chain(), deeds=chain().deeds[1:])),
    "a record that changed": (
        "I3",
        "wrong",
        replace(chain(), sightings=[Sighting.of_entry("r", step("link", "7.5", 1))]),
    ),
    "a turn that saw something else": (
        "I4",
        "wrong",
        replace(chain(), deeds=[deed("r", "link", "7.1"), deed("r", "link#2", "7.2", word="7.0")]),
    ),
    "a result of other values": ("I4", "wrong", changed(chain(), result=text(["7.1", "7.3"]))),
    "a stale write": ("I5", "stale", executed_again("link")),
    "an old token": (
        "I5",
        "stale",
        with_story(chain(), facts=(fact("r", "claimed", worker="w2", token=2), *life("r"))),
    ),
    "a message lost": ("I6", "lost", letters([["a", 0]])),
    "a message consumed twice": ("I6", "duplicate", letters([["a", 0], ["a", 0], ["a", 1]])),
    "messages in a wrong order": ("I6", "duplicate", letters([["a", 1], ["a", 0]])),
    "one message received twice": ("I6", "duplicate", received_twice()),
    "an event of a queue taken twice": ("I6", "duplicate", takers(0, 0)),
    "twins": ("I10", "duplicate", parent("@1/errand#1", "@1/errand#1", "@1/errand#2")),
    "a child that was not started": ("I10", "wrong", parent("@1/errand#1")),
    "more repetitions than attempts": ("I12", "other", cancelled_retry(2)),
    "an early timer": ("I7", "wrong", awake(-0.01)),
    "an early retry": ("I7", "wrong", tried(4.9)),
    "an early slot": ("I7", "other", ticks(1, 2, created=1.5)),
    "a wait after the end": ("I8", "other", with_story(chain(), waits=(MESSAGE,))),
    "a slot after the end": ("I8", "other", changed(chain(), slots=("type:limited",))),
    "an orphan that was seen": ("I8", "other", replace(chain(), remarks=[Remark("I8", "an orphan")])),
    "too many at once": ("I9", "other", at_once("limited", load.CONCURRENCY["limited"] + 1)),
    "too many of a tenant": ("I9", "other", at_once("keyed", 2, tags={"tenant": "x"})),
    "too many in a while": ("I9", "other", at_once("rated", load.RATES["rated"][0] + 1)),
    "a deposit made twice": ("I10", "duplicate", deposits(0, 1, 1)),
    "a deposit lost": ("I10", "lost", deposits(0)),
    "a total that is wrong": ("I10", "wrong", deposits(0, 1, total=3)),
    "a deposit by idempotency key made twice": ("I10", "duplicate", deposits(0, 1, 1, type="clerks")),
    "a slot without a run": ("I10", "lost", ticks(1)),
    "two runs of a slot": ("I10", "duplicate", ticks(1, 2, 2)),
    "a body repeated for nothing": (
        "I10",
        "duplicate",
        replace(chain(), deeds=[deed("r", "link", "7.0"), *chain().deeds]),
    ),
    "a run taken from one who lives": ("I10", "other", lost()),
    "a stage not undone": ("I10", "wrong", trip("stage#2")),
    "stages undone in a wrong order": ("I10", "wrong", trip("stage", "stage#2")),
    "too many attempts": (
        "I11",
        "other",
        with_story(chain(), entries=(step("link", "7.1", 1, attempts=31), step("link#2", "7.2", 2))),
    ),
    "an attempt without a cause": ("I12", "other", changed(chain(), attempt=2)),
    "an end that is not the last": ("I12", "other", with_story(chain(), facts=(*life("r"), fact("r", "woken", 2)))),
    "a worker that complains": ("processes", "other", replace(chain(), remarks=[Remark("processes", "Traceback")])),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_found(name: str) -> None:
    invariant, kind, evidence = PLANTED[name]

    found = {check.invariant: [violation.kind for violation in check.violations] for check in check_all(evidence)}

    assert kind in found[invariant]


def test_two_runs_of_one_key_are_found() -> None:
    evidence = some("watch", *(Story(run(id, "watch", key="k"), (), (), life(id)) for id in "xy"))

    (check,) = [check for check in check_all(evidence) if check.invariant == "I10"]

    assert [violation.kind for violation in check.violations] == ["duplicate"]


def test_every_invariant_has_a_planted_defect() -> None:
    assert {invariant for invariant, _, _ in PLANTED.values()} == {check.invariant for check in check_all(chain())}


def test_a_takeover_that_took_too_long_fails_the_verdict() -> None:
    in_time, late = lost(killed_at=LATER - 1.5), lost(killed_at=LATER - 2.5)

    assert judge(in_time, "sqlite", "s", is_timed=True).is_good
    assert not judge(late, "sqlite", "s", is_timed=True).is_good
    assert judge(late, "sqlite", "s").is_good
    assert judge(late, "sqlite", "s").figures.takeover_most == pytest.approx(2.5)


def test_a_verdict_names_the_violation_and_its_run() -> None:
    verdict = judge(PLANTED["a lost run"][2], "sqlite", "s")

    lines = list(verdict.lines())

    assert verdict.figures.lost == 1
    assert "I1: r job 0-r (chain) was accepted, and is gone" in lines
    assert lines[-1] == "NOT ALL HOLDS: sqlite, seed s"
