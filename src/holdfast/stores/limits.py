"""Limits: who gets a slot, who waits for one, and to whom it goes on. The same for every store.

A store gives a `Book` to look things up and write them down in. All that concerns one type is decided by one
transaction at a time, and whatever makes a slot free hands it on in the same transaction: so nobody waits for whom
there is a slot of each kind. Only those of a rate become free by themselves, so the first who waits for one is ready at
that instant, and whoever claims then sees to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from holdfast.core import audit, limits, rules
from holdfast.core.claim_order import counted, next_rank, place_of, rank_of
from holdfast.core.clock import Micros
from holdfast.core.limits import Window
from holdfast.core.model import AuditFact, Run, TypeRule, Wait
from holdfast.core.ports import Finding


class Book(Protocol):
    """Who has slots and who waits for them, as a store keeps it. Runs come with their tags."""

    def rule(self, type: str) -> TypeRule | None:
        """What was said of a type; nothing if it has no limits."""
        ...

    def window(self, type: str) -> Window: ...

    def keep_window(self, type: str, window: Window) -> None: ...

    def taken(self, slot: str) -> int:
        """How many have a slot of this name."""
        ...

    def counted(self, type: str) -> Sequence[Run]:
        """The runs of a type that are held, or have slots."""
        ...

    def key_queues(self, type: str) -> Sequence[str]:
        """The queues for slots of a type's keys in which somebody waits."""
        ...

    def let_all_go(self, type: str, now: Micros) -> None:
        """Make ready whoever waits because of limits that a type has no more, as `limits.let_go` says."""
        ...

    def first(self, queue: str) -> Run | None:
        """The run that waits in a queue and comes before the others: by priority, rank, since when, and id."""
        ...

    def heads(self, queue: str) -> Sequence[Run]:
        """The first run of each rank, of those that wait in a queue and have the lowest priority there."""
        ...

    def run(self, run_id: str) -> Run:
        """A run as it is now."""
        ...

    def waits(self, run_id: str) -> Sequence[Wait]: ...

    def put(self, run: Run) -> None:
        """Give a run its next value. Who has slots follows from it."""
        ...

    def wait(self, run_id: str, waits: Sequence[Wait]) -> None:
        """Replace what a run waits for."""
        ...

    def note(self, fact: AuditFact) -> None: ...

    def tell_ready(self, type: str) -> None:
        """Say that a run of a type may be claimed."""
        ...


def admit(book: Book, run: Run, now: Micros) -> Run | None:
    """A run that is due, as it is when it may be claimed; if not it is parked, and the answer is None."""
    rule = book.rule(run.type)
    if rule is None or run.is_held:
        return run
    if run.slots or not limits.slots_of(rule, run):
        return _begun(book, rule, run, now)
    queue = _lacking(book, rule, run, now) or _overtakes(book, rule, run, now)
    given = _given(book, rule, run) if queue is None else _parked(book, rule, run, queue, now)
    return None if given is None else _begun(book, rule, given, now)


def leave(book: Book, run: Run, now: Micros, *, has_waited: bool) -> None:
    """A run needs no slots any more, or has waited for some until now and does so no longer."""
    if not (run.slots or has_waited) or (rule := book.rule(run.type)) is None:
        return
    slots = run.slots
    if has_waited:
        # Others may wait for a slot of its key because it was in front of them.
        slots = tuple(limits.slots_of(rule, book.run(run.id)))
        book.wait(run.id, limits.without(book.waits(run.id)))
    if run.slots:
        book.put(replace(run, slots=()))
    _serve(book, rule, {*slots, *_shared(rule)}, now)


def apply(book: Book, rule: TypeRule, now: Micros) -> None:
    """Have the limits of a type be those of a rule. Whoever is held counts, even if there are too many then."""
    runs = sorted(book.counted(rule.name), key=lambda run: (not run.is_held, place_of(run)))
    for run in runs:
        book.put(replace(run, slots=_lasting(rule, run) if run.is_held else ()))
    for run in (book.run(run.id) for run in runs if not run.is_held and rules.is_due(run, now)):
        if (queue := _lacking(book, rule, run, now)) is None:
            _given(book, rule, run)
        else:
            _queue(book, run, queue, now)
            book.note(audit.of_parking(run, queue, now))
    if rule.is_limited:
        for queue in book.key_queues(rule.name):
            _drain(book, rule, queue, now)
        _serve(book, rule, _shared(rule), now)
    else:
        book.let_all_go(rule.name, now)
        book.tell_ready(rule.name)
    if rule.rate is None:
        book.keep_window(rule.name, replace(book.window(rule.name), blocks=()))


