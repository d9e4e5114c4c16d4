"""Limits: give slots to runs, park the runs that find none, and pass on slots that become free.

One transaction at a time decides for a type, and a transaction that frees a slot passes it on itself. So no run waits
while there is a slot of each kind for it. Slots of a rate become free as time passes, without a transaction. So the
first run that waits for one is ready at that instant, and the claim that finds it serves the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.core import audit, limits, rules
from holdfast.core.claim_order import counted, next_rank, place_of, rank_of
from holdfast.core.clock import Micros
from holdfast.core.model import Run, TypeRule
from holdfast.core.ports import Finding
from holdfast.stores.operations.unit_of_work import UnitOfWork


def admit(unit: UnitOfWork, run: Run, now: Micros) -> Run | None:
    """Give a due run the slots it needs. If one is missing, park the run and return None."""
    rule = unit.limits.rule(run.type)
    if rule is None or run.is_held:
        return run
    if run.slots or not limits.slots_of(rule, run):
        return _begun(unit, rule, run, now)
    queue = _lacking(unit, rule, run, now) or _overtakes(unit, rule, run, now)
    given = _given(unit, rule, run) if queue is None else _parked(unit, rule, run, queue, now)
    return None if given is None else _begun(unit, rule, given, now)


def leave(unit: UnitOfWork, run: Run, now: Micros, *, has_waited: bool) -> None:
    """Free the slots of a run that no longer needs them, or remove the run from the queue in which it has waited."""
    if not (run.slots or has_waited) or (rule := unit.limits.rule(run.type)) is None:
        return
    slots = run.slots
    if has_waited:
        # Runs may wait for a slot of its key only because this run was ahead of them.
        slots = tuple(limits.slots_of(rule, unit.limits.tagged(run.id)))
        unit.waits.put(run.id, limits.without(unit.waits.of(run.id)))
    if run.slots:
        unit.limits.put(replace(run, slots=()))
    _serve(unit, rule, {*slots, *_shared(rule)}, now)


def apply(unit: UnitOfWork, rule: TypeRule, now: Micros) -> None:
    """Apply the limits of a rule to its type. Held runs take their slots even beyond the limit."""
    runs = sorted(unit.limits.counted(rule.name), key=lambda run: (not run.is_held, place_of(run)))
    for run in runs:
        unit.limits.put(replace(run, slots=_lasting(rule, run) if run.is_held else ()))
    for run in (unit.limits.tagged(run.id) for run in runs if not run.is_held and rules.is_due(run, now)):
        if (queue := _lacking(unit, rule, run, now)) is None:
            _given(unit, rule, run)
        else:
            _queue(unit, run, queue, now)
            _note_parking(unit, run, queue, now)
    if rule.is_limited:
        for queue in unit.limits.key_queues(rule.name):
            _drain(unit, rule, queue, now)
        _serve(unit, rule, _shared(rule), now)
    else:
        unit.limits.release_all(rule.name, now)
        _hint_ready(unit, rule.name)
    if rule.rate is None:
        unit.limits.keep_window(rule.name, replace(unit.limits.window(rule.name), blocks=()))


# Taking slots


def _lacking(unit: UnitOfWork, rule: TypeRule, run: Run, now: Micros) -> str | None:
    """Return the queue in which a run has to wait, or None if there is a slot of each kind that it needs."""
    return next(_all_lacking(unit, rule, run, now), None)


def _all_lacking(unit: UnitOfWork, rule: TypeRule, run: Run, now: Micros) -> Iterator[str]:
    """Yield the queues of all slots that a run lacks: first those of its keys, then those that its type shares."""
    for slot, count in limits.slots_of(rule, run).items():
        taken = unit.limits.taken(slot)
        if rule.rate is not None and slot == limits.rate_slot(rule.name):
            taken += limits.begun(unit.limits.window(rule.name), rule.rate, now)
        if taken >= count:
            yield limits.queue_for(rule, run, slot)


def _overtakes(unit: UnitOfWork, rule: TypeRule, run: Run, now: Micros) -> str | None:
    """Return the queue of the rate if it is the turn of a run that waits there, else None.

    Time may have freed a slot that the waiting runs have not been given yet. A new run must not take it before them.
    """
    if rule.rate is None or not limits.is_new(run):
        return None
    queue = limits.rate_slot(rule.name)
    waiting = heads(unit, queue)
    if not waiting:
        return None
    turn = _turn(unit, rule, [*((queue, one) for one in waiting if one.id != run.id), (queue, run)], now)
    if turn.run.id != run.id:
        return queue
    turn.remember(unit, rule)
    return None


def _given(unit: UnitOfWork, rule: TypeRule, run: Run) -> Run:
    """Give a run every slot it needs, and end its wait for one."""
    given = replace(run, slots=tuple(limits.slots_of(rule, run)))
    unit.waits.put(run.id, limits.without(unit.waits.of(run.id)))
    unit.limits.put(given)
    return given


def _begun(unit: UnitOfWork, rule: TypeRule, run: Run, now: Micros) -> Run:
    """Use up the rate slot of a run that is being claimed. The run counts against the rate from now on."""
    slot = limits.rate_slot(rule.name)
    if rule.rate is None or slot not in run.slots:
        return run
    unit.limits.keep_window(rule.name, limits.with_one_more(unit.limits.window(rule.name), rule.rate, now))
    begun = replace(run, slots=_lasting(rule, run))
    unit.limits.put(begun)
    if _first(unit, slot) is not None:
        _serve(unit, rule, _shared(rule), now)
    return begun


def _lasting(rule: TypeRule, run: Run) -> tuple[str, ...]:
    """Return the slots that a run keeps while it is held: all but that of the rate."""
    return tuple(slot for slot in limits.slots_of(rule, run) if slot != limits.rate_slot(rule.name))


# Waiting for slots


def _parked(unit: UnitOfWork, rule: TypeRule, run: Run, queue: str, now: Micros) -> Run | None:
    """Park a run, and serve the queue of its rate, where time may have freed slots. Return the run if it got one."""
    was_parked = limits.parked_at(unit.waits.of(run.id)) is not None
    _queue(unit, run, queue, now)
    if rule.rate is not None and limits.is_new(run):
        _serve(unit, rule, {*_left_behind(rule, run, queue), *_shared(rule)}, now)
        if (served := unit.limits.tagged(run.id)).slots:
            return served
    if not was_parked:
        _note_parking(unit, run, queue, now)
    return None


def _queue(unit: UnitOfWork, run: Run, queue: str, now: Micros) -> None:
    """Put a run into a queue. A run that comes from another queue keeps its waiting time."""
    _, since, _ = _place(unit, run, now)
    waits = limits.without(unit.waits.of(run.id))
    unit.waits.put(run.id, (*waits, limits.parking(run, queue, since)))
    if run.ready_at is not None:
        unit.limits.put(replace(run, ready_at=None, updated_at=now))


def _place(unit: UnitOfWork, run: Run, now: Micros) -> tuple[int, Micros, str]:
    """Return the place that a run has, or would have, in a queue: level, start of the wait, and id."""
    known = limits.parked_at(unit.waits.of(run.id))
    since = known.since if known is not None else min(now, run.ready_at or now)
    return limits.level_of(run), since, run.id


class _Turn(NamedTuple):
    """The waiting run whose turn it is. `is_contested` is True if runs of several ranks wait."""

    queue: str
    run: Run
    since: Micros
    is_contested: bool

    def remember(self, unit: UnitOfWork, rule: TypeRule) -> None:
        """Count this turn in the shares of the ranks, if runs of several ranks wait."""
        if self.is_contested:
            window = unit.limits.window(rule.name)
            shares = counted(window.shares, rank_of(self.run))
            if shares != window.shares:
                unit.limits.keep_window(rule.name, replace(window, shares=shares))


def _turn(unit: UnitOfWork, rule: TypeRule, waiting: Sequence[tuple[str, Run]], now: Micros) -> _Turn:
    """Choose a run by priority, then by rank (the shares keep every rank moving), then by waiting time and id."""
    priority = min(run.priority for _, run in waiting)
    first: dict[int, tuple[tuple[int, Micros, str], str, Run]] = {}
    for queue, run in waiting:
        if run.priority == priority:
            one = _place(unit, run, now), queue, run
            rank = rank_of(run)
            if rank not in first or one[0] < first[rank][0]:
                first[rank] = one
    is_contested = len(first) > 1
    rank = next_rank(unit.limits.window(rule.name).shares, first) if is_contested else next(iter(first))
    (_, since, _), queue, run = first[rank]
    return _Turn(queue, run, since, is_contested)


# Reading queues and giving hints


def _first(unit: UnitOfWork, queue: str) -> Run | None:
    """Return the first run in a queue, by priority, rank, waiting time and id."""
    run_id = unit.waits.first(queue, rules.LIMIT_LOCATION)
    return None if run_id is None else unit.limits.tagged(run_id)


def heads(unit: UnitOfWork, queue: str) -> list[Run]:
    """Return the first run of each rank in a queue, among the runs with the lowest priority number."""
    first = _first(unit, queue)
    if first is None:
        return []
    beside = (unit.waits.first_at(queue, level) for level in limits.levels_beside(limits.level_of(first)))
    return [first, *(unit.limits.tagged(run_id) for run_id in beside if run_id is not None)]


def _hint_ready(unit: UnitOfWork, type: str) -> None:
    """Give the hint that a run of a type may be claimed."""
    unit.limits.released += 1
    unit.news.ready.add(type)


def _note_parking(unit: UnitOfWork, run: Run, queue: str, now: Micros) -> None:
    unit.audit.note_often(audit.of_parking(run, queue, now), run.token or 1)


# Passing slots on


def _shared(rule: TypeRule) -> list[str]:
    """Return the queues of the slots that all runs of a type share: its concurrency and its rate."""
    return [limits.type_slot(rule.name), limits.rate_slot(rule.name)]


def _left_behind(rule: TypeRule, run: Run, queue: str) -> list[str]:
    """Return the key queues in which other runs may wait because of a run that has just moved to another queue."""
    shared = _shared(rule)
    return [] if queue in shared else [slot for slot in limits.slots_of(rule, run) if slot not in (queue, *shared)]


def _serve(unit: UnitOfWork, rule: TypeRule, queues: Iterable[str], now: Micros) -> None:
    """Give slots to the runs in some queues, in order, as long as there are slots.

    If a slot of a key is free but no shared slot is, only the first run that waits for that key moves to the shared
    queue. The runs behind it stay, because the runs that have the key or wait in a shared queue use up all its slots.
    So no run is forgotten, and the runs do not all move from queue to queue each time.
    """
    open = list(queues)
    shared = _shared(rule)
    while open:
        waiting = [(queue, run) for queue in open for run in heads(unit, queue)]
        if not waiting:
            break
        turn = _turn(unit, rule, waiting, now)
        queue, run = turn.queue, turn.run
        lacking = list(_all_lacking(unit, rule, run, now))
        if not lacking:
            turn.remember(unit, rule)
            given = _given(unit, rule, run)
            unit.limits.put(limits.release(given, turn.since, now))
            _hint_ready(unit, run.type)
        elif queue in lacking:
            open.remove(queue)
        else:
            _queue(unit, run, lacking[0], now)
            if queue in shared:
                open += [left for left in _left_behind(rule, run, lacking[0]) if left not in open]
            elif lacking[0] in shared:
                open.remove(queue)
    if rule.rate is not None:
        _set_timer(unit, rule, now)


def _drain(unit: UnitOfWork, rule: TypeRule, queue: str, now: Micros) -> None:
    """Serve as many runs in the queue of a key as it has slots, or all of them if the key has no limit now."""
    gone = 0
    while (first := _first(unit, queue)) is not None:
        count = limits.slots_of(rule, first).get(queue)
        if count is not None and unit.limits.taken(queue) + gone >= count:
            break
        _serve(unit, rule, [queue], now)
        gone += 1


def _set_timer(unit: UnitOfWork, rule: TypeRule, now: Micros) -> None:
    """Make the next run in the queue of a rate ready at the instant when a slot may be free for it."""
    slot = limits.rate_slot(rule.name)
    if rule.rate is None or not (waiting := heads(unit, slot)):
        return
    first = _turn(unit, rule, [(slot, run) for run in waiting], now).run
    at = limits.next_at(unit.limits.window(rule.name), rule.rate, unit.limits.taken(slot), now)
    if rule.concurrency is not None and unit.limits.taken(limits.type_slot(rule.name)) >= rule.concurrency:
        at = None  # the run that frees a slot of the type serves this queue
    if first.ready_at != at:
        unit.limits.put(replace(first, ready_at=at))
        if at is not None:
            _hint_ready(unit, rule.name)  # wakes workers that would sleep past this instant


# Checking


def finding_of(stray: int) -> Finding:
    """Return the finding of a self-check that counted `stray` slots without a matching run."""
    if stray:
        return Finding.problem(
            "slots",
            f"{stray:,} slots do not agree with the runs that have them; this is a bug in holdfast, please report it",
        )
    return Finding.ok("slots", "all slots agree with the runs that have them")
