"""`holdfast config`, and commands that read missing options from the configuration."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.cli.commands.worker import worker
from tests.scenario.test_cli_worker import holdfast, shop
from tests.unit.cli.rig import Shop

__all__ = ["shop"]  # a fixture that pytest finds by its name


@pytest.fixture
def project(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the shop, made the current directory."""
    monkeypatch.chdir(shop.path.parent)
    return shop.path.parent


def write(project: Path, text: str) -> Path:
    path = project / "pyproject.toml"
    path.write_text(f"[tool.holdfast]\n{text}")
    return path


def test_each_value_is_shown_with_its_origin_and_without_secrets(shop: Shop, project: Path) -> None:
    path = write(project, "retention = '7d'\nworker.types = ['shop.*', 'billing.*']")
    environment = {"HOLDFAST_URL": "postgresql://ann:secret@host/db", "HOLDFAST_WORKER_THREADS": "3"}

    result = shop.type("--color", "never", "config", "--origin", **environment)

    assert (result.exit_code, result.stderr) == (0, "")
    shown = {row.split()[0]: row.split(maxsplit=2)[1:] for row in result.stdout.splitlines()}
    assert shown["url"] == ["postgresql://ann:***@host/db", "HOLDFAST_URL"]
    assert shown["worker.threads"] == ["3", "HOLDFAST_WORKER_THREADS"]
    assert shown["retention"] == ["7d", f"{path}:tool.holdfast.retention"]
    assert shown["worker.types"] == ["shop.*,billing.*", f"{path}:tool.holdfast.worker.types"]
    assert shown["color"] == ["never", "flag"]
    assert shown["worker.lease"] == ["30s", "default"]
    assert "secret" not in result.output


def test_the_origin_is_shown_only_on_request(shop: Shop, project: Path) -> None:
    assert shop.type("config").stdout.splitlines()[0].split() == ["SETTING", "VALUE"]


def test_json_output_has_every_field(shop: Shop, project: Path) -> None:
    path = write(project, "worker.lease = 90")

    shown = {one["setting"]: one for one in shop.read("config")}

    assert shown["worker.lease"] == {
        "setting": "worker.lease",
        "value": "90s",
        "origin": f"{path}:tool.holdfast.worker.lease",
    }
    assert shown["application"] == {"setting": "application", "value": None, "origin": "default"}
    assert shown["output"] == {"setting": "output", "value": "json", "origin": "flag"}
    assert shown["worker.concurrency"]["value"] == 200


def test_output_format_is_a_setting_like_any_other(shop: Shop, project: Path) -> None:
    write(project, "output = 'json'\nverbosity = -1")
    shop.start("shop.add.v1", {"a": 1, "b": 2})

    assert shop.type("ls").stdout.startswith("[")
    assert not shop.type("ls", HOLDFAST_OUTPUT="jsonl").stdout.startswith("[")
    assert shop.type("ls", "-o", "table", HOLDFAST_OUTPUT="jsonl").stdout.startswith("ID")
    assert shop.type("start", "x.v1").stderr == ""
    assert "no worker for x.v1 is running yet" in shop.type("start", "x.v1", HOLDFAST_VERBOSITY="0").stderr
    assert "no worker for x.v1 is running yet" in shop.type("-v", "start", "x.v1").stderr


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        ("--grace 0", {"worker.grace": timedelta(0)}),
        ("--types a.*,b --types c", {"worker.types": ("a.*", "b", "c")}),
        ("-v --threads 3", {"verbosity": 1, "worker.threads": 3}),
        ("-vvv", {"verbosity": 2}),
        ("--url= --name=", {}),
        ("", {}),
    ],
)
def test_only_typed_options_override_the_configuration(words: str, noted: dict[str, object]) -> None:
    with worker.make_context("worker", words.split()) as context:
        assert (context.obj or {}) == noted


def test_contradicting_flags_are_an_error_only_if_given_in_one_place(shop: Shop, project: Path) -> None:
    shop.start("shop.add.v1", {"a": 1, "b": 2})

    assert "--json and --output contradict each other" in shop.type("ls", "--json", "-o", "jsonl").stderr
    assert shop.type("--json", "ls", "-o", "jsonl").stdout.startswith("{")
    assert shop.type("ls", "--json", "-o", "json").exit_code == 0


@pytest.mark.parametrize("words", ["ls", "config", "worker app:hf --until-idle", "topics ls"])
def test_an_error_in_the_file_ends_every_command_with_one_clear_message(shop: Shop, project: Path, words: str) -> None:
    path = write(project, "worker.concurency = 5")

    result = shop.type(*words.split())

    message = f"{path}: there is no setting tool.holdfast.worker.concurency; did you mean worker.concurrency?"
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"Error: {message}\n"


@pytest.mark.parametrize("words", ["--help", "ls --help", "--version"])
def test_help_needs_no_configuration_file(shop: Shop, project: Path, words: str) -> None:
    write(project, "worker.concurency = 5")

    assert shop.type(*words.split()).exit_code == 0


def test_a_worker_needs_no_argument_if_its_application_is_configured(shop: Shop, project: Path) -> None:
    write(project, "application = 'app:hf'\nworker.types = ['shop.*']\nworker.name = 'filed'")
    shop.start("shop.add.v1", {"a": 1, "b": 2}, key="sum")
    (project / "deep").mkdir()

    done = holdfast(shop, "worker", "--until-idle", directory=project / "deep", HOLDFAST_URL=shop.url)

    assert (done.returncode, done.stdout) == (0, "")
    assert "worker filed on " in done.stderr
    assert "executes shop.add.v1, shop.slow.v1 until" in done.stderr
    assert shop.type("result", "key:sum").stdout == "3\n"


@pytest.mark.long
def test_worker_processes_get_the_options_of_their_supervisor(shop: Shop, project: Path) -> None:
    write(project, "application = 'app:hf'\nworker.processes = 2\nworker.concurrency = 5")
    shop.start("shop.add.v1", {"a": 1, "b": 2}, key="sum")

    done = holdfast(
        shop, "worker", "--until-idle", "--concurrency", "9", "-v", HOLDFAST_URL=shop.url, HOLDFAST_WORKER_NAME="said"
    )

    assert done.returncode == 0, done.stderr
    assert "worker said-1 started: 3 types, 9 runs at once" in done.stderr
    assert "worker said-2 started: 3 types, 9 runs at once" in done.stderr
    assert shop.type("result", "key:sum").stdout == "3\n"


def test_a_check_needs_no_argument_either(shop: Shop, project: Path) -> None:
    write(project, "application = 'app:hf'")
    shop.start("shop.add.v1", {"a": 1, "b": 2})

    done = holdfast(shop, "check")

    assert (done.returncode, done.stderr) == (0, "1 live run checked: 1 fit\n")
