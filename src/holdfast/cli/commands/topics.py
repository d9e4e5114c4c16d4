"""Commands for topics and dead letters: `holdfast topics`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.command import check_can_ask, command, group, store_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.option import LENGTH, combined, yes_option
from holdfast.cli.output import Cell, Output, Table, ago, cleaned, preview, spoken
from holdfast.cli.session import actor, in_session, store_now
from holdfast.engine.info import DeadLetterInfo


@group("topics")
def topics() -> None:
    """Delivery rules and retention of topics, and dead letters: what could not be delivered."""


@store_command("ls", "holdfast topics ls", "holdfast topics ls --json")
async def ls(out: Output, hf: Holdfast) -> None:
    """List the topics that have rules. Events of all other topics go to every run that waits for them."""
    known = await hf.topics.list()
    rows: list[dict[str, Cell]] = [
        {
            "name": cleaned(topic.name),
            "mode": topic.mode,
            "retention": spoken(topic.retention),
            "max pending": str(topic.max_pending),
        }
        for topic in known
    ]
    nothing = "no topic has rules; `holdfast topics set NAME` sets them"
    out.listing(known, Table.of(rows, numbers=("max pending",)), nothing)


@store_command(
    "set",
    "holdfast topics set jobs --mode queue",
    "holdfast topics set 'orders.*' --retention 30d --max-pending 100000",
    may_create=True,
)
@click.argument("name", shell_complete=completing.topics)
@click.option(
    "--mode", type=click.Choice(["fanout", "queue"]), help="Deliver to every run that waits, or to exactly one."
)
@click.option("--retention", type=LENGTH, help="Keep events for this time, such as 12h or 30d.")
@click.option("--max-pending", type=int, metavar="N", help="Maximum number of events that are kept.")
async def set_rules(
    out: Output, hf: Holdfast, name: str, *, mode: Any, retention: timedelta | None, max_pending: int | None
) -> None:
    """Set how events of a topic are delivered and kept. Options that are not given do not change.

    NAME is a topic, or a family such as 'orders.*'. The mode applies to events emitted from now on. The limits apply to
    all events, whenever the store is pruned.
    """
    if mode is None and retention is None and max_pending is None:
        raise Refusal("nothing to set; give --mode, --retention or --max-pending")
    topic = await hf.topics.set(name, mode=mode, retention=retention, max_pending=max_pending)
    kept = f"kept for {spoken(topic.retention)}, at most {topic.max_pending}"
    out.answer(topic, f"{cleaned(topic.name)}: {topic.mode}, {kept}")


@store_command(
    "dead-letters", "holdfast topics dead-letters", "holdfast topics dead-letters 'orders.*' --limit 10 --json"
)
@click.argument("topic", required=False, shell_complete=completing.topics)
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Maximum number of dead letters."
)
async def dead_letters(out: Output, hf: Holdfast, topic: str | None, *, limit: int) -> None:
    """List the dead letters, oldest first: queue events and messages to ended runs that could not be delivered."""
    letters = await hf.dead_letters.list(topic, limit=limit)
    out.listing(letters, _letter_table(letters, await store_now(hf)), "there are no dead letters")


_choosing_letters = combined(
    click.argument("numbers", nargs=-1, type=int, metavar="[NUMBER]..."),
    click.option(
        "--topic",
        shell_complete=completing.topics,
        help="All dead letters of this topic, or of a family such as 'orders.*'.",
    ),
    click.option("--dry-run", is_flag=True, help="Only show the dead letters that would change."),
    yes_option,
)


@command(
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
    return _change_letters(out, "replay", "replayed", numbers, topic, dry_run=dry_run, yes=yes)


@command("purge", "holdfast topics purge 17 18 --yes", "holdfast topics purge --topic jobs --dry-run")
@_choosing_letters
def purge(out: Output, numbers: Sequence[int], topic: str | None, *, dry_run: bool, yes: bool) -> ExitCode:
    """Remove dead letters, by their numbers or by topic.

    On a terminal, the command asks once for confirmation; elsewhere it needs --yes. The exit code is 6 if a named dead
    letter does not exist.
    """
    return _change_letters(out, "purge", "purged", numbers, topic, dry_run=dry_run, yes=yes)


for one in (ls, set_rules, dead_letters, replay, purge):
    topics.add_command(one)


def _change_letters(
    out: Output, verb: str, done: str, numbers: Sequence[int], topic: str | None, *, dry_run: bool, yes: bool
) -> ExitCode:
    """Replay or purge the chosen dead letters, after a confirmation. `done` is the participle of the verb."""
    if bool(numbers) == (topic is not None):
        raise Refusal(f"name the dead letters to {verb} by their numbers, or select them with --topic")
    check_can_ask(f"topics {verb}", unless=yes or dry_run, preview="which dead letters")

    async def work(hf: Holdfast) -> ExitCode:
        letters = await hf.dead_letters.list(topic)
        if numbers:
            letters = [letter for letter in letters if letter.number in numbers]
        if dry_run:
            if out.is_json:
                out.items(letters)
            else:
                out.table(_letter_table(letters, await store_now(hf)))
                out.talk(f"{_count(len(letters))} would be {done}; nothing was changed")
            return ExitCode.OK
        if letters and not yes:
            out.table(_letter_table(letters[:10], await store_now(hf)))
            if not click.confirm(f"{verb.capitalize()} {_count(len(letters))}?", err=True):
                out.talk(f"nothing was {done}")
                return ExitCode.FAILED
        chosen = [letter.number for letter in letters]
        replay, purge = hf.dead_letters.replay, hf.dead_letters.purge
        changed = await (replay(chosen, by=actor()) if verb == "replay" else purge(chosen))
        out.answer({done: changed}, f"{done} {_count(changed)}")
        return ExitCode.CONFLICT if numbers and changed < len(set(numbers)) else ExitCode.OK

    return in_session(out.settings, work)


def _count(number: int) -> str:
    return f"{number} dead letter{'' if number == 1 else 's'}"


def _letter_table(letters: Sequence[DeadLetterInfo], now: datetime) -> Table:
    rows: list[dict[str, Cell]] = [
        {
            "number": str(letter.number),
            "kind": "message" if letter.topic is None else "event",
            "of": cleaned(letter.topic or f"{letter.name} to {letter.run_id}"),
            "reason": letter.reason,
            "given up": (ago(letter.at, now), "dim"),
            "payload": preview(letter.payload),
        }
        for letter in letters
    ]
    return Table.of(rows, numbers=("number",), cut="payload")
