"""Dispatch: map each question of the store port to the read that answers it. Nothing here writes."""

from __future__ import annotations

from typing import TypeVar, assert_never, cast

import apsw

from holdfast.core.clock import Clock, Micros
from holdfast.core.questions import (
    AnyAwaited,
    AnyListing,
    AnyStat,
    Awaited,
    CountLeases,
    CountReady,
    CountRuns,
    CountSlots,
    EndsOf,
    FindOrphans,
    ListDeadLetters,
    ListDueSchedules,
    ListFlows,
    Listing,
    ListMessages,
    ListSchedules,
    ListTopics,
    ListTypes,
    RepliesTo,
    Stat,
    VerdictsOn,
)
from holdfast.stores.operations import leases
from holdfast.stores.sqlite import backlogs, dead_letters, events, flows, inboxes, limits, reads, schedules, types
from holdfast.stores.sqlite.transaction import Transaction

A = TypeVar("A")


def stats(connection: apsw.Connection, question: Stat[A], now: Micros) -> A:
    return cast("A", _stats(connection, cast("AnyStat", question), now))


def _stats(connection: apsw.Connection, question: AnyStat, now: Micros) -> object:
    match question:
        case CountRuns():
            return reads.counts(connection)
        case CountReady():
            return backlogs.backlog(connection, now)
        case CountLeases():
            return backlogs.held(connection)
        case CountSlots():
            return limits.uses(connection, question.type)
        case FindOrphans():
            return reads.orphans(connection, question.limit)
        case _:
            assert_never(question)


def catalog(connection: apsw.Connection, question: Listing[A], now: Micros) -> A:
    return cast("A", _catalog(connection, cast("AnyListing", question), now))


def _catalog(connection: apsw.Connection, question: AnyListing, now: Micros) -> object:
    match question:
        case ListTopics():
            return events.list_topics(connection)
        case ListTypes():
            return types.list_types(connection)
        case ListMessages():
            return inboxes.list_messages(connection, question.run_id)
        case ListDeadLetters():
            return dead_letters.list_letters(connection, question)
        case ListSchedules():
            return schedules.list_schedules(connection, question)
        case ListDueSchedules():
            return schedules.due(connection, question.limit, question.after, now)
        case ListFlows():
            return flows.list_flows(connection, question)
        case _:
            assert_never(question)


def changes(connection: apsw.Connection, question: Awaited[A], clock: Clock) -> A:
    return cast("A", _changes(connection, cast("AnyAwaited", question), clock))


def _changes(connection: apsw.Connection, question: AnyAwaited, clock: Clock) -> object:
    match question:
        case EndsOf():
            return reads.ends(connection, question.run_ids)
        case VerdictsOn():
            return leases.look(Transaction(connection, clock), question.holdings, clock.now())
        case RepliesTo():
            return reads.replies(connection, question.messages)
        case _:
            assert_never(question)
