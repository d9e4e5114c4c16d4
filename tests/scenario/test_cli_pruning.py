"""`holdfast prune`: which runs it deletes, when, and what it prints."""

from __future__ import annotations

from holdfast import Holdfast
from holdfast.app import session_of
from holdfast.core.model import Intent
from tests.unit.cli.conftest import shop
from tests.unit.cli.rig import Shop

__all__ = ["shop"]  # a fixture that pytest finds by its name


def some_ended_runs(shop: Shop) -> None:
    """Create five sums, two of them with a short retention, and an order that waits."""
    for number in range(5):
        shop.start("shop.add.v1", {"a": number, "b": 1}, retention=1e-6 if number < 2 else None)
    shop.start("shop.order.v1", {"name": "ann"}, retention=1e-6)
    shop.work()


def test_runs_are_pruned_after_their_retention_and_no_others(shop: Shop) -> None:
    some_ended_runs(shop)

    before = shop.type("prune", "--dry-run")
    done = shop.read("prune")
    after = shop.type("prune")

    assert (before.stdout, before.stderr) == ("        2  runs of shop.add.v1\n", "nothing was changed\n")
    assert (done["runs"], done["has_more"]) == ({"shop.add.v1": 2}, False)
    assert (after.stdout, after.stderr) == ("", "there is nothing to prune\n")
    assert len(shop.read("ls")) == 4


def test_the_default_retention_is_an_option(shop: Shop) -> None:
    some_ended_runs(shop)

    assert shop.read("prune", "--dry-run", "--retention", "1h")["runs"] == {"shop.add.v1": 2}
    assert shop.read("prune", "--dry-run", "--retention", "1ms")["runs"] == {"shop.add.v1": 5}
    refused = shop.type("prune", "--retention", "0s")
    assert refused.exit_code == 2
    assert "--retention" in refused.stderr


def test_many_runs_are_pruned_in_several_transactions(shop: Shop) -> None:
    async def start(hf: Holdfast) -> None:
        await session_of(hf).open()
        ids = [f"r{number}" for number in range(700)]
        await session_of(hf).store.create([Intent(id=id, type="shop.add.v1", payload="{}", retention=1) for id in ids])
        for id in ids:
            await hf.run(id).cancel()

    shop.do(start)

    assert shop.type("prune").stdout == "      700  runs of shop.add.v1\n"


def test_a_terminal_shows_the_progress_of_a_prune(shop: Shop) -> None:
    for number in range(25):
        shop.start("shop.add.v1", {"a": number, "b": 1}, retention=1e-6)
    shop.work()

    result = shop.type("--color", "always", "prune")

    assert "pruning" in result.stderr
    assert "25" in result.stdout


def test_a_run_is_started_with_its_retention(shop: Shop) -> None:
    shop.type("start", "shop.add.v1", "a:=1", "b:=2", "--retention", "1ms")
    shop.type("start", "shop.add.v1", "a:=1", "b:=2", "--retention", "1h")
    shop.work()

    assert shop.read("prune")["runs"] == {"shop.add.v1": 1}
