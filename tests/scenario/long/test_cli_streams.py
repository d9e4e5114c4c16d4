"""Closed or full standard streams: the command does its work, exits with the right code, and reports lost output.

Also covers arguments that the locale cannot decode.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.testing.patience import GUARD_SECONDS
from tests.unit.cli.conftest import shop
from tests.unit.cli.rig import Shop

__all__ = ["shop"]  # a fixture that pytest finds by its name

CLOSED, FULL = ">&-", ">/dev/full"
WHY = {CLOSED: "stdout is closed", FULL: "No space left on device"}

pytestmark = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs a device that is always full, as on Linux"
)

APPLICATION = """
from holdfast import Holdfast

hf = Holdfast()

@hf.task("noisy.v1")
def noisy() -> int:
    for number in range(1000):
        print("so much that no buffer holds it", number)
    print("and now", flush=True)
    return 7
"""


def line(words: str) -> list[bytes]:
    """A shell command line, for redirections. `exec` makes the shell's process the command's process."""
    return [b"sh", b"-c", f"exec {sys.executable} -m holdfast {words}".encode()]


def typed(shop: Shop, words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command line and return the finished process."""
    where = place(shop, **environment)
    return subprocess.run(line(words), **where, capture_output=True, text=True, timeout=GUARD_SECONDS, check=False)


def place(shop: Shop, **environment: str) -> dict[str, Any]:
    return {"cwd": shop.path.parent, "env": os.environ | {"HOLDFAST_URL": shop.url, "LC_ALL": "C.UTF-8"} | environment}


@pytest.mark.parametrize("stdout", [CLOSED, FULL])
@pytest.mark.parametrize("form", ["", " --json"])
def test_a_start_that_cannot_print_the_id_on_stdout_names_the_run_on_stderr(shop: Shop, stdout: str, form: str) -> None:
    done = typed(shop, f"start shop.add.v1 a:=1 b:=2 --key k -q{form} {stdout}")

    (run,) = shop.read("ls")
    assert done.returncode == 1
    why = f"the output could not be written: {WHY[stdout]}"
    assert done.stderr == f"Error: run {run['id']} was started; but {why}\n"

    again = typed(shop, f"start shop.add.v1 a:=1 b:=2 --key k -q{form} {stdout}")
    assert again.stderr == f"Error: run {run['id']} already exists; but {why}\n"


@pytest.mark.parametrize("stdout", [CLOSED, FULL])
def test_a_published_event_is_reported_as_published_when_stdout_fails(shop: Shop, stdout: str) -> None:
    done = typed(shop, f"emit x {stdout}")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: the event was published; but the output could not be written")


@pytest.mark.parametrize("stdout", [CLOSED, FULL])
@pytest.mark.parametrize(
    "words", ["ls", "ls --json", "ls --color always", "--help", "ls --help", "--version", "export"]
)
def test_a_failure_to_write_output_is_one_line_on_stderr(shop: Shop, words: str, stdout: str) -> None:
    shop.start("shop.add.v1", {"a": 1, "b": 2})
    done = typed(shop, f"{words} {stdout}")
    assert (done.returncode, done.stderr.rpartition("\r")[2]) == (
        1,
        f"Error: the output could not be written: {WHY[stdout]}\n",
    )


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full", ">&- 2>&-"])
@pytest.mark.parametrize(("words", "code"), [("show nope", 3), ("nosuch", 2), ("ls state:asleep", 2)])
def test_a_command_without_stderr_has_the_same_exit_code(shop: Shop, words: str, code: int, stderr: str) -> None:
    shop.start("shop.add.v1", {"a": 1, "b": 2})
    assert typed(shop, f"{words} {stderr}").returncode == code


def test_without_stdin_no_question_is_asked_and_nothing_is_read(shop: Shop) -> None:
    run_id = shop.start("shop.add.v1", {"a": 1, "b": 2})
    assert "cannot ask for confirmation" in typed(shop, f"cancel {run_id} <&-").stderr
    assert "stdin is not JSON" in typed(shop, "start shop.add.v1 - <&-").stderr


@pytest.mark.parametrize(
    "words",
    [">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full", "--processes 2 >&- 2>&-", "-v --processes 2 >/dev/full"],
)
def test_a_worker_works_and_ends_in_order_with_closed_or_full_output(shop: Shop, words: str) -> None:
    (shop.path.parent / "app.py").write_text(APPLICATION)
    run_id = shop.start("noisy.v1")

    async def result(hf: Holdfast) -> Any:
        return await hf.run(run_id).result(timeout=GUARD_SECONDS)

    with subprocess.Popen(
        line(f"worker app:hf {words}"), **place(shop), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as worker:
        try:
            assert shop.do(result) == 7
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(GUARD_SECONDS) == 0
        finally:
            worker.kill()


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_arguments_are_utf8_also_where_the_locale_knows_only_ascii(shop: Shop) -> None:
    run_id = shop.start("shop.add.v1", {"a": 1, "b": 2}, key="fail-ü", tags={"stadt": "Köln"})
    for words in ("show key:fail-ü", "ls tag.stadt:Köln"):
        done = typed(shop, words, **ASCII)
        assert done.returncode == 0, done.stderr
        assert run_id in done.stdout

    assert typed(shop, "start größe.v1 wort=ß -q", **ASCII).returncode == 0
    (run,) = shop.read("ls", "type:größe.v1")
    assert run["payload"] == {"wort": "ß"}


def test_a_file_with_letters_outside_the_locale_is_found_by_its_name(shop: Shop) -> None:
    (shop.path.parent / os.fsdecode("käse.json".encode())).write_text('{"a": 1}')
    assert typed(shop, "start cheese.v1 @käse.json -q", **ASCII).returncode == 0
    (run,) = shop.read("ls")
    assert run["payload"] == {"a": 1}


def test_an_argument_that_cannot_be_decoded_is_a_usage_error(shop: Shop) -> None:
    done = typed(shop, "show \"key:$(printf '\\377')\"")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "Error: the argument 'key:\\udcff' is not valid text, neither in UTF-8 nor in the encoding of the locale\n"
    )
