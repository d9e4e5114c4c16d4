"""OpenTelemetry: one trace from the start to the run, its steps and its children, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import Context, Holdfast, InvalidRequest, Registry, Retry, RunFailed
from holdfast.app import session_of
from holdfast.core.ports import Report
from holdfast.otel import instrument
from holdfast.stores.memory import MemoryStore
from holdfast.telemetry.metrics import METRICS
from holdfast.testing.harness import Harness
from tests.stage import Stage

SECRET = "hunter2"  # noqa: S105 - what must not appear anywhere


class Telescope(NamedTuple):
    """The exported spans and metrics."""

    exporter: InMemorySpanExporter
    traces: TracerProvider
    reader: InMemoryMetricReader
    meters: MeterProvider

    def instrument(self, h: Harness) -> None:
        instrument(h, tracer_provider=self.traces, meter_provider=self.meters)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def the(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found


@pytest.fixture
def telescope() -> Iterator[Telescope]:
    """An SDK that keeps everything in memory."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    traces, meters = TracerProvider(shutdown_on_exit=False), MeterProvider([reader], shutdown_on_exit=False)
    traces.add_span_processor(SimpleSpanProcessor(exporter))
    yield Telescope(exporter, traces, reader, meters)
    traces.shutdown()
    meters.shutdown()


def app(telescope: Telescope) -> Registry:
    found = Registry()
    tracer = telescope.traces.get_tracer("mine")

    async def charge(value: str) -> str:
        with tracer.start_as_current_span("bank"):
            await asyncio.sleep(0)
        return value

    def pack(value: str) -> str:
        with tracer.start_as_current_span("warehouse"):
            return value

    @found.workflow("order.v1")
    async def order(ctx: Context, value: str) -> str:
        await ctx.step("charge", charge, value)
        await ctx.step("pack", pack, value)
        await ctx.sleep(3600)
        answer: str = await ctx.call("label.v1", {"value": value})
        return answer

    @found.task("label.v1")
    async def label(value: str) -> str:
        return await charge(value)

    @found.workflow("flaky.v1")
    async def flaky(ctx: Context, value: str) -> None:
        def refuse() -> None:
            raise ConnectionError(value)

        async def body(ctx: Context, state: int) -> None:
            await ctx.step("charge", refuse, retry=Retry(max_attempts=2, initial=0.01))

        await ctx.loop("poll", body, 0)  # type: ignore[arg-type]  # it never comes back

    return found


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    found: int = span.context.span_id
    return found


@pytest.mark.every_store
async def test_one_trace_goes_from_the_caller_to_the_steps_of_a_child(stage: Stage, telescope: Telescope) -> None:
    async with stage.harness(app(telescope)) as h:
        telescope.instrument(h)
        with telescope.traces.get_tracer("mine").start_as_current_span("request"):
            run = await h.start("order.v1", {"value": SECRET})
        await h.advance(timedelta(hours=2))
        assert await run.result() == SECRET

    request, start = telescope.the("request"), telescope.the("start order.v1")
    first, *others = telescope.named("run order.v1")
    child = telescope.the("run label.v1")
    assert {span.context.trace_id for span in telescope.spans if span.context} == {request.context.trace_id}
    assert parent_of(start) == id_of(request)
    assert {parent_of(turn) for turn in (first, *others)} == {id_of(start)}
    charge, pack = telescope.the("step charge"), telescope.the("step pack")
    assert parent_of(charge) == parent_of(pack) == id_of(first)
    assert parent_of(child) in {id_of(turn) for turn in others}
    labelled = telescope.the("step label.v1")
    assert parent_of(labelled) == id_of(child)
    assert {parent_of(span) for span in telescope.named("bank")} == {id_of(charge), id_of(labelled)}
    assert parent_of(telescope.the("warehouse")) == id_of(pack)
    assert SECRET not in "".join(span.to_json() for span in telescope.spans)


async def test_another_worker_continues_the_trace_and_repeats_no_span(stage: Stage, telescope: Telescope) -> None:
    async with stage.harness(app(telescope)) as h:
        telescope.instrument(h)
        run = await h.start("order.v1", {"value": "x"})
        await h.settle()
    before = {span.name for span in telescope.spans}
    trace_id = telescope.the("start order.v1").context.trace_id
    telescope.exporter.clear()

    async with stage.harness(app(telescope)) as h:
        telescope.instrument(h)
        await h.advance(timedelta(hours=2))
        await h.run(run.id).result()
        await h.settle()

    assert "step charge" in before
    assert not telescope.named("step charge")
    assert {span.context.trace_id for span in telescope.spans if span.context} == {trace_id}


async def test_children_continue_a_trace_through_a_worker_that_is_not_instrumented(
    stage: Stage, telescope: Telescope
) -> None:
    async with stage.harness(app(telescope)) as h:
        await h.stop_worker()
        telescope.instrument(h)
        run = await h.start("order.v1", {"value": "x"})
    async with stage.harness(app(telescope)) as h:
        await h.advance(timedelta(hours=2))
        await h.run(run.id).result()
        await h.settle()
        (child,) = [one async for one in h.list(type="label.v1")]
        details = await session_of(h).store.get(child.id)

    assert details is not None
    trace_id = telescope.the("start order.v1").context.trace_id
    assert (details.run.options.trace or "").split("-")[1] == f"{trace_id:032x}"


