"""Dispatch: map each question of the store port to the read that answers it. Nothing here writes."""

from __future__ import annotations

from typing import TypeVar, assert_never, cast

import apsw

from holdfast.core import questions
from holdfast.core.clock import Clock
from holdfast.stores.operations import leases
from holdfast.stores.sqlite import backlogs, dead_letters, events, flows, inboxes, limits, reads, schedules, types
from holdfast.stores.sqlite.transaction import Transaction

A = TypeVar("A")


def answer(connection: apsw.Connection, question: questions.Question[A], clock: Clock) -> A:
    return cast("A", _answer(connection, cast("questions.AnyQuestion", question), clock))


def _answer(connection: apsw.Connection, question: questions.AnyQuestion, clock: Clock) -> object:  # noqa: C901, PLR0912 - one line for each question
    match question:
        # What processes wait for comes first: it is asked often.
        case questions.EndsOf():
            return reads.ends(connection, question.run_ids)
        case questions.VerdictsOn():
            return leases.check(Transaction(connection, clock), question.holdings, clock.now())
        case questions.RepliesTo():
            return reads.replies(connection, question.messages)
        case questions.CountRuns():
            return reads.counts(connection)
        case questions.CountReady():
            return backlogs.backlog(connection, clock.now())
        case questions.CountLeases():
            return backlogs.held(connection)
        case questions.CountSlots():
            return limits.uses(connection, question.type)
        case questions.FindOrphans():
            return reads.orphans(connection, question.limit)
        case questions.ListTopics():
            return events.list_topics(connection)
        case questions.ListTypes():
            return types.list_types(connection)
        case questions.ListMessages():
            return inboxes.list_messages(connection, question.run_id)
        case questions.ListDeadLetters():
            return dead_letters.list_letters(connection, question)
        case questions.ListSchedules():
            return schedules.list_schedules(connection, question)
        case questions.ListDueSchedules():
            return schedules.due(connection, question.limit, question.after, clock.now())
        case questions.ListFlows():
            return flows.list_flows(connection, question)
        case _:
            assert_never(question)
