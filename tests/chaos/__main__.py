"""The command: `python -m tests.chaos --store sqlite --minutes 2`, or `make chaos STORE=sqlite MINUTES=2`."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from collections.abc import Sequence

import msgspec

from tests.chaos import figures
from tests.chaos.display import Display
from tests.chaos.places import names
from tests.chaos.plan import Plan
from tests.chaos.session import hold
from tests.plugin import environment

OK, VIOLATED = 0, 1
"""Exit codes; bad input is 2, as in argparse."""


def parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=(
            "Real worker and producer processes under load, disturbed at random: SIGKILL, SIGSTOP, SIGTERM, and what "
            "can happen to the store. Then a verdict on every invariant. Exit code 0 only if all hold."
        ),
    )
    stores = names()
    parser.add_argument("--store", choices=stores, required=True, help=f"where: {' or '.join(stores)}")
    parser.add_argument("--minutes", type=_minutes, default=1.0, help="how long blows fall (default: 1)")
    parser.add_argument("--seed", default="", help="which load and blows; a new one unless given, and always shown")
    parser.add_argument("--figures", action="store_true", help="instead: the figures that are promised, one by one")
    parser.add_argument("--json", action="store_true", help="the verdict as JSON on standard output")
    return parser.parse_args(words)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes <= 24 * 60:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes, such as 0.5, 2 or 60")
    return minutes


def main(words: Sequence[str]) -> int:
    options = parsed(words)
    seed = options.seed or secrets.token_hex(4)
    display = Display()
    if options.figures:
        rows = asyncio.run(figures.reach(options.store, seed, display))
        _show(rows, "\n".join(figures.lines(rows)), is_json=options.json)
        return OK if all(row.is_good for row in rows) else VIOLATED
    display.say(f"a storm on {options.store} for {options.minutes:g} min, seed {seed}")
    verdict = asyncio.run(hold(options.store, Plan(seconds=options.minutes * 60, seed=seed), display))
    display.say("")
    _show(verdict, "\n".join(verdict.lines()), is_json=options.json)
    return OK if verdict.is_good else VIOLATED


def _show(value: object, text: str, *, is_json: bool) -> None:
    shown = msgspec.json.format(msgspec.json.encode(value)).decode() if is_json else text
    sys.stdout.write(f"{shown}\n")


if __name__ == "__main__":
    environment.forget_settings()
    environment.settle()
    sys.exit(main(sys.argv[1:]))
