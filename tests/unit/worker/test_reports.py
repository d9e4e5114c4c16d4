"""Reports: the last progress of a body is never lost, and frequent progress causes few writes."""

from __future__ import annotations

import threading

from holdfast.core.clock import SECOND
from holdfast.runner.step_info import StepInfo, TaskContext
from holdfast.testing.clock import VirtualClock
from holdfast.worker.run_driver import BEAT_EVERY, LISTEN_EVERY, Reports


class Desk:
    """A run whose bodies report progress, on a clock that the test moves, with the values written."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.reports = Reports(self.clock, self.clock.now())
        self.written: list[str] = []
        self.beats: list[int] = []
        self.rings = 0

    def publish(self, name: str, value: str) -> None:
        assert name == "progress"
        self.written.append(value)

    def beat(self, number: int) -> None:
        self.beats.append(number)

    def context(self) -> TaskContext:
        return TaskContext("run", 1, "task.v1", 1, self.rung)

    def rung(self, info: StepInfo) -> None:
        self.rings += 1
        self.hear(info)

    def hear(self, info: StepInfo) -> None:
        self.reports.record(info, self, self.hear)

    def let_pass(self, length: int) -> None:
        for callback in self.clock.pass_to(self.clock.now() + length):
            callback()


def test_the_first_value_is_taken_at_once_and_the_latest_after_an_interval() -> None:
    desk = Desk()
    ctx = desk.context()
    for number in range(1000):
        ctx.progress(number)
    assert desk.written == ["0"]
    assert desk.rings == 1
    desk.let_pass(LISTEN_EVERY)
    assert desk.written == ["0", "999"]
    assert desk.rings == 1


def test_after_a_silent_interval_the_next_value_is_taken_at_once() -> None:
    desk = Desk()
    ctx = desk.context()
    ctx.progress("a")
    desk.let_pass(LISTEN_EVERY)
    assert desk.clock.next_due() is None  # a silent body costs nothing
    ctx.progress("b")
    assert desk.written == ['"a"', '"b"']


def test_the_last_value_is_written_when_the_body_has_ended() -> None:
    desk = Desk()
    ctx = desk.context()
    ctx.progress(1)
    ctx.progress(2)
    desk.reports.forget(ctx)
    desk.reports.publish(ctx, desk)
    assert desk.written == ["1", "2"]
    assert desk.clock.next_due() is None


def test_null_is_progress_like_any_other_value() -> None:
    desk = Desk()
    ctx = desk.context()
    ctx.progress(None)
    assert desk.written == ["null"]


def test_heartbeats_are_counted_once_a_minute_from_the_claim_on() -> None:
    desk = Desk()
    ctx = desk.context()
    noted = []
    for _ in range(7 * 4):  # every 15 seconds, for seven minutes
        desk.let_pass(15 * SECOND)
        ctx.heartbeat()
        noted.append(len(desk.beats))
    assert BEAT_EVERY == 60 * SECOND
    assert noted[2:5] == [0, 1, 1]
    assert desk.beats == [1, 2, 3, 4, 5, 6, 7]


def test_no_last_value_is_lost_between_two_threads() -> None:
    """The listener reads values repeatedly while a body reports; in the end it has the last one."""
    ctx = TaskContext("run", 1, "task.v1", 1, lambda _: rung.set())
    rung, over = threading.Event(), threading.Event()
    heard: list[str] = []

    class Scribe:
        def publish(self, name: str, value: str) -> None:
            heard.append(value)

        def beat(self, number: int) -> None: ...

    def talk() -> None:
        for number in range(20_000):
            ctx.progress(number)
        over.set()

    talker = threading.Thread(target=talk)
    talker.start()
    while not (over.is_set() and not rung.is_set()):
        if not rung.wait(0.01):
            continue
        rung.clear()
        Reports.publish(ctx, Scribe())
        ctx.has_beaten = False
        while ctx.rearm():
            Reports.publish(ctx, Scribe())
            ctx.has_beaten = False
    talker.join()
    assert heard[-1] == "19999"
    assert heard == sorted(heard, key=int)


def test_a_value_that_is_reported_and_read_at_once_is_taken_once() -> None:
    desk = Desk()
    ctx = desk.context()
    ctx.progress(0)
    info = ctx
    desk.let_pass(LISTEN_EVERY - 1)
    ctx.progress(1)
    desk.let_pass(1)
    desk.hear(info)  # its notification was on the way, too
    assert desk.written == ["0", "1"]
    desk.let_pass(2 * LISTEN_EVERY)
    ctx.progress(2)
    assert desk.written == ["0", "1", "2"]
