"""Accepted means on disk: whenever the power fails, the file is intact and no accepted write is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.core.checkpoint import Hold
from holdfast.core.commands import SendMessages
from holdfast.stores.sqlite import SqliteStore, writer
from holdfast.testing.contract.arrange import a_message, a_step, an_id, an_intent, checkpoint_for, held, write
from tests.unit.stores.power_cut import Cut, Disk, Sync

RUNS = 4


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """The disk that SQLite writes to during a test."""
    with Disk(tmp_path).in_use() as disk:
        yield disk


async def live(disk: Disk, path: Path) -> None:
    """Operations of a process on its store, from the first opening to the end. Each answer is a promise."""
    store = SqliteStore(path)
    await store.open()
    for number in range(1, RUNS):
        await store.create([an_intent(number)])
        disk.promise("select count(*) from run where id = ?", an_id(number))
    lease = await held(store, RUNS)
    await write(store, checkpoint_for(lease, Hold(), entries=(a_step("charge"),)))
    disk.promise("select count(*) from entry where run_id = ? and location = 'charge'", lease.run.id)
    await store.apply(SendMessages(messages=[a_message(RUNS, id="m1")]))
    disk.promise("select count(*) from inbox where run_id = ?", lease.run.id)
    with store.database.connection() as connection:
        connection.execute("create table mine (id integer)")
        connection.execute("insert into mine values (1)")
    disk.promise("select count(*) from mine")
    await store.close()


def broken(disk: Disk, cut: Cut, folder: Path) -> list[str]:
    """Return what is wrong with the files after a power cut, as the next process finds them."""
    folder.mkdir(parents=True)
    for path, content in cut.images.items():
        (folder / path.name).write_bytes(content)
    connection = apsw.Connection(str(folder / "runs.db"), vfs=disk.base)
    try:
        if (state := connection.execute("pragma integrity_check").get) != "ok":
            return [state]
        return [one.question for one in cut.promised if connection.execute(one.question, one.values).get != 1]
    except apsw.Error as error:
        return [str(error)]
    finally:
        connection.close()


async def test_no_accepted_write_is_lost_whenever_the_power_fails(
    disk: Disk, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "WAL_PAGES", 20)  # so that the log is copied back in between
    await live(disk, path)

    cuts = list(disk.cuts())
    assert len(cuts[-1].promised) == RUNS + 2
    for number, cut in enumerate(cuts):
        wrong = broken(disk, cut, tmp_path / "cuts" / str(number))
        assert wrong == [], f"cut {number} of {len(cuts)}: {cut.moment}"


async def test_each_write_is_flushed_past_the_cache_of_the_drive(disk: Disk, path: Path) -> None:
    """Only macOS differs: an ordinary flush ends in the cache of the drive, which loses it."""
    await live(disk, path)

    syncs = [one for one in disk.journal if isinstance(one, Sync)]
    assert len(syncs) > RUNS
    assert [one for one in syncs if not one.is_full] == []