# Having


def _lacking(book: Book, rule: TypeRule, run: Run, now: Micros) -> str | None:
    """Where a run has to wait, because there is no slot for it; None if there is one of each kind that it needs."""
    return next(_all_lacking(book, rule, run, now), None)


def _all_lacking(book: Book, rule: TypeRule, run: Run, now: Micros) -> Iterator[str]:
    """The queues for all that a run lacks: of its keys first, then of what all share."""
    for slot, count in limits.slots_of(rule, run).items():
        taken = book.taken(slot)
        if rule.rate is not None and slot == limits.rate_slot(rule.name):
            taken += limits.begun(book.window(rule.name), rule.rate, now)
        if taken >= count:
            yield limits.queue_for(rule, run, slot)


def _overtakes(book: Book, rule: TypeRule, run: Run, now: Micros) -> str | None:
    """The queue of a rate, if it is the turn of another run there; time may have made slots free for both."""
    if rule.rate is None or not limits.is_new(run):
        return None
    queue = limits.rate_slot(rule.name)
    waiting = book.heads(queue)
    if not waiting:
        return None
    turn = _turn(book, rule, [*((queue, one) for one in waiting if one.id != run.id), (queue, run)], now)
    if turn.run.id != run.id:
        return queue
    turn.count(book, rule)
    return None


def _given(book: Book, rule: TypeRule, run: Run) -> Run:
    """Give a run every slot it needs. It waits for none any more."""
    given = replace(run, slots=tuple(limits.slots_of(rule, run)))
    book.wait(run.id, limits.without(book.waits(run.id)))
    book.put(given)
    return given


def _begun(book: Book, rule: TypeRule, run: Run, now: Micros) -> Run:
    """A run is claimed: what it had of a rate is used up, and counts from this instant on."""
    slot = limits.rate_slot(rule.name)
    if rule.rate is None or slot not in run.slots:
        return run
    book.keep_window(rule.name, limits.with_one_more(book.window(rule.name), rule.rate, now))
    begun = replace(run, slots=_lasting(rule, run))
    book.put(begun)
    if book.first(slot) is not None:
        _serve(book, rule, _shared(rule), now)
    return begun


def _lasting(rule: TypeRule, run: Run) -> tuple[str, ...]:
    """The slots that a run keeps while it is held."""
    return tuple(slot for slot in limits.slots_of(rule, run) if slot != limits.rate_slot(rule.name))


# Waiting


def _parked(book: Book, rule: TypeRule, run: Run, queue: str, now: Micros) -> Run | None:
    """Have a run wait. Of those who wait for a rate some may go by now; the run, if it is one of them."""
    was_parked = limits.parked_at(book.waits(run.id)) is not None
    _queue(book, run, queue, now)
    if rule.rate is not None and limits.is_new(run):
        _serve(book, rule, {*_left_behind(rule, run, queue), *_shared(rule)}, now)
        if (served := book.run(run.id)).slots:
            return served
    if not was_parked:
        book.note(audit.of_parking(run, queue, now))
    return None


def _queue(book: Book, run: Run, queue: str, now: Micros) -> None:
    """Have a run wait in a queue, in the place it has."""
    _, since, _ = _place(book, run, now)
    waits = limits.without(book.waits(run.id))
    book.wait(run.id, (*waits, limits.parking(run, queue, since)))
    if run.ready_at is not None:
        book.put(replace(run, ready_at=None, updated_at=now))


def _place(book: Book, run: Run, now: Micros) -> tuple[int, Micros, str]:
    """The place of a run among those who wait, or the one it would have."""
    known = limits.parked_at(book.waits(run.id))
    since = known.since if known is not None else min(now, run.ready_at or now)
    return limits.level_of(run), since, run.id


class _Turn(NamedTuple):
    """The run whose turn it is among those who wait, where it waits and since when; and whether ranks compete."""

    queue: str
    run: Run
    since: Micros
    is_contested: bool

    def count(self, book: Book, rule: TypeRule) -> None:
        """Remember that a run of this rank had its turn, if others would have had it otherwise."""
        if self.is_contested:
            window = book.window(rule.name)
            shares = counted(window.shares, rank_of(self.run))
            if shares != window.shares:
                book.keep_window(rule.name, replace(window, shares=shares))


