"""A golden store of each kept number is migrated to the current one, and its runs end as if nothing had happened."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast, SchemaOutOfDate
from holdfast.cli.main import cli
from holdfast.store_urls import store_for
from tests.golden import files
from tests.golden.runs import check_states, finish

KEPT = [(kind, number) for kind in ("sqlite", "postgres", "redis") for number in files.numbers(kind)]
SHARED = [(kind, number) for kind, number in KEPT if kind != "sqlite"]


@pytest.fixture
def golden_url(kind: str, number: int, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The URL of a store that was loaded from its golden file."""
    if kind == "sqlite":
        files.load_sqlite(number, tmp_path / "golden.db")
        return f"sqlite:///{tmp_path / 'golden.db'}"
    url = str(request.getfixturevalue(f"{kind}_url"))
    load = files.load_postgres if kind == "postgres" else files.load_redis
    load(number, url)
    return url


def run(url: str, *arguments: str, **environment: str) -> Result:
    return CliRunner(env={"HOLDFAST_URL": url, **environment}).invoke(cli, arguments, prog_name="holdfast")


async def finish_all(url: str) -> None:
    async with Holdfast(url) as hf:
        await check_states(hf)
        await finish(hf)


@pytest.mark.parametrize(("kind", "number"), KEPT)
def test_the_command_migrates_a_golden_store_and_its_runs_end(golden_url: str, number: int) -> None:
    wanted = store_for(golden_url).schema().wanted
    plan, check = run(golden_url, "migrate", "--plan"), run(golden_url, "migrate", "--check")
    assert (plan.exit_code, check.exit_code) == (0, 1)
    assert f"schema number {number}, this version needs number {wanted}" in plan.stdout
    assert f"step {number + 1}: " in plan.stdout
    assert "run `holdfast migrate`" in check.stdout
    assert store_for(golden_url).schema().current == number  # neither has changed anything

    migrated = run(golden_url, "migrate")
    assert migrated.exit_code == 0, migrated.output
    assert f"applied step {wanted}" in migrated.stdout
    assert run(golden_url, "migrate", "--check").exit_code == 0
    assert run(golden_url, "migrate").stderr == "nothing to do\n"
    told = json.loads(run(golden_url, "migrate", "--check", "--json").stdout)
    assert (told["current"], told["pending"], told["trouble"]) == (wanted, [], None)
    assert [step["number"] for step in told["applied"]] == list(range(number + 1, wanted + 1))
    asyncio.run(finish_all(golden_url))


@pytest.mark.parametrize(("kind", "number"), SHARED)
async def test_a_shared_store_is_refused_until_it_is_migrated_or_opened_with_auto(
    golden_url: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SchemaOutOfDate, match=r"run `holdfast migrate`.*HOLDFAST_MIGRATE=auto"):
        await Holdfast(golden_url).start("golden.add.v1", {"a": 1, "b": 2})
    assert store_for(golden_url).schema().current == number

    monkeypatch.setenv("HOLDFAST_MIGRATE", "auto")
    async with Holdfast(golden_url) as hf:
        await check_states(hf)
    assert store_for(golden_url).schema().pending == ()


@pytest.mark.parametrize(("kind", "number"), KEPT)
def test_the_doctor_names_the_pending_steps_and_the_last_applied_one(golden_url: str, number: int) -> None:
    before = run(golden_url, "doctor")
    assert before.exit_code == 1
    assert f"schema number {number}, made by an older version" in before.stdout

    run(golden_url, "migrate")
    assert f"its last step, {store_for(golden_url).schema().applied[-1].name}, was applied by holdfast" in " ".join(
        run(golden_url, "doctor").stdout.split()
    )
