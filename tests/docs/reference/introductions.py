"""What a page of the reference says before its entries. Blocks of Python run as tests, as everywhere in the docs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.core.news import SIGNALS

_TASKS = (
    ("define workflows, steps and tasks", "hf.workflow", "hf.step", "hf.task"),
    ("declare a list of steps", "hf.pipeline", "Pipeline"),
    ("retry a step, limit its time", "Retry", "StepKeywords"),
    ("execute runs", "hf.worker", "Worker"),
    ("start a run, once for each key", "hf.start", "StartOptions"),
    ("pass arguments by name", "workflow.bind", "Call"),
    ("start many runs at once", "hf.start_many"),
    ("wait for a result", "run.result", "hf.execute"),
    ("look at a run", "run.info", "run.history", "run.explain"),
    ("send a run a message, and wait for one", "run.send", "run.request", "ctx.receive"),
    ("publish events, use a work queue", "hf.emit", "ctx.wait_event", "hf.topics.set"),
    ("sleep, wait with a timeout", "ctx.sleep", "WaitTimeout"),
    ("start child runs", "ctx.call", "ctx.start", "ctx.map"),
    ("find runs, page through them", "hf.list", "Filter", "RunInfo"),
    ("cancel, pause, retry one run", "run.cancel", "run.pause", "run.recover"),
    ("cancel, pause, retry many runs", "hf.runs", "runs.recover"),
    ("start runs by cron or interval", "hf.schedules.put", "hf.schedule", "ScheduleOptions"),
    ("register a workflow that is text", "hf.flows.register", "FlowRefused"),
    ("limit or disable a type", "hf.types.set", "hf.types.disable"),
    ("deliver again what was not delivered", "hf.dead_letters.replay"),
    ("write your own tables exactly once", "ctx.tx", "hf.start_in"),
    ("use it from code without `async`", "hf.sync", "SyncContext"),
    ("observe runs", "hf.on", "hf.metrics"),
    ("test a workflow", "Harness", "TurnDriver", "simulate"),
)

_INDEX = """\
Every public name with its signature and docstring. To learn how things fit together, read the
[documentation](../README.md).

## How to read the signatures

- `await` stands in front of what has to be awaited.
- Several signatures in one block are alternatives.
- `**options: StartOptions` stands for the keywords that the entry of `StartOptions` lists; likewise for other options.
- Parameters before `/` cannot be passed by name. Those after `*` must be.
- `Startable[R]` is a workflow, a task or a bound call that returns an `R`. `R`, `T` and the like stand for your types.
- A time of type `float | timedelta` is in seconds or a `timedelta`.

## What you may want to do"""