def _turn(book: Book, rule: TypeRule, waiting: Sequence[tuple[str, Run]], now: Micros) -> _Turn:
    """Whose turn it is: by priority, then by rank with the shares of each, then by since when and id."""
    priority = min(run.priority for _, run in waiting)
    first: dict[int, tuple[tuple[int, Micros, str], str, Run]] = {}
    for queue, run in waiting:
        if run.priority == priority:
            one = _place(book, run, now), queue, run
            rank = rank_of(run)
            if rank not in first or one[0] < first[rank][0]:
                first[rank] = one
    is_contested = len(first) > 1
    rank = next_rank(book.window(rule.name).shares, first) if is_contested else next(iter(first))
    (_, since, _), queue, run = first[rank]
    return _Turn(queue, run, since, is_contested)


# Handing on


def _shared(rule: TypeRule) -> list[str]:
    """The queues for what all runs of a type share."""
    return [limits.type_slot(rule.name), limits.rate_slot(rule.name)]


def _left_behind(rule: TypeRule, run: Run, queue: str) -> list[str]:
    """The queues of keys in which others may wait because of a run that is now in another one, and holds up nobody."""
    shared = _shared(rule)
    return [] if queue in shared else [slot for slot in limits.slots_of(rule, run) if slot not in (queue, *shared)]


def _serve(book: Book, rule: TypeRule, queues: Iterable[str], now: Micros) -> None:
    """Let those go who wait in some queues, in their order, for as long as there are slots for them.

    Where a slot of a key is free and there is none of what all share, only the first who waits for that key goes on to
    wait for the others. Those behind it stay: as many have the key, or stand in a queue of all, as there are slots of
    it. So none of them is forgotten, and they do not all go from queue to queue each time.
    """
    open = list(queues)
    shared = _shared(rule)
    while open:
        waiting = [(queue, run) for queue in open for run in book.heads(queue)]
        if not waiting:
            break
        turn = _turn(book, rule, waiting, now)
        queue, run = turn.queue, turn.run
        lacking = list(_all_lacking(book, rule, run, now))
        if not lacking:
            turn.count(book, rule)
            given = _given(book, rule, run)
            book.put(limits.let_go(given, turn.since, now))
            book.tell_ready(run.type)
        elif queue in lacking:
            open.remove(queue)
        else:
            _queue(book, run, lacking[0], now)
            if queue in shared:
                open += [left for left in _left_behind(rule, run, lacking[0]) if left not in open]
            elif lacking[0] in shared:
                open.remove(queue)
    if rule.rate is not None:
        _set_timer(book, rule, now)


def _drain(book: Book, rule: TypeRule, queue: str, now: Micros) -> None:
    """Let as many go on from the queue of a key as there are slots of it; all of them, if it is limited no more."""
    gone = 0
    while (first := book.first(queue)) is not None:
        count = limits.slots_of(rule, first).get(queue)
        if count is not None and book.taken(queue) + gone >= count:
            break
        _serve(book, rule, [queue], now)
        gone += 1


def _set_timer(book: Book, rule: TypeRule, now: Micros) -> None:
    """Have the run whose turn it is to wait for a rate be looked at as soon as there may be a slot for it."""
    slot = limits.rate_slot(rule.name)
    if rule.rate is None or not (waiting := book.heads(slot)):
        return
    first = _turn(book, rule, [(slot, run) for run in waiting], now).run
    at = limits.next_at(book.window(rule.name), rule.rate, book.taken(slot), now)
    if rule.concurrency is not None and book.taken(limits.type_slot(rule.name)) >= rule.concurrency:
        at = None  # whoever gives one back sees to it
    if first.ready_at != at:
        book.put(replace(first, ready_at=at))
        if at is not None:
            book.tell_ready(rule.name)  # whoever sleeps until the next is ready must not sleep longer than that


# Checking


def finding_of(stray: int) -> Finding:
    """What a check-up says when so many slots are taken by nobody who could go on, or had without being taken."""
    if stray:
        return Finding.problem(
            "slots",
            f"{stray:,} slots do not agree with the runs that have them; this is a bug of holdfast, please report it",
        )
    return Finding.ok("slots", "whoever has a slot of a limit is a run that has it")
