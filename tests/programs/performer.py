"""A performer executes a program (see `vocabulary`) inside a run, with the operations of the context."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any
from zlib import crc32

from holdfast import Break, Context, Continue, JoinFailed, Registry, Retry, Rollback, step_info
from holdfast.core.errors import WorkflowError
from tests.programs.expectation import At, digest
from tests.programs.interpreter import FAR_SECONDS, LIMIT_SECONDS, Node, Program, mail_of
from tests.programs.ledger import EffectLedger

PATIENT = Retry(max_attempts=9, initial=0, jitter=0)

_VARYING = [
    (re.compile(r"after \d+ attempts?"), "after N attempts"),
    (re.compile(r"child run [0-9a-f-]{36}"), "child run ID"),
    (re.compile(r"OSError: busy|WorkerLost: the worker died while this step ran; no attempt is left"), "used up"),
]


class Boom(ValueError):
    """An error of the workflow itself."""


def wording(text: str) -> str:
    """Return an error's text without parts that a crash may change."""
    for pattern, plain in _VARYING:
        text = pattern.sub(plain, text)
    return text


class Performer:
    """Executes the program of one run."""

    def __init__(self, ctx: Context, ledger: EffectLedger, peer: str) -> None:
        self.ctx = ctx
        self.ledger = ledger
        self.peer = peer

    async def play(self, node: Node, at: At) -> Any:
        kind, *parts = node
        work: Callable[..., Awaitable[Any]] = getattr(self, f"_{kind}")
        return await work(at, *parts)

    async def play_stubbornly(self, node: Node, at: At) -> Any:
        """Execute a node like badly behaved code: it swallows every attempt to close it, and continues."""
        while True:
            try:
                return await self.play(node, at)
            except GeneratorExit:
                continue

    # Leaves

    async def _step(self, at: At, number: int, undo: int, is_ephemeral: int) -> Any:
        value = [number, at.iteration]

        async def body() -> Any:
            return self.ledger.note(value)

        does: Callable[[], Any] = body if number % 4 else lambda: self.ledger.note(value)
        return await self.ctx.step(
            f"step{number}", does, retry=PATIENT, ephemeral=bool(is_ephemeral), undo=self._undo(undo, value)
        )

    def _undo(self, times: int, expected: Any) -> Callable[[Any], Any] | None:
        async def undo(value: Any) -> None:
            self.ledger.note(value)
            if step_info().attempt < times:
                raise OSError("busy")
            # A pruned loop knows how to undo its iterations, but not which one this is.
            assert value[0] == expected[0], f"undo got {value}, the result of another step"

        return undo if times else None

    async def _flaky(self, at: At, number: int, fails: int, initial: float, undo: int) -> Any:
        async def body() -> Any:
            self.ledger.note()
            if step_info().attempt <= fails:
                raise OSError("busy")
            return [number, at.iteration]

        retry = Retry(max_attempts=9, initial=initial, max_delay=3600, jitter=0)
        return await self.ctx.step(f"flaky{number}", body, retry=retry, undo=self._undo(undo, [number]))

    async def _broken(self, at: At, number: int) -> Any:
        async def body() -> None:
            self.ledger.note()
            raise LookupError(f"no {number}")

        return await self.ctx.step(f"broken{number}", body, retry=Retry(max_attempts=9, retry_on=OSError))

    async def _exhaust(self, at: At, number: int) -> Any:
        async def body() -> None:
            self.ledger.note()
            raise OSError("busy")

        return await self.ctx.step(f"exhaust{number}", body, retry=Retry(max_attempts=3, initial=0.25, jitter=0))

    async def _sleep(self, at: At, seconds: float) -> str:
        began = self.ctx.now()
        await self.ctx.sleep(seconds)
        slept = (self.ctx.now() - began).total_seconds()
        assert slept >= seconds, f"it slept {slept} s instead of {seconds} s"
        return "slept"

    async def _receive(self, at: At, number: int, how: str) -> Any:
        if how == "either":
            self.ctx.send(self.ctx.run.id, f"right{number}", number)
            return list(await self.ctx.receive([f"left{number}", f"right{number}"]))
        if how == "self":
            self.ctx.send(self.ctx.run.id, f"mail{number}", [number, "self"])
        if number % 2:
            return await self.ctx.receive(f"mail{number}", timeout=FAR_SECONDS)
        message = await self.ctx.receive_message(f"mail{number}")
        message.reply(number)
        return message.payload

    async def _inbox(self, at: At, number: int, count: int) -> Any:
        name = self._unique("inbox", at, number)
        for each in range(count):
            self.ctx.send(self.ctx.run.id, name, [number, each])
        return [await self.ctx.receive(name) for _ in range(count)]

    async def _batch(self, at: At, number: int, count: int, size: int) -> Any:
        name = self._unique("batch", at, number)
        for each in range(count):
            self.ctx.send(self.ctx.run.id, name, [number, each])
        got: list[Any] = []
        while len(got) < count:
            batch = await self.ctx.receive_batch(name, size)
            assert 1 <= len(batch) <= size, f"{len(batch)} messages, though {size} were asked for"
            got += batch
        return got + await self.ctx.receive_batch(name, size, timeout=0.5)

    def _unique(self, what: str, at: At, number: int) -> str:
        """Return a name that is unique to its place: a message that a cancelled branch left must not be read here."""
        return f"{what}{number}-{digest(at.scope)}"

    async def _late(self, at: At, number: int, seconds: float) -> Any:
        return await self.ctx.receive(f"late{number}", timeout=seconds)

    async def _silence(self, at: At, number: int, seconds: float) -> Any:
        return await self.ctx.wait_event(f"silence{number}", timeout=seconds)

    async def _echo(self, at: At, number: int) -> Any:
        topic = f"{self._unique('queue' if number % 2 else 'echo', at, number)}.{self.ctx.run.id}"
        await self.ctx.emit(topic, [number, at.iteration])
        return await self.ctx.wait_event(topic)

    async def _news(self, at: At, number: int) -> Any:
        return await self.ctx.wait_event(f"news{number}", timeout=FAR_SECONDS)

    async def _version(self, at: At, number: int) -> Any:
        self.ctx.removed(f"removed{number}", "step")
        found = self.ctx.version(f"version{number}", number)
        await self.ctx.sleep(number % 2)
        return [found, await self.ctx.version(f"version{number}", number + 1)]

    async def _value(self, at: At, number: int) -> str:
        self.ctx.set_value(f"value{number}", at.iteration)
        return "set"

    async def _dice(self, at: At, number: int) -> str:
        thrown = [self.ctx.random.random(), str(self.ctx.uuid()), self.ctx.now().isoformat()]
        recorded = await self.ctx.step(f"dice{number}", lambda: thrown, retry=PATIENT)
        assert recorded == thrown, f"chance and time are {thrown}, and were {recorded}"
        return "the same"

    async def _raise(self, at: At, number: int) -> None:
        raise Boom(f"boom {number}")

    async def _rollback(self, at: At, number: int) -> None:
        raise Rollback(f"back {number}")

    async def _hang(self, at: At, number: int) -> Any:
        return await (self.ctx.wait_event(f"hang{number}") if number % 3 == 0 else self.ctx.receive(f"hang{number}"))

    async def _far(self, at: At, number: int) -> None:
        await self.ctx.sleep(FAR_SECONDS)

    # Sequences

    async def _seq(self, at: At, nodes: list[Node]) -> Any:
        return [await self.play(node, at) for node in nodes]

    async def _try(self, at: At, node: Node, handler: Node, catches_all: int) -> Any:
        try:
            return await self.play(node, at)
        except Exception as error:
            if not catches_all and not isinstance(error, (WorkflowError, Boom)):
                raise
            results = {str(key): each for key, each in error.results.items()} if isinstance(error, JoinFailed) else None
            caught = ["caught", wording(f"{type(error).__name__}: {error}"), results]
        return [caught, await self.play(handler, at)]

    async def _loop(self, at: At, number: int, count: int, keep: int, every: int, body: Node) -> Any:  # noqa: PLR0917 - parts of a node
        async def once(_: Context, state: list[int]) -> Continue[list[int]] | Break[list[int]]:
            iteration, total = state
            inside = At(at.run, f"{at.scope}loop{number}/~{iteration}/", iteration)
            total = digest(total, await self.play(body, inside))
            return Break([count, total]) if iteration == count else Continue([iteration + 1, total])

        return await self.ctx.loop(f"loop{number}", once, [1, 0], keep=keep, every=every)

    async def _when(self, at: At, iteration: int, node: Node, other: Node) -> Any:
        return await self.play(node if at.iteration == iteration else other, at)

    # Concurrency

    def _branches(self, at: At, name: str, branches: dict[str, Node]) -> dict[str, Callable[[Context], Awaitable[Any]]]:
        def branch(key: str, node: Node) -> Callable[[Context], Awaitable[Any]]:
            inside = At(at.run, f"{at.scope}{name}/{key}/", at.iteration)
            return lambda _: self.play(node, inside)

        return {key: branch(key, node) for key, node in branches.items()}

    async def _join(self, at: At, number: int, branches: dict[str, Node], is_fast: int) -> Any:
        name = f"join{number}"
        return await self.ctx.join(name, self._branches(at, name, branches), fail_fast=bool(is_fast))

    async def _race(self, at: At, number: int, branches: dict[str, Node]) -> Any:
        return list(await self.ctx.race(f"race{number}", self._branches(at, f"race{number}", branches)))

    async def _first(self, at: At, number: int, branches: dict[str, Node]) -> Any:
        return list(await self.ctx.first_settled(f"first{number}", self._branches(at, f"first{number}", branches)))

    async def _timers(self, at: At, number: int, how: str, timers: dict[str, list[Any]]) -> Any:
        def timer(key: str, seconds: float, is_good: int) -> Callable[[Context], Awaitable[float]]:
            async def branch(ctx: Context) -> float:
                await ctx.sleep(seconds)
                if not is_good:
                    raise Boom(f"late {key}")
                return seconds

            return branch

        branches = {key: timer(key, *about) for key, about in timers.items()}
        if how == "join":
            return await self.ctx.join(f"timers{number}", branches, fail_fast=True)
        operation = self.ctx.race if how == "race" else self.ctx.first_settled
        return list(await operation(f"timers{number}", branches))

    # Children

    def _payload(self, at: At, name: str, program: Program, peer: str = "") -> dict[str, Any]:
        return {"program": program, "path": at.child(name), "peer": peer}

    async def _call(self, at: At, number: int, program: Program, **options: Any) -> Any:
        name = options.pop("name", f"call{number}")
        return await self.ctx.call("program", self._payload(at, name, program), name=name, **options)

    async def _limit(self, at: At, number: int, program: Program, limit: str) -> Any:
        return await self._call(at, number, program, name=f"limit{number}", **{limit: LIMIT_SECONDS})

    async def _start(self, at: At, number: int, program: Program, node: Node, on_close: Any) -> Any:
        name = f"start{number}"
        child = await self.ctx.start("program", self._payload(at, name, program), name=name, on_close=on_close)
        for mail, count in mail_of(program).items():
            for each in range(count):
                child.send(f"mail{mail}", [mail, each + 1])
        found = await self.play(node, at)
        return [found, await child]

    async def _forget(self, at: At, number: int, program: Program, on_close: Any) -> str:
        name = f"forget{number}"
        self.ctx.start("program", self._payload(at, name, program), name=name, on_close=on_close)
        return "gone"

    async def _doomed(self, at: At, number: int, program: Program) -> Any:
        name = f"doomed{number}"
        child = await self.ctx.start("program", self._payload(at, name, program), name=name, on_close="cancel")
        child.cancel()
        return await child

    async def _map(self, at: At, number: int, programs: list[Program], limit: int) -> Any:
        name = f"map{number}"
        items = [(self._payload(at, f"{name}/{place}", program),) for place, program in enumerate(programs)]
        return await self.ctx.map("program", items, limit=limit or None, name=name)

    async def _pair(self, at: At, number: int, thrower: Program, catcher: Program) -> Any:
        names = (f"thrower{number}", f"catcher{number}")
        payload = self._payload(at, names[1], catcher)
        second = await self.ctx.start("program", payload, name=names[1], on_close="cancel")
        payload = self._payload(at, names[0], thrower, second.id)
        first = await self.ctx.start("program", payload, name=names[0], on_close="cancel")
        return [await first, await second]

    async def _throw(self, at: At) -> str:
        self.ctx.send(self.peer, "ball")
        return "thrown"

    async def _catch(self, at: At) -> str:
        await self.ctx.receive("ball")
        return "caught"


Make = Callable[[Context, EffectLedger, str], Performer]
"""Creates the performer of a run, from its context, the ledger and the id of its peer."""


def build(app: Registry, ledger: EffectLedger, *, strict: bool = True, make: Make = Performer) -> None:
    """Register the one workflow that executes programs, one part per generation."""

    @app.workflow("program", crash_limit=20, strict=strict)
    async def program(  # noqa: PLR0917 - what is handed on from one generation to the next
        ctx: Context, program: Program, path: str = "root", peer: str = "", number: int = 0, total: int = 0
    ) -> Any:
        performer = make(ctx, ledger, peer)
        play = performer.play_stubbornly if crc32(ctx.run.id.encode()) % 4 == 0 else performer.play
        value = await play(program["parts"][number], At(path))
        total = digest(total, value)
        if number + 1 < len(program["parts"]):
            return await ctx.continue_as_new(program, path, peer, number + 1, total)
        return [total, value]
