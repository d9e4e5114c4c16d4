"""Limits: which run gets a slot, which run waits for one, and which run gets a slot that becomes free.

One transaction at a time decides for a type, and a transaction that frees a slot hands it on itself: so no run waits
while there is a slot of each kind for it. Slots of a rate become free by themselves, as time goes by. So the first run
that waits for one is ready at that instant, and the claim that finds it serves the others.
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
    """Give a due run the slots it needs. If there are none, park it and return None."""
    rule = unit.limits.rule(run.type)
    if rule is None or run.is_held:
        return run
    if run.slots or not limits.slots_of(rule, run):
        return _begun(unit, rule, run, now)
    queue = _lacking(unit, rule, run, now) or _overtakes(unit, rule, run, now)
    given = _given(unit, rule, run) if queue is None else _parked(unit, rule, run, queue, now)
    return None if given is None else _begun(unit, rule, given, now)


def leave(unit: UnitOfWork, run: Run, now: Micros, *, has_waited: bool) -> None:
    """Take the slots of a run that needs none any more, or take it out of the queue in which it has waited."""
    if not (run.slots or has_waited) or (rule := unit.limits.rule(run.type)) is None:
        return
    slots = run.slots
    if has_waited:
        # Others may wait for a slot of its key because it was in front of them.
        slots = tuple(limits.slots_of(rule, unit.limits.tagged(run.id)))
        unit.waits.put(run.id, limits.without(unit.waits.of(run.id)))
    if run.slots:
        unit.limits.put(replace(run, slots=()))
    _serve(unit, rule, {*slots, *_shared(rule)}, now)


def apply(unit: UnitOfWork, rule: TypeRule, now: Micros) -> None:
    """Apply the limits of a rule to its type. Runs that are held count, even if they are more than the limit."""
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
        unit.limits.let_all_go(rule.name, now)
        _tell_ready(unit, rule.name)
    if rule.rate is None:
        unit.limits.keep_window(rule.name, replace(unit.limits.window(rule.name), blocks=()))


# Having


def _lacking(unit: UnitOfWork, rule: TypeRule, run: Run, now: Micros) -> str | None:
    """Where a run has to wait, because there is no slot for it; None if there is one of each kind that it needs."""
    return next(_all_lacking(unit, rule, run, now), None)


def _all_lacking(unit: UnitOfWork, rule: TypeRule, run: Run, now: Micros) -> Iterator[str]:
    """The queues for all slots that a run lacks: those of its keys first, then those that all runs of a type share."""
    for slot, count in limits.slots_of(rule, run).items():
        taken = unit.limits.taken(slot)
        if rule.rate is not None and slot == limits.rate_slot(rule.name):
            taken += limits.begun(unit.limits.window(rule.name), rule.rate, now)
        if taken >= count:
            yield limits.queue_for(rule, run, slot)


def _overtakes(unit: UnitOfWork, rule: TypeRule, run: Run, now: Micros) -> str | None:
    """The queue of a rate, if it is the turn of another run there; time may have made slots free for both."""
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
    """Give a run every slot it needs. It waits for none any more."""
    given = replace(run, slots=tuple(limits.slots_of(rule, run)))
    unit.waits.put(run.id, limits.without(unit.waits.of(run.id)))
    unit.limits.put(given)
    return given


def _begun(unit: UnitOfWork, rule: TypeRule, run: Run, now: Micros) -> Run:
    """A run is claimed: what it had of a rate is used up, and counts from this instant on."""
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
    """The slots that a run keeps while it is held."""
    return tuple(slot for slot in limits.slots_of(rule, run) if slot != limits.rate_slot(rule.name))


# Waiting


def _parked(unit: UnitOfWork, rule: TypeRule, run: Run, queue: str, now: Micros) -> Run | None:
    """Park a run, and serve the queue of its rate, where time may have freed slots. Returns the run if it got one."""
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
    """Put a run into a queue. It keeps the place it has."""
    _, since, _ = _place(unit, run, now)
    waits = limits.without(unit.waits.of(run.id))
    unit.waits.put(run.id, (*waits, limits.parking(run, queue, since)))
    if run.ready_at is not None:
        unit.limits.put(replace(run, ready_at=None, updated_at=now))


def _place(unit: UnitOfWork, run: Run, now: Micros) -> tuple[int, Micros, str]:
    """The place of a run in its queue, or the one it would have."""
    known = limits.parked_at(unit.waits.of(run.id))
    since = known.since if known is not None else min(now, run.ready_at or now)
    return limits.level_of(run), since, run.id


class _Turn(NamedTuple):
    """The waiting run whose turn it is, its queue, since when it waits, and whether runs of several ranks wait."""

    queue: str
    run: Run
    since: Micros
    is_contested: bool

    def remember(self, unit: UnitOfWork, rule: TypeRule) -> None:
        """Count the turn of this rank, if runs of other ranks wait too."""
        if self.is_contested:
            window = unit.limits.window(rule.name)
            shares = counted(window.shares, rank_of(self.run))
            if shares != window.shares:
                unit.limits.keep_window(rule.name, replace(window, shares=shares))


def _turn(unit: UnitOfWork, rule: TypeRule, waiting: Sequence[tuple[str, Run]], now: Micros) -> _Turn:
    """Choose by priority, then by rank with the shares of each, then by waiting time and id."""
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


# Looking and telling


def _first(unit: UnitOfWork, queue: str) -> Run | None:
    """The first run in a queue: by priority, rank, waiting time and id."""
    run_id = unit.waits.first(queue, rules.LIMIT_LOCATION)
    return None if run_id is None else unit.limits.tagged(run_id)


def heads(unit: UnitOfWork, queue: str) -> list[Run]:
    """The first run of each rank in a queue, of the lowest priority there."""
    first = _first(unit, queue)
    if first is None:
        return []
    beside = (unit.waits.first_at(queue, level) for level in limits.levels_beside(limits.level_of(first)))
    return [first, *(unit.limits.tagged(run_id) for run_id in beside if run_id is not None)]


def _tell_ready(unit: UnitOfWork, type: str) -> None:
    """Say that a run of a type may be claimed."""
    unit.limits.let_go += 1
    unit.news.ready.add(type)


def _note_parking(unit: UnitOfWork, run: Run, queue: str, now: Micros) -> None:
    unit.audit.note_often(audit.of_parking(run, queue, now), run.token or 1)


# Handing on


def _shared(rule: TypeRule) -> list[str]:
    """The queues for what all runs of a type share."""
    return [limits.type_slot(rule.name), limits.rate_slot(rule.name)]


def _left_behind(rule: TypeRule, run: Run, queue: str) -> list[str]:
    """The queues of keys in which other runs may wait because of a run that has just moved to another queue."""
    shared = _shared(rule)
    return [] if queue in shared else [slot for slot in limits.slots_of(rule, run) if slot not in (queue, *shared)]


def _serve(unit: UnitOfWork, rule: TypeRule, queues: Iterable[str], now: Micros) -> None:
    """Give slots to the runs in some queues, in their order, as long as there are slots.

    If a slot of a key is free and no slot that all runs share is, only the first run that waits for that key goes on to
    wait for the shared one. Those behind it stay: as many runs have the key, or stand in a shared queue, as there are
    slots of it. So none of them is forgotten, and they do not all go from queue to queue each time.
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
            unit.limits.put(limits.let_go(given, turn.since, now))
            _tell_ready(unit, run.type)
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
    """Serve as many runs in the queue of a key as it has slots; all of them, if the key has no limit any more."""
    gone = 0
    while (first := _first(unit, queue)) is not None:
        count = limits.slots_of(rule, first).get(queue)
        if count is not None and unit.limits.taken(queue) + gone >= count:
            break
        _serve(unit, rule, [queue], now)
        gone += 1


def _set_timer(unit: UnitOfWork, rule: TypeRule, now: Micros) -> None:
    """Make the next run in the queue of a rate ready at the instant at which there may be a slot for it."""
    slot = limits.rate_slot(rule.name)
    if rule.rate is None or not (waiting := heads(unit, slot)):
        return
    first = _turn(unit, rule, [(slot, run) for run in waiting], now).run
    at = limits.next_at(unit.limits.window(rule.name), rule.rate, unit.limits.taken(slot), now)
    if rule.concurrency is not None and unit.limits.taken(limits.type_slot(rule.name)) >= rule.concurrency:
        at = None  # the run that gives back a slot of the type serves this queue
    if first.ready_at != at:
        unit.limits.put(replace(first, ready_at=at))
        if at is not None:
            _tell_ready(unit, rule.name)  # a worker that sleeps until the next run is ready must not sleep longer


# Checking


def finding_of(stray: int) -> Finding:
    """The finding of a check-up that counted `stray` slots which do not agree with the runs that have them."""
    if stray:
        return Finding.problem(
            "slots",
            f"{stray:,} slots do not agree with the runs that have them; this is a bug of holdfast, please report it",
        )
    return Finding.ok("slots", "every slot that is taken belongs to a run that has it")