async def test_all_turns_of_a_run_that_was_started_without_a_trace_share_one(
    stage: Stage, telescope: Telescope
) -> None:
    async with stage.harness(app(telescope)) as h:
        run = await h.start("order.v1", {"value": "x"})
        telescope.instrument(h)
        await h.advance(timedelta(hours=2))
        await run.result()
        await h.settle()

    turns = telescope.named("run order.v1")
    assert len(turns) >= 2
    assert len({turn.context.trace_id for turn in turns if turn.context}) == 1


async def test_a_failure_is_an_error_without_its_text(stage: Stage, telescope: Telescope) -> None:
    async with stage.harness(app(telescope)) as h:
        telescope.instrument(h)
        with pytest.raises(RunFailed):
            await h.execute("flaky.v1", {"value": SECRET})

    attempts = telescope.named("step poll/~/charge")
    assert [span.attributes["holdfast.attempt"] for span in attempts if span.attributes] == [1, 2]
    assert {(span.status.status_code, span.status.description) for span in attempts} == {
        (trace.StatusCode.ERROR, "ConnectionError")
    }
    last = telescope.named("run flaky.v1")[-1]
    assert last.status.status_code is trace.StatusCode.ERROR
    assert last.attributes is not None
    assert last.attributes["holdfast.state"] == "failed"
    assert SECRET not in "".join(span.to_json() for span in telescope.spans)


async def test_an_abandoned_body_ends_its_span(stage: Stage, telescope: Telescope) -> None:
    found = Registry()

    @found.workflow("endless.v1")
    async def endless(ctx: Context) -> None:
        await ctx.step("wait", asyncio.Event().wait)

    async with stage.harness(found, has_endless_bodies=True) as h:
        telescope.instrument(h)
        run = await h.start(endless)
        await h.settle()
        await run.cancel()
        await h.settle()

    assert (telescope.the("step wait").attributes or {})["holdfast.abandoned"] is True
    assert telescope.named("run endless.v1")


async def test_metrics_have_the_names_of_the_catalogue(stage: Stage, telescope: Telescope) -> None:
    async with stage.harness(app(telescope)) as h:
        telescope.instrument(h)
        await h.start("unknown.v1")
        run = await h.start("order.v1", {"value": "x"})
        await h.advance(timedelta(hours=2))
        await run.result()
        await h.settle()
        telescope.reader.get_metrics_data()  # triggers the metrics that are read from the store
        await h.settle()
        while not any(metric.name == "holdfast_queue_depth" for metric in _seen(telescope)):
            await asyncio.sleep(0.01)
        seen = {metric.name: metric for metric in _seen(telescope)}

    assert set(seen) <= {metric.name for metric in METRICS}
    started = {point.attributes["type"]: point.value for point in seen["holdfast_runs_started_total"].data.data_points}
    assert started == {"unknown.v1": 1, "order.v1": 1, "label.v1": 1}
    assert seen["holdfast_step_duration_seconds"].unit == "s"
    depths = {point.attributes["type"]: point.value for point in seen["holdfast_queue_depth"].data.data_points}
    assert depths["unknown.v1"] == 1


def _seen(telescope: Telescope) -> list[Any]:
    data = telescope.reader.get_metrics_data()
    return [] if data is None else [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]


async def test_instrumentation_can_be_removed_but_not_applied_twice(telescope: Telescope) -> None:
    async with Harness(app(telescope)) as h:
        undo = instrument(h, tracer_provider=telescope.traces, meter_provider=telescope.meters)
        with pytest.raises(InvalidRequest, match="already"):
            telescope.instrument(h)
        undo()
        await h.start("label.v1", {"value": "x"})
        await h.settle()

    assert not telescope.named("run label.v1")


@pytest.mark.parametrize("garbage", ["", "00-x", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\x00", "💥"])
async def test_an_unreadable_trace_is_ignored(telescope: Telescope, garbage: str) -> None:
    from holdfast.otel import _context_of

    assert _context_of(garbage, "r1") == _context_of(None, "r1") or (
        trace.get_current_span(_context_of(garbage, "r1")).get_span_context()
        == trace.get_current_span(_context_of(None, "r1")).get_span_context()
    )


async def test_an_export_does_not_open_a_closed_object(telescope: Telescope) -> None:
    class CountingStore(MemoryStore):
        opened = 0

        async def open(self, migrate: Report | None = None) -> None:
            self.opened += 1
            await super().open(migrate)

    store = CountingStore()
    hf = Holdfast("memory://", store=store)
    instrument(hf, tracer_provider=telescope.traces, meter_provider=telescope.meters)
    await hf.start("a.v1", {})
    await hf.close()

    telescope.reader.get_metrics_data()
    for _ in range(20):
        await asyncio.sleep(0)

    assert store.opened == 1
