"""Log lines of a worker process, for people and for programs."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from holdfast.cli.logs import JsonFormatter, LineFormatter, StepFilter
from holdfast.runner.step_info import StepInfo, current_step


def a_record(text: str = "it is %s", *args: Any, **about: Any) -> logging.LogRecord:
    logger = logging.getLogger("shop")
    return logger.makeRecord("shop", logging.WARNING, "file", 1, text, args or ("late",), None, extra=about)


def test_a_line_names_the_run_and_the_location_once() -> None:
    line = LineFormatter(2).format(a_record(run_id="r1", location="ship/label"))
    named = LineFormatter().format(a_record("run %s is late", "r1", run_id="r1"))

    assert line.endswith(" [2] warning  shop  it is late  run=r1  at=ship/label")
    assert named.endswith(" warning  shop  run r1 is late")


def test_a_json_line_has_all_known_fields() -> None:
    line = JsonFormatter(2).format(a_record(run_id="r1", location=None, type="shop.v1", worker="w", error="Boom", x=1))

    record_json = json.loads(line)
    assert record_json.pop("ts").endswith("+00:00")
    assert record_json == {
        "level": "warning",
        "logger": "shop",
        "message": "it is late",
        "run_id": "r1",
        "type": "shop.v1",
        "worker": "w",
        "error": "Boom",
        "process": 2,
    }


@pytest.mark.parametrize("text", ["two\nlines", 'a "quote"', "\x00 \ud800"])
def test_a_json_line_is_one_line_whatever_the_message(text: str) -> None:
    line = JsonFormatter().format(a_record("%s", text, type=text))

    assert "\n" not in line
    assert json.loads(line)["message"].startswith(text[:1])


def test_an_error_is_logged_with_its_traceback() -> None:
    record = a_record()
    try:
        int("x")
    except ValueError:
        record.exc_info = sys.exc_info()

    record_json = json.loads(JsonFormatter().format(record))
    assert record_json["error"] == "ValueError"
    assert "ValueError: invalid literal" in record_json["traceback"]
    assert LineFormatter().format(record).endswith("with base 10: 'x'")


def test_any_log_line_of_a_step_names_its_run() -> None:
    mine, other = a_record(), a_record(run_id="r9")
    token = current_step.set(StepInfo("r1", 1, "charge", 1))
    try:
        assert StepFilter().filter(mine)
        assert StepFilter().filter(other)
    finally:
        current_step.reset(token)

    assert (vars(mine)["run_id"], vars(mine)["location"]) == ("r1", "charge")
    assert vars(other)["run_id"] == "r9"
