"""A killed worker: another one continues the interrupted step; on SQLite before the lease is over."""

from __future__ import annotations

from holdfast import RunState
from holdfast.app import session_of
from tests.process.app import story
from tests.process.crew import Crew, facts, marks, on_every_store, step


@on_every_store
async def test_a_new_worker_resumes_and_repeats_only_the_interrupted_step(crew: Crew) -> None:
    run = await crew.hf.start(story, crew.book, str(crew.gate()))
    killed = await crew.hire(lease=crew.mortal_lease)
    await crew.begun(run, "middle", killed)
    killed.kill()
    crew.gate().touch()
    heir = await crew.hire()

    result = await crew.result(run)

    assert crew.executions(run, "first") == [killed.number]
    assert crew.executions(run, "middle") == [killed.number, heir.number]
    assert crew.executions(run, "last") == [heir.number]
    assert result == list((await marks(run)).values())
    (_, again) = await facts(run, "claimed")
    assert again.data["lost"] == killed.worker_id
    assert again.data["worker"] == heir.worker_id


async def test_the_crash_counts_as_an_attempt_of_the_interrupted_step(crew: Crew) -> None:
    run = await crew.hf.start(story, crew.book, str(crew.gate()))
    killed = await crew.hire(lease=crew.mortal_lease)
    await crew.begun(run, "middle", killed)
    killed.kill()
    crew.gate().touch()
    await crew.hire()
    await crew.result(run)

    assert [(await step(run, location)).attempts for location in ("first", "middle", "last")] == [1, 2, 1]
    assert [deed.attempt for deed in crew.ledger.deeds("began", run.id, "middle")] == [1, 2]
    assert (await run.info()).attempt == 2
    (_, again) = await facts(run, "claimed")
    assert again.data["crashes"] == 1


@on_every_store
async def test_an_idle_worker_takes_over(crew: Crew) -> None:
    run = await crew.hf.start(story, crew.book, str(crew.gate()))
    killed = await crew.hire(lease=crew.mortal_lease)
    await crew.begun(run, "middle", killed)
    heir = await crew.hire()
    killed.kill()
    crew.gate().touch()

    await crew.result(run)

    assert crew.executions(run, "middle") == [killed.number, heir.number]
    left = [heir.pid] if crew.hears_of_deaths else [killed.pid, heir.pid]
    assert [worker.pid for worker in await session_of(crew.hf).store.workers()] == left
    assert (await run.info()).state is RunState.SUCCEEDED