_PAGES = {
    "holdfast": """\
```python
from holdfast import Context, Holdfast, Retry

hf = Holdfast()


@hf.step(retry=Retry(max_attempts=5), timeout=30)
async def charge(order: str) -> str:
    return f"paid {order}"


@hf.workflow("shop.checkout.v1")
async def checkout(ctx: Context, order: str) -> str:
    return await charge(order)


async with hf, hf.worker():
    print(await hf.execute(checkout, "A-1", key="order-A-1"))
```

```text
paid A-1
```""",
    "run-handles": """\
```python
from holdfast import Context, Holdfast

hf = Holdfast()


@hf.workflow
async def approval(ctx: Context, what: str) -> str:
    return f"{what}: {await ctx.receive('decision')}"


async with hf, hf.worker():
    run = await hf.start(approval, "the holidays", key="holidays")
    await hf.run(key="holidays").send("decision", "yes")
    print(await run.result(timeout=10))
```

```text
the holidays: yes
```""",
    "starting": """\
```python
from holdfast import Holdfast

hf = Holdfast()


@hf.task("shop.pack.v1")
async def pack(order: str, fragile: bool = False) -> str:
    return f"{order}, fragile" if fragile else order


async with hf, hf.worker():
    run = await hf.start(pack, "A-1", key="A-1", tags={"shop": "north"})  # by position
    again = await hf.start(pack, "A-1", key="A-1")  # the same run
    fragile = await hf.start(pack.bind(order="A-2", fragile=True), delay=0.1)  # by name
    many = await hf.start_many(pack, [(f"B-{number}",) for number in range(100)])
    print(await fragile.result(), again.created, len(many))
    print([info.key async for info in hf.list(type="shop.*", tags={"shop": "north"})])
```

```text
A-2, fragile False 100
['A-1']
```""",
    "run-controls": """\
The controls of many runs at once are those of a [selection](selections.md).

```python
from holdfast import Context, Holdfast

hf = Holdfast()


@hf.workflow
async def waiting(ctx: Context) -> str:
    return await ctx.receive("go")


async with hf:
    run = await hf.start(waiting)
    print(await run.pause("stock-taking", by="ada"), await run.resume(by="ada"))
    print(await run.cancel("not needed", by="ada"), await run.cancel())
```

```text
True True
True False
```""",
    "retry": """\
```python
from datetime import timedelta

from holdfast import Context, Holdfast, Retry

hf = Holdfast()
careful = Retry(max_attempts=3, initial=0.01, max_delay=timedelta(minutes=1), give_up_on=(PermissionError, KeyError))
attempts = []


@hf.step(retry=careful)
async def fetch(name: str) -> str:
    attempts.append(name)
    if len(attempts) < 3:
        raise ConnectionError("no answer")
    return f"{name} after {len(attempts)} attempts"


@hf.workflow
async def download(ctx: Context, name: str) -> str:
    return await fetch(name)


async with hf, hf.worker():
    print(await hf.execute(download, "cats.mp4"))
```

```text
cats.mp4 after 3 attempts
```""",
    "selections": """\
```python
from holdfast import Holdfast

hf = Holdfast()

async with hf:
    report = await hf.runs(state="failed", type="shop.*").recover(by="ada", dry_run=True)
    print(report.changed, report.skipped, report.reasons)
```

```text
0 0 {}
```""",
    "flows": """\
[Flows](../flows.md) explains what flows are, and [the language of flows](../flows-reference.md) has every construct.

```python
from holdfast import FlowRefused, Holdfast

hf = Holdfast()
text = '''
"Greet a person."


async def main(name: str):
    return f"hello {name}"
'''

async with hf, hf.worker():
    flow = await hf.flows.register(text, type="greet.v1", by="ada")
    print(flow.version[:12], flow.is_new, flow.description)
    print(await hf.execute("greet.v1", {"name": "bob"}))
    try:
        await hf.flows.register("def main():\\n    print(x)\\n", type="greet.v1")
    except FlowRefused as refused:
        print([mistake.message for mistake in refused.mistakes])
```

```text
… True Greet a person.
hello bob
['main must be async', 'unknown function print', 'unknown name x']
```""",
    "topics-and-types": """\
```python
from holdfast import Holdfast

hf = Holdfast()

async with hf:
    await hf.types.set("billing.invoice.v1", concurrency=5, rate=(100, 60))
    await hf.topics.set("parcels", mode="queue", max_pending=1_000)
    print([(one.name, one.mode) async for one in hf.topics.list()])
```

```text
[('parcels', 'queue')]
```""",
    "schedules": """\
```python
from holdfast import Holdfast

hf = Holdfast()


@hf.task("report.v1")
async def report(name: str) -> str:
    return name


async with hf:
    await hf.schedules.put("nightly", report, "sales", cron="0 3 * * *", zone="Europe/Paris")
    print([time.hour for time in await hf.schedules.next("nightly", 2)])
```

```text
[3, 3]
```""",
    "context": """\
```python
from holdfast import Context, Holdfast

hf = Holdfast()


def pack(order: str) -> str:
    return f"parcel for {order}"


@hf.workflow
async def ship(ctx: Context, order: str) -> str:
    parcel = await ctx.step("pack", pack, order, timeout=30)
    await ctx.set_value("progress", "packed")
    ctx.logger.info("packed %s at %s", parcel, ctx.now())
    return parcel


async with hf, hf.worker():
    print(await hf.execute(ship, "A-1"))
```

```text
parcel for A-1
```""",
    "waiting": """\
```python
from holdfast import Context, Holdfast, WaitTimeout

hf = Holdfast()


@hf.workflow
async def order(ctx: Context, number: int) -> str:
    await ctx.sleep(0.1)
    paid = await ctx.wait_event(f"paid:{number}", type=int)
    try:
        comment = await ctx.receive("comment", timeout=0.1)
    except WaitTimeout:
        comment = "no comment"
    return f"{paid} cents, {comment}"


async with hf, hf.worker():
    run = await hf.start(order, 17)
    await hf.emit("paid:17", 1_999)
    print(await run.result(timeout=60))
```

```text
1999 cents, no comment
```""",
    "sync": """\
The members take the same arguments as those of [`hf`](holdfast.md#holdfast). They block instead of being awaited.

```python
import asyncio
import threading

from holdfast import Holdfast

hf = Holdfast()


@hf.task
def double(number: int) -> int:
    return 2 * number


def view() -> None:  # a thread without an event loop, as in Django or Flask
    with hf.sync:
        print(hf.sync.start(double, 21).result(timeout=60))


async with hf, hf.worker():
    await asyncio.to_thread(view)
```

```text
42
```""",
    "testing": """\
For pytest, holdfast installs three fixtures. `harness` is an open `Harness`; `harness.include(registry)` adds your
workflows. `make_harness(hf)` makes one with the arguments of `Harness`, to be opened with `async with`. `simulate` is
the function below.

```python
from holdfast import Context, Holdfast
from holdfast.testing import Harness

hf = Holdfast()


@hf.workflow
async def reminder(ctx: Context) -> str:
    await ctx.sleep(30 * 86_400)
    return await ctx.step("mail", lambda: "sent")


async with Harness(hf) as h:
    h.stub("mail", returns="stubbed")
    print(await h.execute(reminder), h.executed)
```

```text
stubbed ['mail']
```""",
    "errors": """\
Errors that programs see which start, find and control runs. Those of workflow code are
[on a page of their own](workflow-errors.md).""",
    "workflow-errors": """\
Errors that workflow code and step bodies see, and those that you raise there. The [tree](errors.md) has all errors.""",
}


def of(file: str) -> str | None:
    """The introduction of a page."""
    if file == "signals":
        named = "\n".join(f"- `{name}`: {when}" for name, when in SIGNALS.items())
        families = "`run.*`, `step.*` and `worker.*`"
        return f"[`hf.on`](holdfast.md#hfon) takes these names, and the families {families}:\n\n{named}"
    return _PAGES.get(file)


def index(links: Mapping[str, str]) -> str:
    """The introduction of the index page."""
    return f"{_INDEX}\n\n" + "\n".join(_rows(links))


def _rows(links: Mapping[str, str]) -> Iterator[str]:
    yield "| to | see |"
    yield "| --- | --- |"
    for task, *names in _TASKS:
        yield f"| {task} | {', '.join(f'[`{name}`]({links[name]})' for name in names)} |"
