"""Privacy: other users of the machine can neither read payloads nor hold the write lock."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast, InvalidRequest
from holdfast.app import session_of
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.contract.arrange import an_intent


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Return the permissions of everything below a folder."""
    return {str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode)) for path in sorted(folder.rglob("*"))}


async def used(store: SqliteStore, folder: Path) -> dict[str, str]:
    """Use a store in all ways that create files, and return the files that exist while it is open."""
    await store.open()
    await store.create([an_intent(payload='{"card":"4711"}')])
    store._locks.hold("worker-1")
    found = modes(folder)
    await store.close()
    return found


async def test_all_files_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    found = await used(SqliteStore(tmp_path / "runs.db"), tmp_path)

    assert {"runs.db", "runs.db-wal", "runs.db-holdfast/write.lock", "runs.db-holdfast/hint"} <= found.keys()
    assert any(name.startswith("runs.db-holdfast/workers/") for name in found)
    directories = {"runs.db-holdfast", "runs.db-holdfast/workers"}
    assert {name: mode for name, mode in found.items() if name in directories} == dict.fromkeys(directories, "0o700")
    assert {mode for name, mode in found.items() if name not in directories} == {"0o600"}


async def test_a_mode_gives_the_group_access_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db?mode=0660") as hf:
        store = session_of(hf).store
        assert isinstance(store, SqliteStore)
        found = await used(store, tmp_path)

    directories = {"runs.db-holdfast", "runs.db-holdfast/workers"}
    assert {mode for name, mode in found.items() if name in directories} == {"0o770"}
    assert {mode for name, mode in found.items() if name not in directories} == {"0o660"}


async def test_a_file_behind_a_link_is_private_too(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "runs.db").symlink_to(tmp_path / "there" / "runs.db")
    before = os.umask(0)
    try:
        await used(SqliteStore(tmp_path / "runs.db"), tmp_path)
    finally:
        os.umask(before)

    assert modes(tmp_path / "there")["runs.db"] == "0o600"


async def test_a_file_that_exists_keeps_its_mode_and_the_doctor_says_so(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.touch()
    path.chmod(0o644)
    store = SqliteStore(path)
    await store.open()
    findings = {finding.subject: finding for finding in await store.check()}
    await store.close()

    assert modes(tmp_path)["runs.db"] == "0o644"
    assert findings["privacy"].level == "warning"
    assert str(path) in findings["privacy"].text
    assert "chmod o=" in findings["privacy"].text


async def test_the_doctor_finds_nothing_wrong_with_private_files(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    findings = {finding.subject: finding for finding in await store.check()}
    await store.close()

    assert findings["privacy"].level == "ok"


@pytest.mark.parametrize("mode", ["", "777", "0700", "0400", "640x", "rw-r-----", "0o640"])
def test_an_invalid_mode_is_refused(mode: str) -> None:
    with pytest.raises(InvalidRequest, match=r"mode=.*such as 0600, 0640 or 0660"):
        session_of(Holdfast(f"sqlite:///runs.db?mode={mode}")).store  # noqa: B018 - it is made when it is first looked at
