"""Liveness: the runs of a killed worker are taken over at once; those of other workers keep their leases."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from holdfast.core.clock import SECOND
from holdfast.core.commands import RetireWorker
from holdfast.engine.explain import is_alive
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.liveness import PROBE_SECONDS, WorkerLocks, is_free, lock_path
from holdfast.testing.contract import SettableClock
from holdfast.testing.contract.arrange import (
    LEASE,
    OTHER_WORKER,
    WORKER,
    a_worker,
    an_id,
    claim,
    claimed_ids,
    facts_of,
    held,
    holding_of,
    renew,
    the_run,
)


def kill(store: SqliteStore) -> None:
    """Release the locks of a process, as the system does when it is killed."""
    store._locks.abandon()


def let_probe(store: SqliteStore) -> None:
    """Make the last probe appear a second old."""
    store._locks._probed_at -= PROBE_SECONDS


async def test_runs_of_a_killed_worker_are_taken_over_at_once_and_count_a_crash(
    store: SqliteStore, other: SqliteStore
) -> None:
    lease = await held(store)
    await renew(store, holding_of(lease))
    kill(store)

    claimed = await claim(other, worker=OTHER_WORKER)

    assert [(lease.run.worker, lease.run.crashes) for lease in claimed.leases] == [(OTHER_WORKER, 1)]
    assert (await renew(store, holding_of(lease))).verdicts[0].is_lost
    assert (await other.audit(an_id(1)))[-1].data["lost"] == WORKER


async def test_a_killed_worker_is_removed(store: SqliteStore, other: SqliteStore) -> None:
    await renew(store)
    kill(store)

    await claim(other, worker=OTHER_WORKER)

    assert await other.workers() == []
    assert list(store._files.workers.iterdir()) == []


async def test_a_killed_worker_is_seen_as_dead_before_any_other_claims(
    store: SqliteStore, other: SqliteStore, clock: SettableClock
) -> None:
    await renew(store, holding_of(await held(store)))
    other.renew(a_worker("alive"), [], LEASE)
    before = await other.workers()
    kill(store)

    after = await other.workers()

    assert [(worker.id, worker.is_dead) for worker in before] == [("alive", False), (WORKER, False)]
    assert [(worker.id, worker.is_dead) for worker in after] == [("alive", False), (WORKER, True)]
    assert [is_alive(worker, clock.now()) for worker in after] == [True, False]
    assert (await the_run(other)).worker == WORKER  # probing changes nothing


def test_probing_a_lock_does_not_disturb_others(tmp_path: Path) -> None:
    locks, path = WorkerLocks(tmp_path), lock_path(tmp_path, WORKER)
    locks.hold(WORKER)
    locks.abandon()

    with path.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)  # another process that probes
        assert is_free(path)


async def test_runs_of_a_living_worker_are_left_alone_and_probed_every_second(
    store: SqliteStore, other: SqliteStore, clock: SettableClock
) -> None:
    lease = await held(store)
    await renew(store, holding_of(lease))

    claimed = await claim(other, worker=OTHER_WORKER)

    assert claimed.leases == ()
    assert claimed.next_ready_at == clock.now() + SECOND
    assert len(await other.workers()) == 1


async def test_a_worker_that_never_renewed_keeps_its_lease(
    store: SqliteStore, other: SqliteStore, clock: SettableClock
) -> None:
    await held(store)

    claimed = await claim(other, worker=OTHER_WORKER)
    clock.advance(LEASE)

    assert (claimed.leases, claimed.next_ready_at) == ((), clock.now())
    assert await claimed_ids(other, worker=OTHER_WORKER) == [an_id(1)]


async def test_a_worker_that_retired_keeps_its_lease(store: SqliteStore, other: SqliteStore) -> None:
    lease = await held(store)
    await renew(store, holding_of(lease))

    await store.apply(RetireWorker(worker_id=WORKER))

    assert await claimed_ids(other, worker=OTHER_WORKER) == []
    assert list(store._files.workers.iterdir()) == []


async def test_workers_of_a_closed_store_keep_their_leases(
    clock: SettableClock, other: SqliteStore, tmp_path: Path
) -> None:
    closed = SqliteStore(tmp_path / "runs.db", clock=clock)
    await closed.open()
    await renew(closed, holding_of(await held(closed)))

    await closed.close()

    assert await claimed_ids(other, worker=OTHER_WORKER) == []


async def test_others_are_probed_once_a_second(store: SqliteStore, other: SqliteStore) -> None:
    await renew(store, holding_of(await held(store)))
    await claim(other, worker=OTHER_WORKER)
    kill(store)

    too_early = await claimed_ids(other, worker=OTHER_WORKER)
    let_probe(other)

    assert too_early == []
    assert await claimed_ids(other, worker=OTHER_WORKER) == [an_id(1)]


async def test_a_worker_that_starts_again_under_its_old_name_gets_its_runs_back(
    store: SqliteStore, other: SqliteStore
) -> None:
    await renew(store, holding_of(await held(store)))
    kill(store)

    assert await claimed_ids(other, worker=WORKER) == [an_id(1)]
    await renew(other)
    assert [worker.id for worker in await other.workers()] == [WORKER]


async def test_a_takeover_that_is_not_committed_is_repeated(
    store: SqliteStore, other: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await renew(store, holding_of(await held(store)))
    kill(store)
    monkeypatch.setattr("holdfast.stores.sqlite.claims._chosen", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await claim(other, worker=OTHER_WORKER)
    monkeypatch.undo()
    let_probe(other)

    assert await claimed_ids(other, worker=OTHER_WORKER) == [an_id(1)]
    assert (await facts_of(other))[-1] == "claimed"


async def test_the_doctor_distinguishes_a_killed_worker_from_a_silent_one(
    store: SqliteStore, other: SqliteStore, clock: SettableClock
) -> None:
    store.renew(a_worker("killed"), [], LEASE)
    kill(store)
    store.renew(a_worker("silent"), [], LEASE)
    clock.advance(600 * SECOND)
    other.renew(a_worker("alive"), [], LEASE)

    texts = [finding.text for finding in await other.check() if finding.level == "warning"]

    assert any("killed" in text and "was killed" in text for text in texts)
    assert any("silent" in text and "600 s ago: it is running but hangs" in text for text in texts)
    assert not any("alive" in text for text in texts)


def test_any_worker_id_has_its_own_file(tmp_path: Path) -> None:
    names = ["plain", "a/../b", "sp ace", "ünïcode", "x" * 500, "x" * 501, "."]
    locks = WorkerLocks(tmp_path)

    for name in names:
        locks.hold(name)
        locks.hold(name)

    assert len(list(tmp_path.iterdir())) == len(names)
    assert not any(is_free(lock_path(tmp_path, name)) for name in names)
    locks.release_all()
    assert list(tmp_path.iterdir()) == []


def test_two_processes_with_one_worker_id_do_not_block_each_other_forever(tmp_path: Path) -> None:
    first, second = WorkerLocks(tmp_path), WorkerLocks(tmp_path)
    first.hold("same")

    second.hold("same")
    second.release_all()

    assert not is_free(lock_path(tmp_path, "same"))
    first.release_all()


async def test_a_run_that_was_taken_over_is_not_listed_under_the_dead_worker(
    store: SqliteStore, other: SqliteStore
) -> None:
    await renew(store, holding_of(await held(store)))
    kill(store)
    await claim(other, worker=OTHER_WORKER)

    assert (await the_run(other)).worker == OTHER_WORKER
