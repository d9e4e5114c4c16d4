"""Answers to the questions of the port: each question is dispatched to its read. Nothing here writes."""

from __future__ import annotations

from typing import TypeVar, assert_never, cast

from holdfast.core.clock import Micros
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
from holdfast.stores.postgres import backlogs, flows, leases, reads, schedules, topics
from holdfast.stores.postgres.scripts import Connection, Script

A = TypeVar("A")


def stats(connection: Connection, schema: str, question: Stat[A], at: Micros | None) -> A:
    return cast("A", _stats(connection, schema, cast("AnyStat", question), at))


def _stats(connection: Connection, schema: str, question: AnyStat, at: Micros | None) -> object:
    match question:
        case CountRuns():
            return reads.counts(connection, schema)
        case CountReady():
            return backlogs.backlog(connection, schema, at)
        case CountLeases():
            return backlogs.held(connection, schema)
        case CountSlots():
            return reads.slots(connection, schema, question.type)
        case FindOrphans():
            return reads.orphans(connection, schema, question.limit)
        case _:
            assert_never(question)


def catalog(connection: Connection, schema: str, question: Listing[A], at: Micros | None) -> A:
    return cast("A", _catalog(connection, schema, cast("AnyListing", question), at))


def _catalog(connection: Connection, schema: str, question: AnyListing, at: Micros | None) -> object:
    match question:
        case ListTopics():
            return topics.list_topics(connection, schema)
        case ListTypes():
            return reads.types(connection, schema)
        case ListMessages():
            return reads.messages(connection, schema, question.run_id)
        case ListDeadLetters():
            return reads.dead_letters(connection, schema, question)
        case ListSchedules():
            return schedules.list_schedules(connection, schema, question)
        case ListDueSchedules():
            return schedules.due(connection, schema, question.limit, question.after, at)
        case ListFlows():
            return flows.list_flows(connection, schema, question)
        case _:
            assert_never(question)


def changes(connection: Connection, schema: str, question: Awaited[A], at: Micros | None) -> A:
    return cast("A", _changes(connection, schema, cast("AnyAwaited", question), at))


def few_ends(schema: str, question: Awaited[A]) -> Script[A]:
    """Answer `EndsOf` about a few runs, in one round trip."""
    ends = yield from reads.few_ends(schema, cast("EndsOf", question).run_ids)
    return cast("A", ends)


def _changes(connection: Connection, schema: str, question: AnyAwaited, at: Micros | None) -> object:
    match question:
        case EndsOf():
            return reads.ends(connection, schema, question.run_ids)
        case VerdictsOn():
            return leases.look(connection, schema, question.holdings, at)
        case RepliesTo():
            return reads.replies(connection, schema, question.messages)
        case _:
            assert_never(question)
