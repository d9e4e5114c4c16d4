"""`holdfast bench` measures next to the store and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from holdfast import Holdfast, StoreUnavailable
from holdfast_bench import report
from holdfast_bench.measures import MEASURES, Figure, Measure
from tests.redis import connect, namespace_of
from tests.unit.cli.conftest import shop
from tests.unit.cli.rig import Shop

__all__ = ["shop"]  # a fixture that pytest finds by its name

QUICKLY = ("bench", "--seconds", "0.1")


def test_all_figures_are_measured_and_the_store_is_not_touched(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shown = shop.read(*QUICKLY)

    assert list(shown) == [measure.name for measure in MEASURES]
    for figure in shown.values():
        assert figure["samples"] > 0
        assert min(figure["median"], figure["best"], figure["worst"]) > 0
    assert list(tmp_path.iterdir()) == []


def test_human_output_has_a_line_for_each_figure(shop: Shop) -> None:
    assert shop.type("start", "shop.add.v1", "a:=1", "b:=2").exit_code == 0
    before = shop.read("ls")
    result = shop.type(*QUICKLY)

    assert result.exit_code == 0, result.output
    assert [line.partition("  ")[0] for line in result.stdout.splitlines()] == [one.what for one in MEASURES]
    assert "removed at the end" in result.stderr
    assert shop.read("ls") == before


def test_on_postgres_the_benchmark_uses_its_own_schema_and_drops_it(postgres_url: str, tmp_path: Path) -> None:
    def schemas() -> list[str]:
        with psycopg.connect(postgres_url) as connection:
            return [name for (name,) in connection.execute("select nspname from pg_namespace order by 1")]

    before = schemas()
    result = Shop(tmp_path).type(*QUICKLY, "--json", HOLDFAST_URL=postgres_url)

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["steps_per_second"]["median"] > 0
    assert schemas() == before


def test_on_redis_the_benchmark_uses_its_own_namespace_and_removes_it(redis_url: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.url = redis_url
    assert shop.type("start", "shop.add.v1", "a:=1", "b:=2").exit_code == 0
    before = shop.read("ls")
    result = shop.type(*QUICKLY, "--json")

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["steps_per_second"]["median"] > 0
    assert "?namespace=holdfast_bench_" in result.stderr
    assert _other_keys(redis_url) == []
    assert shop.read("ls") == before


def test_a_benchmark_on_redis_that_fails_leaves_nothing_behind(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(hf: Holdfast, *_: object) -> Figure:
        await hf.start("shop.add.v1", {"a": 1, "b": 2})
        raise StoreUnavailable("the server is gone")

    monkeypatch.setattr(report, "take_samples", fail)
    result = Shop(tmp_path).type(*QUICKLY, HOLDFAST_URL=redis_url)

    assert result.exit_code == 5
    assert "the server is gone" in result.stderr
    assert _other_keys(redis_url) == []


def test_an_interrupted_benchmark_on_redis_leaves_nothing_behind(redis_url: str) -> None:
    _interrupt(redis_url, signal.SIGTERM)

    assert _other_keys(redis_url) == []


def _other_keys(url: str) -> list[bytes]:
    """Return the keys of other namespaces in the database."""
    own = f"{{{namespace_of(url)}}}:".encode()
    with connect(url) as client:
        return [key for key in client.scan_iter(count=1000) if not key.startswith((own, b"{test_"))]


def test_a_missing_directory_is_not_created(shop: Shop, tmp_path: Path) -> None:
    result = shop.type("bench", HOLDFAST_URL=f"sqlite:///{tmp_path}/nowhere/shop.db")

    assert result.exit_code == 5
    assert "there is no directory" in result.stderr
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_benchmark_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    _interrupt(f"sqlite:///{tmp_path}/shop.db", number)

    assert list(tmp_path.iterdir()) == []


def _interrupt(url: str, number: signal.Signals) -> None:
    """Start a benchmark, and interrupt it while it measures."""
    command = [sys.executable, "-m", "holdfast", "--url", url, "bench", "--seconds", "600"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None
        assert "measuring in" in program.stderr.readline()
        program.send_signal(number)
        assert "interrupted" in program.stderr.read()

    assert program.returncode == 130


def test_the_best_time_is_the_shortest_and_the_best_rate_is_the_highest() -> None:
    async def nothing(_: object) -> list[float]:
        return []

    time = Figure(Measure("a", "a", nothing), [0.003, 0.001, 0.002])
    rate = Figure(Measure("b", "b", nothing, is_rate=True), [10_000, 30_000, 20_000])

    assert (time.best, time.middle, time.worst) == (0.001, 0.002, 0.003)
    assert (rate.best, rate.middle, rate.worst) == (30_000, 20_000, 10_000)
    assert [one.measure.text_of(one.middle) for one in (time, rate)] == ["2.00", "20,000"]
