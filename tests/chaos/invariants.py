"""The invariants I1 to I12: each is a function of the evidence that counts its checks and lists its violations.

They are independent of stores and processes, so a planted defect can show that each of them detects something.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from typing import Literal

import msgspec

from holdfast.core.clock import SECOND, instant
from holdfast.core.entries import UNDO_PREFIX
from holdfast.core.model import EntryKind, EntryState
from holdfast.core.schedules import SLOT_TAG
from holdfast.core.states import RunState
from tests.chaos import load
from tests.chaos.evidence import Evidence, Sighting, Story
from tests.process.app import STUBBORN

Kind = Literal["lost", "wrong", "stuck", "stale", "duplicate", "other"]
ENDS = {state.value for state in RunState if state.is_end}


class Violation(msgspec.Struct, frozen=True):
    """One violation."""

    text: str
    run_id: str = ""
    kind: Kind = "other"


class Check(msgspec.Struct, frozen=True):
    """The result of an invariant: the number of checks, and the violations."""

    invariant: str
    what: str
    count: int
    violations: list[Violation]


Findings = Iterator[Violation | None]
"""One item for each check: a violation, or None if the check holds."""


def check_all(evidence: Evidence) -> list[Check]:
    """Check every invariant, in order."""
    checks = []
    for invariant, (what, function) in INVARIANTS.items():
        found = list(function(evidence))
        remarks = [Violation(one.text) for one in evidence.remarks if one.invariant == invariant]
        violations = [*(one for one in found if one is not None), *remarks]
        checks.append(Check(invariant, what, len(found) + len(remarks), violations))
    return checks


def _i1(evidence: Evidence) -> Findings:
    """Every accepted run ended or provably waits."""
    for start in evidence.starts:
        story = evidence.stories.get(start.run_id)
        if story is None:
            yield Violation(f"job {start.item} ({start.kind}) was accepted, and is gone", start.run_id, "lost")
        elif start.expect is None or story.run.state.value in start.expect.states:
            yield _unless_it_waits(story)
        elif story.run.state.is_end:
            expected = " or ".join(start.expect.states)
            yield Violation(f"{start.kind} is {story.run.state.value}, not {expected}", start.run_id, "wrong")
        else:
            yield Violation(f"{start.kind} is still {story.run.state.value}", start.run_id, "stuck")
    known = {start.run_id for start in evidence.starts}
    for run_id, story in evidence.stories.items():
        if run_id not in known and not story.run.state.is_end:
            yield Violation(f"{story.run.type} is still {story.run.state.value}", run_id, "stuck")


def _unless_it_waits(story: Story) -> Violation | None:
    """Check a live run: it must wait for a message, have no holder and not be ready."""
    if story.run.state.is_end or (story.waits and not story.run.is_held and story.run.ready_at is None):
        return None
    return Violation(f"{story.run.type} lives on, and waits for nothing", story.run.id, "stuck")


def _i2(evidence: Evidence) -> Findings:
    """One terminal record, which never changes. Of a cancel and an end one wins, and the canceller knows which."""
    for story in evidence.stories.values():
        ends = [fact.event for fact in story.facts if fact.event in ENDS]
        wanted = [story.run.state.value] if story.run.state.is_end else []
        yield None if ends == wanted else Violation(f"its ends: {ends}; it is {story.run.state.value}", story.run.id)
    yield from _unchanged(evidence, of_ends=True)
    for order in evidence.accepted:
        if order.what == "cancel" and order.answer and (cancelled := evidence.stories.get(order.run_id)) is not None:
            is_so = cancelled.run.state is RunState.CANCELLED
            said = f"it is {cancelled.run.state.value}, though a cancel was answered with True"
            yield None if is_so else Violation(said, order.run_id, "wrong")


def _unchanged(evidence: Evidence, *, of_ends: bool) -> Findings:
    """Check that earlier observations still hold."""
    for seen in evidence.sightings:
        if (seen.location == "") != of_ends:
            continue
        story = evidence.stories.get(seen.run_id)
        if story is None:
            yield Violation("it was seen, and is gone", seen.run_id, "lost")
            continue
        if of_ends:
            later = [Sighting.of_end(story.run)]
        else:
            later = [Sighting.of_entry(seen.run_id, one) for one in story.entries if one.location == seen.location]
        finding = f"{seen.location or 'its end'} was seen as {seen.value!r}, and is {[one.value for one in later]}"
        yield None if later == [seen] else Violation(finding, seen.run_id, "wrong")


def _i3(evidence: Evidence) -> Findings:
    """One result per location, immutable, and the body never executed after it."""
    for story in evidence.stories.values():
        settled = [entry for entry in story.entries if entry.is_settled]
        for what in ("location", "position"):
            twice = [value for value, count in Counter(getattr(e, what) for e in settled).items() if count > 1]
            yield None if not twice else Violation(f"recorded twice at {what} {twice}", story.run.id, "duplicate")
        for location, mark in story.marks.items():
            deeds = evidence.executions.get((story.run.id, location), [])
            if mark not in {deed.mark for deed in deeds}:
                yield Violation(f"{location} has the result {mark}, which no body gave", story.run.id, "wrong")
                continue
            # In the order of tokens: a frozen worker may start a body after it has lost its lease unnoticed.
            last = max(deeds, key=lambda deed: (evidence.token_of(deed), deed.at))
            is_again = last.mark != mark and last.mark.split(".")[0] == mark.split(".")[0]
            finding = f"{location} was executed again ({last.mark}) after its record ({mark})"
            yield Violation(finding, story.run.id, "duplicate") if is_again else None
    yield from _unchanged(evidence, of_ends=False)


def _i4(evidence: Evidence) -> Findings:
    """Every turn saw exactly the recorded values."""
    for (run_id, location), deeds in evidence.executions.items():
        story = evidence.stories.get(run_id)
        before = _received_by(story, location) if story is not None else None
        if story is None or before is None:
            continue
        for deed in deeds:
            expected = story.marks.get(before, "-") if before else "-"
            finding = f"{location} received {deed.word} by worker {deed.pid}, and {before} is recorded as {expected}"
            yield None if deed.word == expected else Violation(finding, run_id, "wrong")
    for start in evidence.starts:
        story = evidence.stories.get(start.run_id)
        if story is not None and story.run.state is RunState.SUCCEEDED:
            yield from _seen_in_result(story, start.expect.result if start.expect else None)


def _received_by(story: Story, location: str) -> str | None:
    """The location whose result a body receives: the previous link in a chain (none: ""), or the undone step."""
    if location.startswith(UNDO_PREFIX):
        return location.removeprefix(UNDO_PREFIX)
    if story.run.type != "chain":
        return None
    number = int(location.partition("#")[2] or 1)
    return "" if number == 1 else "link" if number == 2 else f"link#{number - 1}"


def _seen_in_result(story: Story, result: object) -> Findings:
    if story.run.type == "chain":
        result = list(story.marks.values())
    elif story.run.type == "saga":
        number = story.payload["number"]
        result = {"marks": story.marks, "words": [f"{number} 0", f"{number} 1"], "answer": 2 * number}
    if result is not None:
        finding = f"its result is {story.result!r}, not {result!r}"
        yield None if story.result == result else Violation(finding, story.run.id, "wrong")


def _i5(evidence: Evidence) -> Findings:
    """No write with an old token: tokens only grow, and each record is from the last worker that executed the step."""
    for story in evidence.stories.values():
        tokens = [int(fact.data["token"]) for fact in story.claims]
        is_growing = all(one < next_one for one, next_one in pairwise(tokens))
        is_known = not tokens or tokens[-1] <= story.run.token
        finding = f"tokens of its claims: {tokens}, its own: {story.run.token}"
        yield None if is_growing and is_known else Violation(finding, story.run.id, "stale")
        for location, mark in story.marks.items():
            deeds = evidence.executions.get((story.run.id, location), [])
            under = {deed.mark: evidence.token_of(deed) for deed in deeds}
            is_late = under.get(mark, 0) < max(under.values(), default=0)
            finding = f"{location}: {mark} is recorded, of token {under.get(mark)}; it was executed under {under}"
            yield Violation(finding, story.run.id, "stale") if is_late else None


def _i6(evidence: Evidence) -> Findings:
    """Each message consumed once, in order per name, none lost; each event of a queue taken by one run."""
    groups: dict[str, list[tuple[str, object]]] = defaultdict(list)
    payloads: dict[str, list[object]] = {}
    for start in evidence.starts:
        story = evidence.stories.get(start.run_id)
        if story is None or start.expect is None or not story.run.state.is_end:
            continue
        if start.expect.letters:
            yield from _in_order(story, start.expect.letters)
        if start.expect.one_of:
            groups[start.expect.one_of].append((story.run.id, story.result))
            payloads[start.expect.one_of] = list(start.expect.payloads)
    for topic, got in groups.items():
        finding = f"of the queue {topic} {sorted(map(str, got))} were taken, not {payloads[topic]}"
        is_so = sorted(str(result) for _, result in got) == sorted(map(str, payloads[topic]))
        yield None if is_so else Violation(finding, got[0][0], "duplicate")
    for story in evidence.stories.values():
        refs = [e.ref for e in story.entries if e.kind is EntryKind.MESSAGE and e.is_settled and e.ref is not None]
        if refs:
            twice = [ref for ref, count in Counter(refs).items() if count > 1]
            yield None if not twice else Violation(f"messages received twice: {twice}", story.run.id, "duplicate")


def _in_order(story: Story, letters: dict[str, int]) -> Findings:
    got: dict[str, list[int]] = {name: [] for name in letters}
    for name, number in story.result or ():
        got[name].append(number)
    for name, count in letters.items():
        finding = f"of {count} messages {name!r} it got {got[name]}"
        kind: Kind = "lost" if len(set(got[name])) < count else "duplicate"
        yield None if got[name] == list(range(count)) else Violation(finding, story.run.id, kind)


def _i7(evidence: Evidence) -> Findings:
    """No timer before its time."""
    for (run_id, location), deeds in evidence.executions.items():
        if location.startswith("awake"):
            for deed in deeds:
                finding = f"{location} began {float(deed.word) - deed.at:.6f} s too early"
                yield None if deed.at >= float(deed.word) - 0.000_01 else Violation(finding, run_id, "wrong")
    for delay in evidence.delays:
        for deed in evidence.executions.get((delay.run_id, delay.location), []):
            is_early = deed.attempt > delay.attempts and deed.at < delay.until
            finding = f"{delay.location} was tried again {delay.until - deed.at:.6f} s too early"
            yield Violation(finding, delay.run_id, "wrong") if is_early else None
    for story in evidence.of_type("tick"):
        slot = instant(datetime.fromisoformat(story.run.tags[SLOT_TAG]))
        yield None if story.run.created_at >= slot else Violation("it was started before its slot", story.run.id)


def _i8(evidence: Evidence) -> Findings:
    """No orphan state: an ended run has nothing left."""
    for story in evidence.ended:
        left = [what for what in ("ready_at", "worker", "slots") if getattr(story.run, what)]
        left += [f"a wait for {wait.kind.value}" for wait in story.waits]
        yield None if not left else Violation(f"it has ended, and has {left}", story.run.id)
    yield from [None] * evidence.checks  # each of them searched for orphans; each finding is a remark


def _i9(evidence: Evidence) -> Findings:
    """Limits never exceeded."""
    for type, limit in load.CONCURRENCY.items():
        yield from _at_once(evidence.of_type(type), limit, type)
    for type, (tag, limit) in load.PER_KEY.items():
        for value in {story.run.tags[tag] for story in evidence.of_type(type)}:
            some = [story for story in evidence.of_type(type) if story.run.tags[tag] == value]
            yield from _at_once(some, limit, f"{type} {tag}={value}")
    for type, (count, seconds) in load.RATES.items():
        begins = sorted((s.run.first_claimed_at, s.run.id) for s in evidence.of_type(type) if s.run.first_claimed_at)
        for (first, _), (later, run_id) in zip(begins, begins[count:], strict=False):
            finding = f"{count + 1} of {type} began within {(later - first) / SECOND:.6f} s"
            yield None if later - first >= seconds * SECOND else Violation(finding, run_id)


def _at_once(stories: Iterable[Story], limit: int, what: str) -> Findings:
    """Count a run without waits from its first claim to its end."""
    changes: list[tuple[int, int, str]] = []
    for story in stories:
        ends = [fact.at for fact in story.facts if fact.event in ENDS]
        if story.claims:
            changes += [(story.claims[0].at, 1, story.run.id), *((at, -1, story.run.id) for at in ends)]
    count = 0
    for _, change, run_id in sorted(changes):
        count += change
        if change > 0:
            yield None if count <= limit else Violation(f"{count} of {what} at once, not {limit}", run_id)


def _i10(evidence: Evidence) -> Findings:
    """Effects: deposits once, keys and slots one run each, bodies repeated only if their worker was lost."""
    depositors = [*evidence.of_type("cashiers"), *evidence.of_type("clerks")]
    wanted = Counter((story.run.id, number) for story in depositors for number in range(story.payload["count"]))
    found = Counter(evidence.deposits)
    for place in {*wanted, *found}:
        finding = f"deposit {place[1]} was made {found[place]} times, not {wanted[place]}"
        kind: Kind = "lost" if found[place] < wanted[place] else "duplicate"
        yield None if found[place] == wanted[place] else Violation(finding, place[0], kind)
    finding = f"the total is {evidence.total}, and there are {sum(found.values())} deposits"
    yield None if evidence.total == sum(found.values()) else Violation(finding, "", "wrong")
    keys = Counter(story.run.key for story in evidence.stories.values() if story.run.key is not None)
    for key, count in keys.items():
        yield None if count == 1 else Violation(f"the key {key} made {count} runs", "", "duplicate")
    yield from _slots(evidence)
    yield from _children(evidence)
    yield from _repeats(evidence)
    yield from _losses(evidence)
    for story in evidence.of_type("trip"):
        yield _undone(story)


def _slots(evidence: Evidence) -> Findings:
    """Check that there is a run for each slot of the schedule."""
    schedule = evidence.schedule
    if schedule is None or schedule.last_slot is None or schedule.every is None:
        return
    found = Counter(story.run.tags[SLOT_TAG] for story in evidence.of_type("tick"))
    count = (schedule.last_slot - schedule.anchor) // schedule.every
    finding = f"{count} slots have come, and there are {len(found)} runs of different ones"
    yield None if len(found) == count else Violation(finding, "", "lost")
    for slot, times in found.items():
        yield None if times == 1 else Violation(f"the slot {slot} made {times} runs", "", "duplicate")


def _children(evidence: Evidence) -> Findings:
    """Check that a parent has one child at each location, and as many as expected in the end."""
    places = Counter((s.run.parent_id, s.run.parent_location) for s in evidence.stories.values() if s.run.parent_id)
    for (parent_id, location), count in places.items():
        finding = f"{count} children stand at {location}"
        yield None if count == 1 else Violation(finding, parent_id or "", "duplicate")
    counts = Counter(parent_id for parent_id, _ in places)
    for start in evidence.starts:
        story, expected = evidence.stories.get(start.run_id), start.expect and start.expect.children
        if story is not None and story.run.state.is_end and expected is not None:
            finding = f"it has started {counts[start.run_id]} children, not {expected}"
            yield None if counts[start.run_id] == expected else Violation(finding, start.run_id, "wrong")


def _repeats(evidence: Evidence) -> Findings:
    """Check that a body is repeated only if it failed, or if another turn had to take over."""
    for (run_id, location), deeds in evidence.executions.items():
        story = evidence.stories.get(run_id)
        if story is not None:
            allowed = len(story.claims) + evidence.failures[run_id, location]
            finding = f"{location} was executed {len(deeds)} times in {len(story.claims)} turns"
            yield None if len(deeds) <= allowed else Violation(finding, run_id, "duplicate")


def _losses(evidence: Evidence) -> Findings:
    """Check that no run is taken from a worker that is alive and connected."""
    fates = {fate.worker_id: fate for fate in evidence.fates}
    for story in evidence.stories.values():
        for fact in story.claims:
            if "lost" not in fact.data:
                continue
            at, fate = fact.at / SECOND, fates.get(str(fact.data["lost"]))
            silences = [*evidence.outages, *(fate.stopped if fate is not None else ())]
            # A worker that stops gives back what it can: not a transaction that waits for another one's lock.
            ends = [] if fate is None else [end for end in (fate.killed_at, fate.left_at) if end is not None]
            is_explained = any(end <= at for end in ends)
            is_explained |= any(begun <= at <= end + evidence.lease_seconds for begun, end in silences)
            finding = f"it was taken from {fact.data['lost']}, which was alive and well"
            yield None if is_explained else Violation(finding, story.run.id)


def _undone(story: Story) -> Violation | None:
    """Check that all finished stages are undone, in reverse order."""
    order = sorted((e for e in story.entries if e.state is EntryState.DONE), key=lambda entry: entry.position)
    done = [entry.location for entry in order if entry.has_undo]
    undone = [e.location.removeprefix(UNDO_PREFIX) for e in order if e.kind is EntryKind.UNDO]
    if undone == done[::-1]:
        return None
    return Violation(f"it did {done} and undid {undone}", story.run.id, "wrong")


def _i11(evidence: Evidence) -> Findings:
    """Attempts bounded."""
    for story in evidence.stories.values():
        most = load.HOPELESS_ATTEMPTS if story.run.type == "hopeless" else STUBBORN.max_attempts
        # A shutdown is not charged: the interrupted step is started once more.
        releases = sum(fact.event == "released" for fact in story.facts)
        for entry in story.entries:
            if entry.kind in (EntryKind.STEP, EntryKind.UNDO, EntryKind.TX):
                begun = len(evidence.executions.get((story.run.id, entry.location), []))
                finding = f"{entry.location}: {entry.attempts} attempts, {begun} executions; {most} are allowed"
                is_bounded = entry.attempts <= most and begun <= most + releases
                yield None if is_bounded else Violation(finding, story.run.id)


def _i12(evidence: Evidence) -> Findings:
    """Audit agrees with state."""
    for story in evidence.stories.values():
        lost = sum("lost" in fact.data for fact in story.claims)
        is_whole = len(story.claims) < 100  # of more, the first are no longer kept
        finding = f"it is in attempt {story.run.attempt}, and {lost} workers are said to have been lost"
        yield None if not is_whole or story.run.attempt == 1 + lost else Violation(finding, story.run.id)
        last = story.facts[-1].event if story.facts else "created"
        finding = f"it is {story.run.state.value}, and its last fact is {last!r}"
        is_so = last == story.run.state.value or (last == "dropped" and story.run.state.is_end)
        yield None if is_so or not story.run.state.is_end else Violation(finding, story.run.id)
        retried = Counter(str(f.data["location"]) for f in story.facts if f.event == "retried")
        for entry in story.entries:
            finding = f"{entry.location}: {entry.attempts} attempts, and {retried[entry.location]} were repeated"
            if retried[entry.location]:
                # A run that was cancelled between two attempts never made the next one.
                least = retried[entry.location] + (entry.state is not EntryState.RETRYING)
                yield None if entry.attempts >= least else Violation(finding, story.run.id)


def _processes(evidence: Evidence) -> Findings:
    """No process ends unless it was stopped; other errors of processes are remarks."""
    yield from [None] * len(evidence.fates)


INVARIANTS: dict[str, tuple[str, Callable[[Evidence], Findings]]] = {
    "I1": ("accepted runs ended, or provably wait", _i1),
    "I2": ("one end, which never changes", _i2),
    "I3": ("one result per location, never executed again", _i3),
    "I4": ("every turn saw the recorded values", _i4),
    "I5": ("no write with an old token", _i5),
    "I6": ("messages and events once, in order, none lost", _i6),
    "I7": ("no timer before its time", _i7),
    "I8": ("no orphan state", _i8),
    "I9": ("limits never exceeded", _i9),
    "I10": ("effects once; repeated only after a loss", _i10),
    "I11": ("attempts bounded", _i11),
    "I12": ("audit agrees with state", _i12),
    "processes": ("workers end on request, and never complain", _processes),
}
