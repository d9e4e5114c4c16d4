"""A run that kills its workers: it is blocked before it has killed them all, and other runs are not affected."""

from __future__ import annotations

import sys

import pytest

from holdfast import RunFailed, RunHandle, RunState
from tests.process.app import deadly, deadly_twice, quick, stages
from tests.process.crew import Crew, Hand, on_every_store, step

INNOCENT = 12


async def staffed(crew: Crew, deaths: int) -> Hand:
    """Replace each worker that dies, a given number of times; return the last one, which lives."""
    for _ in range(deaths):
        assert await crew.exited(crew.launch(lease=crew.mortal_lease)) == 13
    return await crew.hire()


async def innocent(crew: Crew) -> list[RunHandle[list[str]]]:
    """Start runs that the same workers hold."""
    return await crew.hf.start_many(quick, [(crew.book, 3, 0.05)] * INNOCENT)


async def check_unharmed(crew: Crew, runs: list[RunHandle[list[str]]]) -> None:
    for run, result in zip(runs, await crew.results(runs), strict=True):
        assert len(set(result)) == 3
        assert (await run.info()).state is RunState.SUCCEEDED


@on_every_store
async def test_a_run_that_kills_three_workers_is_blocked(crew: Crew) -> None:
    run = await crew.hf.start(deadly, crew.book, 10)
    others = await innocent(crew)

    await staffed(crew, deaths=3)
    await crew.until("the run is blocked", lambda: is_blocked(run))

    await check_unharmed(crew, [*others, *await innocent(crew)])
    info = await run.info()
    assert info.error is not None
    assert info.error.type == "CrashLoop"
    assert info.ready_at is None  # it is not retried by itself
    assert "Blocked" in await run.explain()
    assert crew.executions(run, "die") == [0, 1, 2]
    sys.stdout.write(f"figure: blocked after 3, {2 * INNOCENT} others succeeded\n")


async def test_the_crash_limit_is_an_option_of_the_workflow(crew: Crew) -> None:
    run = await crew.hf.start(deadly_twice, crew.book, 10)
    others = await innocent(crew)

    await staffed(crew, deaths=2)
    await crew.until("the run is blocked", lambda: is_blocked(run))

    await check_unharmed(crew, others)
    assert crew.executions(run, "die") == [0, 1]


async def test_a_step_that_has_used_up_its_attempts_fails_without_another(crew: Crew) -> None:
    run = await crew.hf.start(deadly, crew.book, 2)
    others = await innocent(crew)

    await staffed(crew, deaths=2)
    with pytest.raises(RunFailed, match="WorkerLost"):
        await crew.result(run)

    await check_unharmed(crew, others)
    entry = await step(run, "die")
    assert (entry.state, entry.attempts) == ("failed", 2)
    assert crew.executions(run, "die") == [0, 1]


async def test_a_step_without_retry_is_never_started_a_second_time(crew: Crew) -> None:
    run = await crew.hf.start(deadly, crew.book, 1)

    await staffed(crew, deaths=1)
    with pytest.raises(RunFailed, match="WorkerLost"):
        await crew.result(run)

    assert crew.executions(run, "die") == [0]


async def test_a_suspect_that_has_made_progress_gives_way_to_the_next(crew: Crew) -> None:
    near, far = crew.gate("near"), crew.gate("far")
    runs = await crew.hf.start_many(stages, [(crew.book, [str(near), str(far)])] * 2)
    for _ in range(2):
        victim = await crew.hire(lease=crew.mortal_lease)
        for run in runs:
            await crew.begun(run, "stage", victim)
        victim.kill()
    last = await crew.hire()  # two workers have died with each of them: a worker takes only one of them at a time
    near.touch()

    for run in runs:
        await crew.begun(run, "stage#2", last)

    far.touch()
    assert [len(result) for result in await crew.results(runs)] == [2, 2]
    assert [(await step(run, "stage")).attempts for run in runs] == [3, 3]


async def is_blocked(run: RunHandle[str]) -> bool:
    return (await run.info()).state is RunState.BLOCKED
