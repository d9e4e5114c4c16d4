"""Answers to the questions of the port: each question is dispatched to its read. Nothing here writes."""

from __future__ import annotations

from typing import TypeVar, assert_never, cast

from holdfast.core import questions
from holdfast.core.clock import Micros
from holdfast.stores.postgres import flows, leases, reads, schedules, topics
from holdfast.stores.postgres.scripts import Connection, Script

A = TypeVar("A")


def few_ends(schema: str, question: questions.Awaited[A]) -> Script[A]:
    """Answer `EndsOf` about a few runs, in one round trip."""
    ends = yield from reads.few_ends(schema, cast("questions.EndsOf", question).run_ids)
    return cast("A", ends)


def answer(connection: Connection, schema: str, question: questions.Question[A], at: Micros | None) -> A:
    return cast("A", _answer(connection, schema, cast("questions.AnyQuestion", question), at))


def _answer(connection: Connection, schema: str, question: questions.AnyQuestion, at: Micros | None) -> object:  # noqa: C901, PLR0912 - one line for each question
    match question:
        # What processes wait for comes first: it is asked often.
        case questions.EndsOf():
            return reads.ends(connection, schema, question.run_ids)
        case questions.VerdictsOn():
            return leases.look(connection, schema, question.holdings, at)
        case questions.RepliesTo():
            return reads.replies(connection, schema, question.messages)
        case questions.CountRuns():
            return reads.counts(connection, schema)
        case questions.CountReady():
            return reads.backlog(connection, schema, at)
        case questions.CountLeases():
            return reads.held(connection, schema)
        case questions.CountSlots():
            return reads.slots(connection, schema, question.type)
        case questions.FindOrphans():
            return reads.orphans(connection, schema, question.limit)
        case questions.ListTopics():
            return topics.list_topics(connection, schema)
        case questions.ListTypes():
            return reads.types(connection, schema)
        case questions.ListMessages():
            return reads.messages(connection, schema, question.run_id)
        case questions.ListDeadLetters():
            return reads.dead_letters(connection, schema, question)
        case questions.ListSchedules():
            return schedules.list_schedules(connection, schema, question)
        case questions.ListDueSchedules():
            return schedules.due(connection, schema, question.limit, question.after, at)
        case questions.ListFlows():
            return flows.list_flows(connection, schema, question)
        case _:
            assert_never(question)
