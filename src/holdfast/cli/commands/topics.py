"""`holdfast topics`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.actor import actor
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.group import group
from holdfast.cli.lookup import store_now
from holdfast.cli.option import combined
from holdfast.cli.output import Output, cleaned, preview
from holdfast.cli.session import in_session
from holdfast.cli.table import Table
from holdfast.cli.times import LENGTH, ago, spoken
from holdfast.engine.store_info import DeadLetterInfo, TopicInfo


@group("topics")
def command() -> None:
    """Delivery rules and retention of topics, and dead letters: what could not be delivered."""


@holdfast_command("ls", "holdfast topics ls", "holdfast topics ls --json")
def ls(out: Output) -> None:
    """List the topics that have rules. Events of all other topics go to every run that waits for them."""

    async def work(hf: Holdfast) -> None:
        topics = await hf.topics.list()
        out.listing(topics, _topic_table(topics), "no topic has rules; `holdfast topics set NAME` sets them")

    in_session(out.settings, work)


@holdfast_command(
    "set",
    "holdfast topics set jobs --mode queue",
    "holdfast topics set 'orders.*' --retention 30d --max-pending 100000",
)
@click.argument("name", shell_complete=completing.topics)
@click.option(
    "--mode", type=click.Choice(["fanout", "queue"]), help="Deliver to every run that waits, or to exactly one."
)
@click.option("--retention", type=LENGTH, help="Keep events for this time, such as 12h or 30d.")
@click.option("--max-pending", type=int, metavar="N", help="Maximum number of events that are kept.")
def set_rules(out: Output, name: str, *, mode: Any, retention: timedelta | None, max_pending: int | None) -> None:
    """Set how events of a topic are delivered and kept. Options that are not given do not change.

    NAME is a topic, or a family such as 'orders.*'. The mode applies to events emitted from now on. The limits apply to
    all events, whenever the store is pruned.
    """
    if mode is None and retention is None and max_pending is None:
        raise Refusal("nothing to set; give --mode, --retention or --max-pending")

    async def work(hf: Holdfast) -> None:
        topic = await hf.topics.set(name, mode=mode, retention=retention, max_pending=max_pending)
        kept = f"kept for {spoken(topic.retention)}, at most {topic.max_pending}"
        out.answer(topic, f"{cleaned(topic.name)}: {topic.mode}, {kept}")

    in_session(out.settings, work, may_create=True)


@holdfast_command(
    "dead-letters",
    "holdfast topics dead-letters",
    "holdfast topics dead-letters 'orders.*' --limit 10 --json",
)
@click.argument("topic", required=False, shell_complete=completing.topics)
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Maximum number of dead letters."
)
def dead_letters(out: Output, topic: str | None, *, limit: int) -> None:
    """List the dead letters, oldest first: queue events and messages to ended runs that could not be delivered."""

    async def work(hf: Holdfast) -> None:
        letters = [letter async for letter in hf.dead_letters.list(topic, limit=limit)]
        out.listing(letters, _letter_table(letters, await store_now(hf)), "there are no dead letters")

    in_session(out.settings, work)


_choosing_letters = combined(
    click.argument("numbers", nargs=-1, type=int, metavar="[NUMBER]..."),
    click.option(
        "--topic",
        shell_complete=completing.topics,
        help="All dead letters of this topic, or of a family such as 'orders.*'.",
    ),
    click.option("--dry-run", is_flag=True, help="Only show the dead letters that would change."),
    click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation."),
)


@holdfast_command(
    "replay",
    "holdfast topics replay 17 18",
    "holdfast topics replay --topic jobs --dry-run",
    "holdfast topics replay --topic 'orders.*' --yes",
)
@_choosing_letters
def replay(out: Output, numbers: Sequence[int], topic: str | None, *, dry_run: bool, yes: bool) -> ExitCode:
    """Deliver dead letters again, by their numbers or by topic.

    An event goes to a run that waits for it, or becomes pending again. A message is sent again if its run has not
    ended; otherwise it stays a dead letter. On a terminal, the command asks once for confirmation; elsewhere it needs
    --yes. The exit code is 6 if a named dead letter was not delivered.
    """

    async def act(hf: Holdfast, chosen: Sequence[int]) -> int:
        return await hf.dead_letters.replay(chosen, by=actor())

    return _act(out, "replay", numbers, topic, dry_run=dry_run, yes=yes, act=act)


@holdfast_command(
    "purge",
    "holdfast topics purge 17 18 --yes",
    "holdfast topics purge --topic jobs --dry-run",
)
@_choosing_letters
def purge(out: Output, numbers: Sequence[int], topic: str | None, *, dry_run: bool, yes: bool) -> ExitCode:
    """Remove dead letters, by their numbers or by topic.

    On a terminal, the command asks once for confirmation; elsewhere it needs --yes. The exit code is 6 if a named dead
    letter does not exist.
    """

    async def act(hf: Holdfast, chosen: Sequence[int]) -> int:
        return await hf.dead_letters.purge(chosen)

    return _act(out, "purge", numbers, topic, dry_run=dry_run, yes=yes, act=act)


for one in (ls, set_rules, dead_letters, replay, purge):
    command.add_command(one)


def _act(
    out: Output,
    verb: str,
    numbers: Sequence[int],
    topic: str | None,
    *,
    dry_run: bool,
    yes: bool,
    act: Any,
) -> ExitCode:
    """Apply an action to selected dead letters, after a confirmation."""
    if bool(numbers) == (topic is not None):
        raise Refusal(f"name the dead letters to {verb} by their numbers, or select them with --topic")
    if not (yes or dry_run or sys.stdin.isatty()):
        raise Refusal(
            f"stdin is not a terminal, so `topics {verb}` cannot ask for confirmation; add --yes "
            "(or --dry-run to see which dead letters)"
        )
    done_word = f"{verb}ed" if verb == "replay" else f"{verb}d"

    async def work(hf: Holdfast) -> ExitCode:
        letters = [letter async for letter in hf.dead_letters.list(topic)]
        if numbers:
            letters = [letter for letter in letters if letter.number in numbers]
        if dry_run:
            if out.is_json:
                out.items(letters)
            else:
                out.table(_letter_table(letters, await store_now(hf)))
                out.talk(f"{_count(len(letters))} would be {done_word}; nothing was changed")
            return ExitCode.OK
        if letters and not yes:
            out.table(_letter_table(letters[:10], await store_now(hf)))
            if not click.confirm(f"{verb.capitalize()} {_count(len(letters))}?", err=True):
                out.talk(f"nothing was {done_word}")
                return ExitCode.FAILED
        done = await act(hf, [letter.number for letter in letters])
        out.answer({done_word: done}, f"{done_word} {_count(done)}")
        return ExitCode.CONFLICT if numbers and done < len(set(numbers)) else ExitCode.OK

    return in_session(out.settings, work)


def _count(number: int) -> str:
    return f"{number} dead letter{'' if number == 1 else 's'}"


def _topic_table(topics: Sequence[TopicInfo]) -> Table:
    return Table.of(
        (
            {
                "name": cleaned(topic.name),
                "mode": topic.mode,
                "retention": spoken(topic.retention),
                "max pending": str(topic.max_pending),
            }
            for topic in topics
        ),
        numbers=("max pending",),
    )


def _letter_table(letters: Sequence[DeadLetterInfo], now: datetime) -> Table:
    return Table.of(
        (
            {
                "number": str(letter.number),
                "kind": "message" if letter.topic is None else "event",
                "of": cleaned(letter.topic or f"{letter.name} to {letter.run_id}"),
                "reason": letter.reason,
                "given up": (ago(letter.at, now), "dim"),
                "payload": preview(letter.payload),
            }
            for letter in letters
        ),
        numbers=("number",),
        cut="payload",
    )
