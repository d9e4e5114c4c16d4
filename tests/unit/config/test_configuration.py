"""The configuration: which value of a setting wins, where it comes from, and which are refused."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from holdfast import Holdfast, InvalidRequest
from holdfast.app import session_of
from holdfast.config import settings
from holdfast.config.configuration import Configuration
from holdfast.config.secret import Address, scrubbed
from holdfast.config.settings import SETTINGS, Setting
from holdfast.core.length import parse_length, written
from tests.rows import each_row

# For some settings: the values of the flag, the variable, the file and the default.
LEVELS: dict[str, tuple[object, tuple[str, object], tuple[str, object], object]] = {
    "url": ("memory://", ("sqlite:////e.db", "sqlite:////e.db"), ("'postgres://h/d'", "postgres://h/d"), ...),
    "application": ("a:hf", ("b:hf", "b:hf"), ("'c:hf'", "c:hf"), None),
    "retention": (timedelta(1), ("2h", timedelta(hours=2)), ("90", timedelta(seconds=90)), timedelta(30)),
    "output": ("json", ("jsonl", "jsonl"), ("'table'", "table"), "table"),
    "verbosity": (2, ("-1", -1), ("1", 1), 0),
    "worker.types": (("a",), ("b.*, c.v1", ("b.*", "c.v1")), ("['d', 'e.*']", ("d", "e.*")), None),
    "worker.concurrency": (1, ("2", 2), ("3", 3), 200),
    "worker.steps": (1, ("2", 2), ("3", 3), 1000),
    "worker.grace": (timedelta(0), ("0", timedelta(0)), ("'1m'", timedelta(minutes=1)), timedelta(seconds=10)),
    "worker.lease": (
        timedelta(seconds=1),
        ("2.5", timedelta(seconds=2.5)),
        ("0.5", timedelta(seconds=0.5)),
        timedelta(seconds=30),
    ),
    "worker.name": ("a", ("b", "b"), ("'c'", "c"), None),
    "worker.metrics": (Address("a", 1), (":2", ("127.0.0.1", 2)), ("3", ("127.0.0.1", 3)), None),
    "metrics_token": ("a", ("b", "b"), ("'c'", "c"), None),
}


def configured(
    folder: Path, *, flags: Mapping[str, object] | None = None, environment: Mapping[str, str] | None = None
) -> Configuration:
    return Configuration(flags, directory=folder, environment=environment or {})


def write(folder: Path, text: str, name: str = "holdfast.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def line(setting: Setting[Any], value: str) -> str:
    """A setting as written in `holdfast.toml`; a dotted key is the same as one in a table."""
    return f"{setting.key} = {value}\n"


# Precedence


@pytest.mark.parametrize("key", LEVELS)
def test_a_flag_wins_over_the_environment_which_wins_over_the_file_which_wins_over_the_default(
    key: str, tmp_path: Path
) -> None:
    setting = SETTINGS[key]
    typed, (variable, said), (text, filed), default = LEVELS[key]
    default = setting.default if default is ... else default
    path = write(tmp_path, line(setting, text))
    flags, environment = {key: typed}, {setting.variable: variable}

    found = [
        configured(tmp_path, flags=flags, environment=environment).origin(setting),
        configured(tmp_path, environment=environment).origin(setting),
        configured(tmp_path).origin(setting),
        configured(tmp_path.parent).origin(setting),
    ]

    assert [one.value for one in found] == [typed, said, filed, default]
    assert [one.place for one in found] == ["flag", setting.variable, f"{path}:{key}", "default"]


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    write(tmp_path, "worker.threads = 3")

    assert configured(tmp_path, environment={"HOLDFAST_WORKER_THREADS": ""})[settings.THREADS] == 3


def test_the_environment_is_read_each_time_and_the_file_once(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    write(tmp_path, "worker.threads = 3")
    configuration = Configuration(directory=tmp_path, environment=environment)

    assert configuration[settings.THREADS] == 3
    write(tmp_path, "worker.threads = 4")
    assert configuration[settings.THREADS] == 3
    environment["HOLDFAST_WORKER_THREADS"] = "5"
    assert configuration[settings.THREADS] == 5


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.key)
def test_a_formatted_value_is_parsed_to_the_same_value(setting: Setting[Any]) -> None:
    value = setting.kind.parse(LEVELS[setting.key][1][0]) if setting.key in LEVELS else setting.default

    assert setting.kind.parse(setting.kind.written(value)) == value


@pytest.mark.parametrize("text", ["30d", "36h", "90s", "90m", "0.25s", "0s"])
def test_a_duration_is_written_as_briefly_as_possible(text: str) -> None:
    assert written(parse_length(text)) == text


# The file


def test_settings_may_be_in_pyproject_too(tmp_path: Path) -> None:
    text = "[project]\nname = 'shop'\n[tool.holdfast]\nretention = '7d'\n[tool.holdfast.worker]\nthreads = 3\n"
    path = write(tmp_path, text, "pyproject.toml")

    found = configured(tmp_path)

    assert (found[settings.RETENTION], found[settings.THREADS]) == (timedelta(7), 3)
    assert found.origin(settings.THREADS).place == f"{path}:tool.holdfast.worker.threads"


def test_the_first_file_upwards_with_settings_wins_and_no_other_is_read(tmp_path: Path) -> None:
    write(tmp_path, "worker.threads = 1\nworker.steps = 1")
    write(tmp_path / "a", "[tool.holdfast]\nworker.threads = 2", "pyproject.toml")
    write(tmp_path / "a/b", "[tool.black]\n# no holdfast here", "pyproject.toml")
    write(tmp_path / "a/b/c", "this is = = not TOML, and none of our business", "pyproject.toml")
    (tmp_path / "a/b/c/holdfast.toml").mkdir()

    found = configured(tmp_path / "a/b/c")

    assert (found[settings.THREADS], found[settings.STEPS]) == (2, 1000)


def test_holdfast_toml_wins_over_pyproject_in_one_directory(tmp_path: Path) -> None:
    write(tmp_path, "worker.threads = 1")
    write(tmp_path, "[tool.holdfast]\nworker.threads = 2", "pyproject.toml")

    assert configured(tmp_path)[settings.THREADS] == 1


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("sqlite:///runs.db", "sqlite:///{folder}/runs.db"),
        ("sqlite:///data/runs.db", "sqlite:///{folder}/data/runs.db"),
        ("sqlite:////var/runs.db", "sqlite:////var/runs.db"),
        ("postgresql://host/shop", "postgresql://host/shop"),
    ],
)
def test_a_relative_path_in_a_file_starts_at_the_file(url: str, meant: str, tmp_path: Path) -> None:
    folder = tmp_path / "100% a shop?"
    write(folder, f"url = '{url}'")
    (folder / "deep").mkdir()

    found = configured(folder / "deep")[settings.URL]

    assert found == meant.format(folder=f"{quote(str(tmp_path))}/100%25%20a%20shop%3F")


async def test_a_store_with_a_relative_path_in_a_file_is_next_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "100% a shop?"
    write(folder, "url = 'sqlite:///runs.db'")
    (folder / "deep").mkdir()
    monkeypatch.chdir(folder / "deep")
    monkeypatch.delenv("HOLDFAST_URL", raising=False)

    async with Holdfast() as hf:
        await hf.start("a.v1")

    assert (folder / "runs.db").exists()


def test_a_deleted_directory_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    assert Configuration(environment={})[settings.THREADS] == 32


# Refusals


@each_row(
    ("text", "message"),
    [
        ("worker.concurency = 5", "there is no setting worker.concurency; did you mean worker.concurrency?"),
        ("concurrency = 5", "there is no setting concurrency; did you mean worker.concurrency?"),
        ("worker.lease_seconds = 5", "there is no setting worker.lease_seconds; did you mean worker.lease?"),
        ("[workers]\nthreads = 5", "there is no setting workers; did you mean worker?"),
        ("url = ['postgresql://ann:secret@host/db']", "url = ['postgresql://ann:***@host/db']: expected a string"),
        (f"output = '{'x' * 1000}'", f"output = '{'x' * 79}…: expected one of"),
        ("xyzzy = 5", "there is no setting xyzzy; the settings are url, application, "),
        ("worker = 5", "there is no setting worker; worker is a table of settings"),
        ("[tool.holdfast]\nurl = 'x'", "in holdfast.toml, put settings at the top level, without [tool.holdfast]"),
        ("worker.concurrency = '5'", "worker.concurrency = '5': expected a whole number of at least 1, not a string"),
        ("worker.concurrency = true", "not true or false"),
        ("worker.concurrency = 0", "worker.concurrency = 0: expected a whole number of at least 1"),
        ("verbosity = 3", "verbosity = 3: expected a whole number from -1 to 2"),
        ("url = 5", "url = 5: expected a string, not a number"),
        ("url.x = 5", "url = {'x': 5}: expected a string, not a table"),
        ("output = 'xml'", "output = 'xml': expected one of table, json, jsonl"),
        ("retention = 'soon'", "retention = 'soon': expected a duration"),
        ("retention = 2030-01-01", "not a date or time"),
        ("retention = 0", "retention = 0: expected a duration greater than zero"),
        ("retention = -1", "retention = -1: expected a duration"),
        ("worker.types = []", "worker.types = []: expected at least one name"),
        ("worker.types = ['a', 5]", "worker.types = ['a', 5]: expected a list of strings, not a list"),
        ("url = = 5", "is not valid TOML: Invalid value (at line 1, column 7)"),
        ("url = '\udcff'", "is not valid TOML"),
    ],
)
def test_an_error_in_the_file_names_the_file_the_key_and_the_value(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(InvalidRequest) as refused:
        configured(tmp_path)[settings.GRACE]  # another setting: a file is valid as a whole or not at all

    assert str(refused.value).startswith(f"{path}")
    assert message in str(refused.value)


def test_an_error_in_pyproject_names_its_key_in_full(tmp_path: Path) -> None:
    write(tmp_path, "[tool.holdfast]\nworker.thread = 5", "pyproject.toml")
    write(tmp_path / "odd", "tool.holdfast = 5", "pyproject.toml")

    with pytest.raises(InvalidRequest, match=r"setting tool\.holdfast\.worker\.thread; did you mean worker\.threads\?"):
        configured(tmp_path)[settings.THREADS]
    write(tmp_path / "none", "tool = 5  # not holdfast", "pyproject.toml")
    with pytest.raises(InvalidRequest, match=r"tool\.holdfast = 5: expected a table, written \[tool\.holdfast\]"):
        configured(tmp_path / "odd")[settings.THREADS]
    with pytest.raises(InvalidRequest, match=r"did you mean worker\.threads"):  # the next file upwards
        configured(tmp_path / "none")[settings.THREADS]


def test_an_unreadable_file_is_not_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "worker.threads = 1")

    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")  # tests may run as root, who can read everything

    monkeypatch.setattr(Path, "read_bytes", refuse)

    with pytest.raises(InvalidRequest, match=re.escape(f"{path} cannot be read: Permission denied")):
        configured(tmp_path)[settings.THREADS]


def test_an_invalid_variable_is_named_and_harms_no_other_setting(tmp_path: Path) -> None:
    found = configured(tmp_path, environment={"HOLDFAST_WORKER_THREADS": "many"})

    assert found[settings.STEPS] == 1000
    with pytest.raises(InvalidRequest, match="HOLDFAST_WORKER_THREADS='many': expected a whole number of at least 1"):
        found[settings.THREADS]


# Secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:secret@host/db", "postgresql://ann:***@host/db"),
        ("postgresql://:secret@host/db", "postgresql://:***@host/db"),
        ("postgresql://ann:se/c@re:t@host/db", "postgresql://ann:***@host/db"),
        ("postgresql://ann@host/db?password=secret&x=1", "postgresql://ann@host/db?password=***&x=1"),
        ("postgresql://host/db?a=b&sslpassword=secret", "postgresql://host/db?a=b&sslpassword=***"),
        ("postgresql://host:5432/db", "postgresql://host:5432/db"),
        ("sqlite:////var/a:b@c.db", "sqlite:////var/a:b@c.db"),
        ("nonsense", "nonsense"),
        ("postgresql://[ann:secret@host", "postgresql://[ann:***@host"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert scrubbed(url) == shown


# In programs


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a settings file, made the current one, and an environment without settings."""
    for variable in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    text = "url = 'memory://'\n[worker]\nconcurrency = 7\nlease = '5s'\ntypes = ['a.*']\nname = 'filed'\n"
    write(tmp_path, text)
    return tmp_path


