"""The acts of producers in a simulation: they start runs, send, publish, and control. Each may be repeated.

If a process gets no answer, or dies, another repeats its act. So every act has its own id.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Mapping
from typing import Any

from holdfast import Holdfast, InvalidRequest, RunBusy, RunNotFound
from holdfast.app import session_of
from holdfast.core.commands import EmitEvents
from holdfast.core.model import Event, Overlap, derived_id
from tests.programs.flow_text import FlowExpectation, expectation_of
from tests.programs.interpreter import LIMIT_SECONDS, Program, mail_of, news_of
from tests.simulation import crowd, flows
from tests.simulation.plan import Act, Plan

CONTROLS = frozenset({"cancel", "pause", "resume", "wake", "evict", "recover"})


async def perform(act: Act, hf: Holdfast, plan: Plan, accepted: set[str]) -> None:
    """Perform an act in the name of a process. An `accepted` act must show in the end."""
    if act.what in CONTROLS:
        await getattr(hf.run(act.run), act.what)()
        return
    match act.what:
        case "program" | "wild":
            program = (plan.programs if act.what == "program" else plan.wild)[act.number]
            await start_program(hf, name_of(act), program)
            accepted.add(name_of(act))
        case "flow" | "wild flow":
            program = (plan.flows if act.what == "flow" else plan.wild_flows)[act.number]
            await _start_flow(hf, name_of(act), expectation_of(program, name_of(act)))
            accepted.add(name_of(act))
        case "mailbox" | "limited" | "rated" | "taker" | "deadly":
            await _start_one_of_crowd(hf, act)
            accepted.add(act.run)
            if act.what == "mailbox":
                senders = range(crowd.SENDERS)
                await asyncio.gather(*(crowd.write_letters(hf, act.run, sender, act.number) for sender in senders))
        case _:
            await _perform_rarely(act, hf)


async def _perform_rarely(act: Act, hf: Holdfast) -> None:
    match act.what:
        case "offer":
            await crowd.offer(hf, act.number)
        case "schedule":
            overlap: Overlap = "skip" if act.number % 2 else "allow"
            await hf.schedules.put("ticks", "tick", every=act.number, overlap=overlap, tags={"overlap": overlap})
        case "keyed":
            await hf.start("tick", {}, key="the only one")
        case "delayed":
            await hf.start("tick", {}, id=act.run, delay=act.number)
            await hf.run(act.run).send("hello")
        case "prune":
            await session_of(hf).store.prune(100)
        case "recover family":
            await _recover_family(hf, act)
        case "supersede":
            await hf.flows.register(flows.OTHER_TEXT, type=act.run)
        case "rewind":
            entries = await hf.run(act.run).history()
            if entries:
                await hf.run(act.run).rewind(entries[act.number % len(entries)].location)
        case _:
            raise ValueError(f"nobody knows how to {act.what}")


async def _recover_family(hf: Holdfast, act: Act) -> None:
    """Recover a run and all failed runs below it, as a person would who names them all."""
    family = [act.run]
    for run_id in family:
        family += [info.id async for info in hf.list(parent_id=run_id)]
    random.Random(act.number).shuffle(family)
    for run_id in family:
        with contextlib.suppress(InvalidRequest, RunBusy, RunNotFound):
            await hf.run(run_id).recover()


def name_of(act: Act) -> str:
    """Return the id of the run that an act starts."""
    match act.what:
        case "program":
            return f"r{act.number}"
        case "wild":
            return f"wild{act.number}"
        case "flow":
            return f"flow{act.number}"
        case "wild flow":
            return f"wildflow{act.number}"
        case _:
            return act.run


async def _start_one_of_crowd(hf: Holdfast, act: Act) -> None:
    payload: dict[str, Any] = {}
    if act.what == "mailbox":
        payload = {"count": act.number * crowd.SENDERS}
    elif act.what == "taker" and act.number:
        payload = {"patience": act.number}
    tags = {"tenant": crowd.TENANTS[act.number % len(crowd.TENANTS)]} if act.what == "limited" else {}
    await hf.start(act.what, payload, id=act.run, tags=tags)


async def start_program(hf: Holdfast, name: str, program: Program) -> None:
    """Start a program, and send all its messages."""
    limits: dict[str, Any] = {program["end"]: LIMIT_SECONDS} if str(program.get("end")).startswith("max") else {}
    await hf.start("program", {"program": program, "path": name}, id=name, **limits)
    await _send_all(hf, name, mail_of(program), news_of(program))


async def _start_flow(hf: Holdfast, name: str, expected: FlowExpectation) -> None:
    await hf.start(name, {}, id=name)
    await _send_all(hf, name, expected.mail, expected.news)


async def _send_all(hf: Holdfast, name: str, mail_counts: Mapping[int, int], news_counts: Mapping[int, int]) -> None:
    for mail, count in mail_counts.items():
        for each in range(count):
            await hf.run(name).send(f"mail{mail}", [mail, each + 1], id=f"{name}-{mail}-{each}")
    for news, count in news_counts.items():
        for each in range(count):
            id = derived_id(f"{name} {news} {each}", 0)
            await session_of(hf).store.apply(
                EmitEvents(events=[Event(id=id, topic=f"news{news}", payload=json.dumps([news, each + 1]))])
            )
