"""Shell completion: suggestions after TAB. Tests of the shell use bash, others call click's completion."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli import completing
from holdfast.testing.patience import GUARD_SECONDS
from tests.scenario.test_cli_worker import holdfast
from tests.unit.cli.conftest import shop
from tests.unit.cli.rig import Shop

__all__ = ["shop"]  # a fixture that pytest finds by its name

LIMIT_SECONDS = completing.LIMIT_SECONDS
# The command that shells execute as `holdfast`.
PATIENT = f"from holdfast.cli import completing, main; completing.LIMIT_SECONDS = {GUARD_SECONDS}; main.main()"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Complete in the directory of the shop, with a timeout for a busy machine."""
    monkeypatch.setattr(completing, "LIMIT_SECONDS", GUARD_SECONDS)
    monkeypatch.chdir(tmp_path)
    alarm = signal.getsignal(signal.SIGALRM)
    yield
    # A completing process silences its log, sets an alarm and ends at once. This process goes on, so both are disabled.
    logging.disable(logging.NOTSET)
    signal.signal(signal.SIGALRM, alarm)


def offered(shop: Shop, typed: str, **environment: str) -> dict[str, str]:
    """Return fish's suggestions for the last word, with descriptions. Check that nothing else is written."""
    *words, last = typed.split(" ")
    asked = {"_HOLDFAST_COMPLETE": "fish_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": last}
    done = shop.type(**environment, **asked)
    assert (done.exit_code, done.stderr) == (0, "")
    items = [line.partition(",")[2].partition("\t") for line in done.stdout.splitlines() if line]
    return {value: about for value, _, about in items}


def test_commands_are_offered_with_their_descriptions(shop: Shop) -> None:
    assert offered(shop, "holdfast wa") == {
        "watch": "Follow a run until it ends.",
        "wake": "Wake waiting runs now, and retry blocked ones.",
    }
    assert offered(shop, "holdfast topics d").keys() == {"dead-letters"}


def test_an_unknown_command_shows_no_error(shop: Shop) -> None:
    assert offered(shop, "holdfast wacth --lim") == {}


def test_options_are_offered_including_global_ones(shop: Shop) -> None:
    assert offered(shop, "holdfast worker --gr").keys() == {"--grace"}
    assert offered(shop, "holdfast worker --u").keys() == {"--until-idle", "--url"}
    assert offered(shop, "holdfast --out").keys() == {"--output"}
    assert offered(shop, "holdfast ls -o js").keys() == {"json", "jsonl"}
    assert offered(shop, "holdfast completion ").keys() == {"bash", "zsh", "fish"}


def test_runs_are_offered_by_the_beginning_of_their_ids(shop: Shop) -> None:
    first, second = (shop.start("shop.add.v1", {"a": 1, "b": 2}, id=id) for id in ("01-first", "02-second"))

    assert offered(shop, "holdfast show ") == {first: "pending shop.add.v1", second: "pending shop.add.v1"}
    assert offered(shop, "holdfast cancel 01-first 02").keys() == {second}
    assert offered(shop, "holdfast explain 03") == {}


def test_types_and_topics_are_offered(shop: Shop) -> None:
    shop.start("shop.event.v1", {"topic": "paid"})
    shop.work()
    shop.start("billing.invoice.v1")
    shop.do(lambda hf: hf.topics.set("jobs", mode="queue"))

    assert offered(shop, "holdfast start ").keys() == {"billing.invoice.v1", "shop.event.v1"}
    assert offered(shop, "holdfast ls --type sh").keys() == {"shop.event.v1"}
    assert offered(shop, "holdfast emit ") == {"jobs": "queue", "paid": "a run waits for it"}


def test_the_store_is_that_of_the_flags_typed_so_far(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Shop(tmp_path / "other")
    other.start("other.v1")

    url = shlex.quote(other.url)

    assert offered(shop, f"holdfast --url {url} start ").keys() == {"other.v1"}
    assert offered(shop, f"holdfast start --url {url} o").keys() == {"other.v1"}


@pytest.mark.parametrize("url", ["", "nonsense", "memory://", "postgresql://127.0.0.1:1/x", "sqlite:////nowhere/x.db"])
def test_an_unusable_store_offers_nothing_and_prints_nothing(shop: Shop, url: str) -> None:
    assert offered(shop, "holdfast show 0", HOLDFAST_URL=url or shop.url) == {}
    assert not shop.path.exists()


def test_an_invalid_settings_file_offers_nothing_and_prints_nothing(shop: Shop) -> None:
    (shop.path.parent / "holdfast.toml").write_text("ulr = 'x'")

    assert offered(shop, "holdfast show 0") == {}
    assert offered(shop, "holdfast sho").keys() == {"show"}


@pytest.mark.long
def test_a_store_that_does_not_answer_is_not_waited_for(shop: Shop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts connections and never answers
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x"
        asked = {"_HOLDFAST_COMPLETE": "fish_complete", "COMP_WORDS": "holdfast show", "COMP_CWORD": "0"}

        # In its own process: completion that takes too long ends its process.
        done = subprocess.run(
            [sys.executable, "-m", "holdfast"],
            cwd=shop.path.parent,
            env=os.environ | {"HOLDFAST_URL": url} | asked,
            capture_output=True,
            text=True,
            check=False,
        )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_application_is_not_loaded(shop: Shop) -> None:
    (shop.path.parent / "app.py").write_text("open('loaded', 'w').close()")
    shop.start("shop.add.v1", {"a": 1, "b": 2}, id="01-first")

    assert offered(shop, "holdfast show 0", HOLDFAST_APPLICATION="app:hf").keys() == {"01-first"}
    assert not (shop.path.parent / "loaded").exists()


def test_completion_is_given_up_after_a_short_time() -> None:
    assert LIMIT_SECONDS <= 2


# The scripts


@pytest.mark.long
def test_bash_offers_what_holdfast_offers(shop: Shop, tmp_path: Path) -> None:
    shop.start("shop.add.v1", {"a": 1, "b": 2}, id="01-first")
    command = tmp_path / "bin" / "holdfast"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\n{PATIENT}\n")
    command.chmod(0o755)
    script = """
        eval "$(holdfast completion bash)"
        complete -p holdfast
        for line in "holdfast expl" "holdfast show 01"; do
            COMP_WORDS=($line) COMPREPLY=()
            COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            _holdfast_completion holdfast
            echo "${COMPREPLY[@]}"
        done
    """

    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=shop.path.parent,
        env=os.environ | {"HOLDFAST_URL": shop.url, "PATH": f"{command.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert (done.stdout.splitlines()[1:], done.stderr) == (["explain", "01-first"], "")
    assert "-F _holdfast_completion holdfast" in done.stdout


@pytest.mark.parametrize(
    ("shell", "beginning"),
    [("bash", "_holdfast_completion() {"), ("zsh", "#compdef holdfast"), ("fish", "function _holdfast_completion")],
)
def test_a_script_is_printed_for_each_shell(shop: Shop, shell: str, beginning: str) -> None:
    done = holdfast(shop, "completion", shell)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.lstrip().startswith(beginning)
    assert f"_HOLDFAST_COMPLETE={shell}_complete" in done.stdout


def test_an_unknown_shell_is_refused(shop: Shop) -> None:
    result = shop.type("completion", "tcsh")

    assert result.exit_code == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in result.stderr
