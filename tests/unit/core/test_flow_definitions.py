"""Definitions of flows: the version of a run, and the versions that no run needs."""

from __future__ import annotations

from holdfast.core.clock import DAY
from holdfast.core.flow_definitions import FlowDefinition, definition_at, removable

RETENTION = 30 * DAY


def flows(*times: int, used_at: int = 0) -> list[FlowDefinition]:
    return [FlowDefinition(type="t", version=f"v{at}", registered_at=at, used_at=used_at) for at in times]


def version_at(created_at: int, *times: int) -> str | None:
    found = definition_at(created_at, flows(*times))
    return None if found is None else found.version


def gone(known: list[FlowDefinition], oldest_run: int | None, now: int) -> list[str]:
    return [one.version for one in removable(known, oldest_run, RETENTION, now)]


def test_a_run_has_the_newest_version_of_the_time_of_its_creation() -> None:
    assert [version_at(at, 10, 20, 30) for at in (10, 19, 20, 99)] == ["v10", "v10", "v20", "v30"]


def test_a_run_that_is_older_than_all_versions_has_the_first_one() -> None:
    assert version_at(5, 20, 10) == "v10"


def test_a_run_of_a_type_without_definitions_has_none() -> None:
    assert version_at(5) is None


def test_old_versions_without_runs_are_removed_from_the_first_on() -> None:
    known = flows(0, DAY, 2 * DAY, 100 * DAY)

    assert gone(known, None, 33 * DAY) == ["v0", f"v{DAY}"]
    assert gone(known, None, 999 * DAY) == [one.version for one in known[:-1]]


def test_a_version_is_kept_as_long_as_a_run_may_have_it() -> None:
    known = flows(0, DAY, 2 * DAY)

    assert gone(known, DAY - 1, 999 * DAY) == []
    assert gone(known, DAY, 999 * DAY) == ["v0"]
    assert gone(known, 2 * DAY, 999 * DAY) == ["v0", f"v{DAY}"]


def test_a_version_is_kept_for_the_forks_that_have_it() -> None:
    known = [*flows(0, used_at=50 * DAY), *flows(DAY)]

    assert gone(known, None, 80 * DAY) == []
    assert gone(known, None, 80 * DAY + 1) == ["v0"]
    assert gone(known, 50 * DAY, 999 * DAY) == []


def test_without_retention_a_version_is_kept_for_a_day() -> None:
    assert removable(flows(0, DAY), None, 0, 2 * DAY - 1) == []
    assert len(removable(flows(0, DAY), None, 0, 2 * DAY)) == 1