def test_an_application_takes_its_url_from_argument_environment_file_or_default(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session_of(Holdfast()).url == "memory://"
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///env.db")
    assert session_of(Holdfast()).url == "sqlite:///env.db"
    assert session_of(Holdfast("sqlite:///arg.db")).url == "sqlite:///arg.db"
    monkeypatch.delenv("HOLDFAST_URL")
    (project / "holdfast.toml").unlink()
    assert session_of(Holdfast()).url == "sqlite:///holdfast.db"


async def test_a_worker_follows_the_configuration_unless_arguments_say_otherwise(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_WORKER_NAME", "said")
    async with Holdfast() as hf:
        for type in ("a.v1", "b.v1"):
            hf.task(type)(lambda: None)
        async with hf.worker(), hf.worker(["b.v1"], concurrency=3, name="given"):
            found = {worker.name: worker for worker in await session_of(hf).store.workers()}

    assert (found["said"].concurrency, found["said"].types) == (7, ("a.v1",))
    assert (found["given"].concurrency, found["given"].types) == (3, ("b.v1",))


def test_the_application_reports_an_error_in_the_file(project: Path) -> None:
    write(project, "ulr = 'x'")

    with pytest.raises(InvalidRequest, match=r"there is no setting ulr; did you mean url\?"):
        Holdfast()
    assert session_of(Holdfast("memory://")).url == "memory://"  # a command that needs no file


def test_patterns_of_a_worker_are_a_list() -> None:
    with pytest.raises(InvalidRequest, match=r"worker\(types=.*\): expected a list of type names or patterns"):
        Holdfast("memory://").worker("billing.*")


def test_a_token_is_never_shown() -> None:
    assert settings.METRICS_TOKEN.kind.shown("let-me-in") == "***"
    assert settings.METRICS_TOKEN.kind.shown(None) is None


def test_a_token_is_not_shown_when_it_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "metrics_token = 471147114711\n")

    with pytest.raises(InvalidRequest, match=r"metrics_token = \*\*\*: expected a string, not a number") as caught:
        configured(tmp_path)[settings.URL]

    assert "4711" not in str(caught.value)
