"""`make mutants`: put each bug of the catalogue into a copy of holdfast, and run the tests that must detect it.

`ARGS="--only NAME"` chooses some, `--list` only names them, `--json` prints JSON. Exit code 1 if one survives.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from tests.mutants.catalogue import MUTANTS
from tests.mutants.catcher import CATCHERS, Caught
from tests.mutants.mutant import Catch, Mutant, plant
from tests.plugin import environment

_LINE_WIDTH = 160


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a mutant: the `layer` that caught it, or none."""

    name: str
    breaks: str
    where: str
    catcher: str | None
    layer: str | None
    seconds: float
    line: str

    @property
    def has_survived(self) -> bool:
        return self.layer is None


class Hunt:
    """Runs catchers on mutants, a few at a time, and shows the progress."""

    def __init__(self, jobs: int, told: Callable[[str], None]) -> None:
        self._told = told
        self._places = asyncio.Semaphore(jobs)

    async def control(self, mutants: Sequence[Mutant]) -> list[str]:
        """Return the catchers that fail without a bug: their results on mutants mean nothing."""
        used: dict[str, set[str]] = {}
        for catch in (catch for mutant in mutants for catch in mutant.caught_by):
            used.setdefault(catch.catcher, set()).add(catch.words)
        # Each catcher with all its tests, in one command.
        catches = [Catch(name, "" if "" in words else _any_of(words)) for name, words in used.items()]
        found = await asyncio.gather(*map(self._control_one, catches))
        return [wrong for wrong in found if wrong is not None]

    async def _control_one(self, catch: Catch) -> str | None:
        caught = await self._run(None, catch)
        self._told(f"control: {catch.catcher}, {caught.seconds:.0f} s: {caught.line}")
        return None if caught.code == 0 else f"{catch.catcher} ({caught.line})"

    async def hunt(self, mutants: Sequence[Mutant]) -> list[Verdict]:
        """Return the result of each mutant."""
        return await asyncio.gather(*map(self._hunt_one, mutants))

    async def _hunt_one(self, mutant: Mutant) -> Verdict:
        spent, said = 0.0, []
        for catch in mutant.caught_by:
            caught = await self._run(mutant, catch)
            spent += caught.seconds
            if caught.code == 1:
                self._told(f"{mutant.name}: caught by {catch.catcher} after {spent:.1f} s")
                return _verdict(mutant, catch.catcher, spent, caught.line)
            said.append(f"{catch.catcher}: {caught.line}")
        self._told(f"{mutant.name}: SURVIVED ({'; '.join(said)})")
        return _verdict(mutant, None, spent, "; ".join(said))

    async def _run(self, mutant: Mutant | None, catch: Catch) -> Caught:
        async with self._places:
            with TemporaryDirectory(prefix="holdfast-mutant-", ignore_cleanup_errors=True) as folder:
                await asyncio.to_thread(plant, mutant, Path(folder))
                return await CATCHERS[catch.catcher].run(Path(folder), catch.words)


def _verdict(mutant: Mutant, catcher: str | None, seconds: float, line: str) -> Verdict:
    return Verdict(
        name=mutant.name,
        breaks=mutant.breaks,
        where=mutant.where,
        catcher=catcher,
        layer=None if catcher is None else CATCHERS[catcher].layer,
        seconds=round(seconds, 1),
        line=line,
    )


def _any_of(words: set[str]) -> str:
    return " or ".join(f"({one})" for one in sorted(words))


def _chosen(only: Sequence[str] | None) -> list[Mutant]:
    if not only:
        return list(MUTANTS)
    known = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := [name for name in only if name not in known]:
        raise SystemExit(f"there is no mutant {', '.join(unknown)}; `--list` names them")
    return [known[name] for name in only]


def _table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        _say("  ".join(cells).rstrip())


def _show(verdicts: Sequence[Verdict], seconds: float) -> None:
    rows = [("BUG", "PROMISE IT BREAKS", "IN", "CAUGHT BY", "SECONDS", "WHAT IT SAID")]
    rows += [
        (one.name, one.breaks, one.where, one.catcher or "NOBODY", f"{one.seconds:.1f}", one.line[:_LINE_WIDTH])
        for one in verdicts
    ]
    _table(rows)
    survivors = [one.name for one in verdicts if one.has_survived]
    layers = {layer: sum(one.layer == layer for one in verdicts) for layer in sorted({o.layer or "" for o in verdicts})}
    by = ", ".join(f"{count} by {layer}" for layer, count in layers.items() if layer)
    _say(f"\n{len(verdicts)} bugs in {seconds:.0f} s; caught: {by or 'none'}.")
    _say(f"SURVIVED: {', '.join(survivors)}" if survivors else "None survived.")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _mutter(text: str) -> None:
    """Show the progress; not in JSON output."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Put bugs into holdfast and see who notices."
    )
    parser.add_argument("--only", metavar="NAME", action="append", help="this mutant; may be repeated")
    parser.add_argument("--list", action="store_true", help="name all mutants, and run nothing")
    parser.add_argument("--json", action="store_true", help="tell it as JSON")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="number of mutants at a time (default: 2)")
    parser.add_argument("--no-control", action="store_true", help="take for granted that all is green without a bug")
    return parser.parse_args()


async def _main(mutants: Sequence[Mutant], *, jobs: int, has_control: bool, is_json: bool) -> int:
    began = time.monotonic()
    hunt = Hunt(jobs, _mutter)
    if has_control and (wrong := await hunt.control(mutants)):
        _mutter(f"not green without any bug, so that nothing is shown: {'; '.join(wrong)}")
        return 1
    verdicts = await hunt.hunt(mutants)
    if is_json:
        _say(msgspec.json.format(msgspec.json.encode(verdicts)).decode())
    else:
        _show(verdicts, time.monotonic() - began)
    return int(any(one.has_survived for one in verdicts))


if __name__ == "__main__":
    environment.forget_settings()
    environment.settle()
    given = _arguments()
    wanted = _chosen(given.only)
    if not given.list:
        sys.exit(asyncio.run(_main(wanted, jobs=given.jobs, has_control=not given.no_control, is_json=given.json)))
    elif given.json:
        _say(msgspec.json.format(msgspec.json.encode(wanted)).decode())
    else:
        _table([("BUG", "PROMISE IT BREAKS", "IN"), *((one.name, one.breaks, one.where) for one in wanted)])
