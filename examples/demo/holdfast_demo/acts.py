"""The two acts of the demo: an order that sleeps and waits, and an order whose worker is killed."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import Any

from holdfast.app import Holdfast
from holdfast.cli.exits import ExitCode
from holdfast.cli.follow import follow, read, show_progress
from holdfast.cli.output import Cell, Column, Line, Output, Table
from holdfast.cli.view import Snapshot, timeline_lines
from holdfast.core.model import EntryKind, WaitKind
from holdfast.core.states import RunState
from holdfast.engine.handle import RunHandle
from holdfast_demo.application import CHECKOUT, STEPS
from holdfast_demo.processes import DemoProcesses

_ACT_SECONDS = 60.0
_POLL_SECONDS = 0.05
_FIRST, _SECOND = "A-1", "A-2"
_FIRST_WORKER, _SECOND_WORKER = "demo-1", "demo-2"


class Acts:
    """Plays both acts and checks their outcome."""

    def __init__(self, out: Output, stage: DemoProcesses, hf: Holdfast, *, pace: float, is_kept: bool) -> None:
        self._out = out
        self._stage = stage
        self._hf = hf
        self._pace = pace
        self._is_kept = is_kept
        self._recorded: set[str] = set()
        self._killed = 0

    async def perform(self) -> ExitCode:
        """Play both acts and print the summary."""
        self._introduce()
        worker = self._stage.start_worker(_FIRST_WORKER)
        first = await self._play_first(worker)
        if first.info.state is not RunState.SUCCEEDED:
            return self._give_up(first)
        second = await self._play_second(worker)
        if second.info.state is not RunState.SUCCEEDED:
            return self._give_up(second)
        return self._judge(first, second)

    # The acts

    async def _play_first(self, worker: subprocess.Popen[bytes]) -> Snapshot:
        self._title("Act 1: an order with a retry, a sleep and a wait")
        self._say(f"The demo starts a worker process ({_FIRST_WORKER}, process {worker.pid}), then order {_FIRST}.")
        run = await self._start(_FIRST)
        return await self._watch(run, _FIRST, self._approve(run))

    async def _play_second(self, worker: subprocess.Popen[bytes]) -> Snapshot:
        self._title("Act 2: the worker is killed")
        self._say(
            f"The demo starts order {_SECOND} and approves it at once: a run keeps a message until it asks for it."
        )
        run = await self._start(_SECOND)
        await run.send("approve", {"by": "bob"})
        return await self._watch(run, _SECOND, self._kill_and_replace(run, worker))

    async def _start(self, order: str) -> RunHandle[Any]:
        payload = {"order": order, "cooling_seconds": 1.0 * self._pace}
        return await self._hf.start(CHECKOUT, payload, key=f"order-{order}", tags={"shop": "demo"})

    async def _approve(self, run: RunHandle[Any]) -> None:
        async for snapshot in follow(self._hf, run.id):
            if any(wait.kind is WaitKind.MESSAGE for wait in snapshot.info.waits):
                break
        self._say("The order now waits for a person. It could wait for a month: no process holds it in memory.")
        await asyncio.sleep(1.2 * self._pace)
        self._say("The person approves:", f"holdfast send key:order-{_FIRST} approve by=ann")
        await run.send("approve", {"by": "ann"})

    async def _kill_and_replace(self, run: RunHandle[Any], worker: subprocess.Popen[bytes]) -> None:
        while not self._stage.ledger.count_begun(_SECOND, "pack", worker.pid):
            await asyncio.sleep(_POLL_SECONDS)
        await asyncio.sleep(0.4 * self._pace)
        worker.kill()
        await asyncio.to_thread(worker.wait)
        self._killed = worker.pid
        self._recorded = await self._recorded_steps(run)
        self._say("The worker is killed in the middle of packing:", f"kill -9 {worker.pid}")
        await asyncio.sleep(1.0 * self._pace)
        successor = self._stage.start_worker(_SECOND_WORKER)
        self._say(f"Another worker starts ({_SECOND_WORKER}, process {successor.pid}) and takes over the order.")

    async def _recorded_steps(self, run: RunHandle[Any]) -> set[str]:
        """Return the steps with recorded results, including those of children. They must never run again."""
        recorded = set()
        for entry in await run.history():
            if entry.kind is EntryKind.STEP and entry.finished_at is not None:
                recorded.add(entry.location)
            elif entry.kind is EntryKind.CHILD and entry.ref is not None:
                recorded |= await self._recorded_steps(self._hf.run(entry.ref))
        return recorded

    async def _watch(self, run: RunHandle[Any], order: str, action: Coroutine[Any, Any, None]) -> Snapshot:
        """Show a run until it ends, while `action` runs."""
        snapshot = await read(self._hf, run.id)
        acting = asyncio.create_task(action)
        try:
            async with asyncio.timeout(_ACT_SECONDS + 15 * self._pace):
                with show_progress(self._out, snapshot, lambda shown, now: self._draw(shown, order, now)) as progress:
                    async for snapshot in follow(self._hf, run.id):
                        if not self._out.is_json:
                            progress.show(snapshot)
                await acting
        except TimeoutError:
            pass  # the snapshot shows how far the run came
        finally:
            acting.cancel()
        return snapshot

    def _draw(self, snapshot: Snapshot, order: str, now: datetime) -> Sequence[Line]:
        lines: list[Line] = [[""], *timeline_lines(snapshot, now, self._out.width)]
        if snapshot.info.state.is_end:
            return [*lines, [(f"■ order {order} {snapshot.info.state.value}", "good")]]
        holder = snapshot.workers.get(snapshot.info.worker or "")
        if self._killed and holder == _FIRST_WORKER:
            return [*lines, [(f"▸ order {order}: its worker is dead, and no other worker has it yet.", "bad")]]
        return [*lines, [(f"▸ order {order}: {snapshot.explanation}", "busy")]]

    # What is said

    def _introduce(self) -> None:
        self._title("holdfast demo")
        self._say("An order goes through a checkout, a plain Python function. holdfast records every finished step:")
        self._say("  reserve > charge > sleep > wait for approval > print label (a child run) > pack > ship > notify")
        self._say(f"The runs are stored in one SQLite file, {self._stage.directory / 'demo.db'}.")

    def _title(self, text: str) -> None:
        if not self._out.is_json:
            self._out.line("")
            self._out.line((text, "title"))

    def _say(self, text: str, command: str = "") -> None:
        if self._out.is_json:
            return
        cells: list[Cell] = [text]
        if command:
            cells += ["  ", (command, "busy")]
        self._out.line(*cells)

    def _give_up(self, snapshot: Snapshot) -> ExitCode:
        info = snapshot.info
        self._out.talk(f"run {info.id} should have succeeded, but it is {info.state.value}: {snapshot.explanation}")
        log = self._stage.log.read_text(errors="replace").splitlines()[-20:]
        self._out.talk("\n".join(["the last lines of the worker's log:", *log]))
        return ExitCode.FAILED

    # The moral

    def _judge(self, first: Snapshot, second: Snapshot) -> ExitCode:
        repeated = [step for step in STEPS if self._is_repeated(step)]
        if self._out.is_json:
            self._out.item(self._json(first, second, repeated))
        else:
            self._sum_up(repeated)
            self._describe_files()
        return ExitCode.FAILED if repeated else ExitCode.OK

    def _is_repeated(self, step: str) -> bool:
        """Return True if a step was executed again although its result was recorded."""
        ledger = self._stage.ledger
        after_kill = ledger.count_begun(_SECOND, step) - ledger.count_begun(_SECOND, step, self._killed)
        wanted = 2 if step == "charge" else 1  # its first attempt fails
        return (step in self._recorded and after_kill > 0) or ledger.count_begun(_FIRST, step) > wanted

    def _sum_up(self, repeated: Sequence[str]) -> None:
        self._title("Executions of each step, from a ledger that the steps themselves write")
        columns = (Column("step"), Column(_FIRST, is_number=True), Column(_SECOND, is_number=True), Column("remark"))
        table = Table(columns)
        for step in STEPS:
            first, second = (self._stage.ledger.count_begun(order, step) for order in (_FIRST, _SECOND))
            remark = self._remark(step, repeated)
            table.rows.append({"step": step, _FIRST: str(first), _SECOND: str(second), "remark": remark})
        self._out.table(table)
        self._out.line("")
        if repeated:
            self._out.line((f"Repeated although recorded: {', '.join(repeated)}. This is a bug in holdfast.", "bad"))
        else:
            self._out.line(("Both orders are shipped. No finished step ran again, although a worker died.", "good"))

    def _remark(self, step: str, repeated: Sequence[str]) -> Cell:
        ledger = self._stage.ledger
        if step in repeated:
            return "was recorded, but ran again", "bad"
        if step in self._recorded:
            more = "fails once and is retried; " if step == "charge" else ""
            return f"{more}recorded before the kill, not repeated", "good"
        if ledger.count_begun(_SECOND, step, self._killed):
            return "interrupted by the kill, so started again", "wait"
        return "done by the new worker", ""

    def _describe_files(self) -> None:
        if not self._is_kept:
            self._say("The demo has removed its files; `holdfast demo --keep` keeps them, so that you can look around.")
            return
        self._say("The files of the demo are still there. Look around:")
        for words in ("ls", f"show key:order-{_SECOND}", f"audit key:order-{_SECOND}", "doctor"):
            self._say("", f"holdfast --url {self._stage.url} {words}")
        self._say(f"Remove it with: rm -r {self._stage.directory}")

    def _json(self, first: Snapshot, second: Snapshot, repeated: Sequence[str]) -> dict[str, Any]:
        ledger = self._stage.ledger
        return {
            "ok": not repeated,
            "directory": str(self._stage.directory) if self._is_kept else None,
            "runs": [
                {
                    "order": order,
                    "id": snapshot.info.id,
                    "state": snapshot.info.state.value,
                    "executions": {step: ledger.count_begun(order, step) for step in STEPS},
                }
                for order, snapshot in ((_FIRST, first), (_SECOND, second))
            ],
            "recorded_before_kill": sorted(self._recorded),
            "repeated": list(repeated),
        }
