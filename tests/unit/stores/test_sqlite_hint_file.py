"""The hint file: other processes read posted hints correctly or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.model import new_id
from holdfast.core.news import Hint, News
from holdfast.stores.sqlite.files import Files
from holdfast.stores.sqlite.hints import NOTE_BYTES, NOTES, HintFile, OwnNotes, mark

LOOK = Hint(is_elsewhere=True)
HINT = Hint(
    ready=frozenset({"order"}),
    arrived=frozenset({"a"}),
    ended=frozenset({"b", "c"}),
    taken=frozenset({"d"}),
    replied=frozenset({"ë"}),
    is_rescheduled=True,
)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files(tmp_path / "runs.db")
    files.make()
    return files


def board(files: Files) -> HintFile:
    board = HintFile(files, OwnNotes())
    board.open()
    return board


def test_posted_hints_are_read_unchanged_by_others(files: Files) -> None:
    one, two = board(files), board(files)
    one.post(HINT)
    one.post(Hint(ready=frozenset({"invoice"})))

    assert two.heading().count == 2
    assert two.news(1, 2) == Hint(ready=frozenset({"invoice"}), is_foreign=True)
    both = two.news(0, 2)
    assert both is not None
    assert (both.ready, both.ended, both.is_rescheduled) == (frozenset({"order", "invoice"}), HINT.ended, True)


def test_a_process_does_not_read_its_own_hints(files: Files) -> None:
    one, two = board(files), board(files)
    one.post(HINT)
    two.post(Hint(ready=frozenset({"invoice"})))

    assert one.news(0, 1) is None
    assert one.news(0, 2) == Hint(ready=frozenset({"invoice"}), is_foreign=True)
    assert one.news(2, 2) is None


def test_a_reader_that_comes_too_late_has_to_query(files: Files) -> None:
    one, two = board(files), board(files)
    for _ in range(NOTES + 1):
        one.post(HINT)

    assert two.news(0, NOTES + 1) == LOOK
    assert two.news(0, NOTES) == LOOK, "the first hint was overwritten, but too few followed for the reader to know"
    assert two.news(1, NOTES + 1) is not None
    assert two.news(NOTES + 1, 3) == LOOK, "the files were created again"


def test_a_hint_that_does_not_fit_has_to_be_queried(files: Files) -> None:
    one, two = board(files), board(files)
    one.post(Hint(ended=frozenset(f"run {number}" for number in range(NOTE_BYTES))))
    assert two.news(0, 1) == LOOK


def test_only_posted_hints_take_space(files: Files) -> None:
    one, two = board(files), board(files)
    news = News()
    news.ended = {new_id() for _ in range(11)}
    hint = news.hint()
    assert hint is not None
    one.post(hint)
    found = two.news(0, 1)
    assert found is not None
    assert found.ended == news.ended


@pytest.mark.parametrize("place", [0, 8, 14, 40])
def test_a_damaged_hint_has_to_be_queried(files: Files, place: int) -> None:
    one, two = board(files), board(files)
    one.post(HINT)
    with files.board.open("r+b") as notes:
        notes.seek(place)
        notes.write(b"\xff")
    assert two.news(0, 1) == LOOK


def test_garbage_in_the_files_harms_no_reader(files: Files) -> None:
    one, two = board(files), board(files)
    files.hint.write_bytes(b"\xff" * 100)
    files.board.write_bytes(b"\xff" * 100)
    before = two.heading()
    one.post(HINT)
    one.post(HINT)
    after = two.heading()

    assert two.news(before.count, after.count) == LOOK
    assert two.news(after.count - 1, after.count) is not None


def test_a_mark_only_says_that_something_happened(files: Files) -> None:
    one = board(files)
    before = one.heading()
    mark(files)
    after = one.heading()
    assert (after.count, after.mark != before.mark) == (before.count, True)
    one.post(HINT)
    assert one.heading().mark == after.mark
