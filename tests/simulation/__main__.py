"""Run simulations: random programs, workers and producers with faults, checked against all invariants.

    python -m tests.simulation --seeds 5000            # that many, on all cores
    python -m tests.simulation --only 4711             # one of them again, with its journal
    python -m tests.simulation --plan found.json       # a plan that was found and kept

The same seed behaves the same each time, to the last line of its journal. A failing one is repeated, made smaller, and
reported with its last events; `--keep FOLDER` writes it there. The exit code is 1 if one failed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from holdfast.testing.simulation.scenario import TAIL
from tests.simulation.outcome import SeedOutcome, play_seeds, played, world_of
from tests.simulation.plan import Plan, plan_of
from tests.simulation.shrink import shrunk

BATCH = 10
"""Number of seeds that a process gets at once."""

SHOW_SECONDS = 2.0


def _batches(first: int, count: int) -> list[range]:
    return [range(start, min(start + BATCH, first + count)) for start in range(first, first + count, BATCH)]


def _outcomes(first: int, count: int, jobs: int) -> Iterator[SeedOutcome]:
    batches = _batches(first, count)
    if jobs == 1:
        for batch in batches:
            yield from play_seeds(batch)
        return
    context = multiprocessing.get_context("spawn")  # so that no process inherits threads
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for outcomes in pool.map(play_seeds, batches):
            yield from outcomes


def _report(
    outcome: SeedOutcome, plan: Plan, say: Callable[[str], None], *, keep: Path | None, tries: int
) -> dict[str, Any]:
    """Report a failure, after repeating it and making it smaller."""
    is_same = played(plan) == outcome
    smallest = shrunk(plan, lambda smaller: played(smaller).rule == outcome.rule, tries=tries)
    last = played(smallest)
    say(f"\nseed {outcome.seed} goes wrong: {outcome.what}")
    say("played again it does the same" if is_same else "PLAYED AGAIN IT DOES SOMETHING ELSE")
    say(f"made smaller: {last.what}\n" + "\n".join(f"  {line}" for line in last.tail[-TAIL:]))
    text = msgspec.json.encode(smallest).decode()
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{outcome.seed}.json").write_text(text + "\n")
    say(f"again: python -m tests.simulation --only {outcome.seed}\nthe smaller plan: {text}")
    facts = {"seed": outcome.seed, "violation": outcome.what, "is_repeatable": is_same}
    return facts | {"plan": msgspec.to_builtins(smallest), "events": list(last.tail)}


def _show(plan: Plan, say: Callable[[str], None]) -> int:
    """Play one plan and show its journal."""
    world = world_of(plan, say)
    world.play()
    say(f"{world.digest}: {world.violation or 'nothing went wrong'}")
    return int(world.violation is not None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="number of simulations (default: 200)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (default: 0)")
    parser.add_argument("--only", type=int, metavar="SEED", help="one simulation, with its whole journal")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="likewise for a plan that was kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: cores)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write smaller plans of what goes wrong there")
    parser.add_argument("--tries", type=int, default=300, metavar="N", help="to make one smaller (default: 300)")
    parser.add_argument("--stop", action="store_true", help="stop at the first that goes wrong")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command; its exit code is 1 if a seed failed."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.seeds < 1 or given.jobs < 1:
        parser.error("--seeds and --jobs are at least 1")

    def say(line: str) -> None:
        stream = sys.stderr if given.json else sys.stdout
        stream.write(line + "\n")
        stream.flush()

    if given.only is not None or given.plan is not None:
        return _show(plan_of(given.only) if given.plan is None else _kept(given.plan, parser), say)
    began = shown_at = time.monotonic()
    count, wrong = 0, []
    for outcome in _outcomes(given.first, given.seeds, given.jobs):
        count += 1
        if outcome.rule:
            wrong.append(_report(outcome, plan_of(outcome.seed), say, keep=given.keep, tries=given.tries))
            if given.stop:
                break
        if time.monotonic() - shown_at > SHOW_SECONDS:
            shown_at = time.monotonic()
            say(_progress(count, given.seeds, len(wrong), shown_at - began))
    say(_progress(count, given.seeds, len(wrong), time.monotonic() - began))
    if given.json:
        sys.stdout.write(json.dumps({"seeds": count, "first": given.first, "violations": wrong}) + "\n")
    return int(bool(wrong))


def _kept(path: Path, parser: argparse.ArgumentParser) -> Plan:
    """Read a plan from a file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    except OSError as error:
        parser.error(f"--plan {path}: {error.strerror}")
    except msgspec.MsgspecError as error:
        parser.error(f"--plan {path} is not a plan: {error}")


def _progress(count: int, total: int, wrong: int, seconds: float) -> str:
    rate = count / max(seconds, 1e-9) * 60
    return f"{count:,} of {total:,} seeds, {wrong} went wrong, {rate:,.0f} a minute"


if __name__ == "__main__":
    sys.exit(main())
