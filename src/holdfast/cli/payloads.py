"""Payloads on the command line: JSON, `@file`, `-` for stdin, or `name=text number:=1`; and pairs such as tags."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from holdfast.cli.exits import Refusal

_PAIR = re.compile(r"([A-Za-z_][\w.\-]*)(:?=)(.*)", re.DOTALL)

FORMS = "JSON, @file, - for stdin, or pairs such as name=text count:=3"


def parse_payload(words: Sequence[str]) -> Any:
    """Parse the words of a payload. Return None if there are no words."""
    if not words:
        return None
    if len(words) > 1 or _PAIR.fullmatch(words[0]):
        return _parse_pairs(words)
    (word,) = words
    if word == "-":
        return parse_json(sys.stdin.read(), "stdin")
    if word.startswith("@"):
        return parse_json(read_text(word[1:], "the payload from", "; @name reads the payload from a file"), word[1:])
    return parse_json(word, "the payload", advice=f"; a payload is {FORMS}")


def parse_object(words: Sequence[str]) -> dict[str, Any]:
    """Parse the words of a payload that must be a JSON object: the parameters of a workflow, by name."""
    value = parse_payload(words)
    if value is None and not words:
        return {}
    if not isinstance(value, dict):
        raise Refusal(
            f"the payload of a run must be a JSON object with the workflow's parameters, not {_kind(value)}: "
            f'write {{"name": …}} or name=…'
        )
    return value


def parse_pair(text: str, option: str) -> tuple[str, str]:
    """Parse `name=value`, as in `--tag`."""
    name, sign, value = text.partition("=")
    if not sign or not name or not value:
        raise Refusal(f"{option} {text!r}: write it as name=value")
    return name, value


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options of a start that were given, with the tags as names and values."""
    given = {name: value for name, value in options.items() if value is not None}
    return given | {"tags": dict(parse_pair(pair, "--tag") for pair in options["tags"])}


def check_timeout(timeout: timedelta | None, *, wait: bool) -> None:
    """Refuse --timeout without --wait."""
    if timeout is not None and not wait:
        raise Refusal("--timeout works only with --wait; add --wait")


def parse_json(text: str, where: str, advice: str = "") -> Any:
    """Parse JSON. An error says what `where` names, and gives the advice."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise Refusal(f"{where} is not JSON: {error.msg} at {place}{advice}") from error
    except RecursionError as error:
        raise Refusal(f"{where} is nested too deeply") from error
    except ValueError as error:
        raise Refusal(f"{where} is not JSON: {error}{advice}") from error


def parse_patch(text: str, locations: Collection[str]) -> tuple[str, Any]:
    """Parse `LOCATION=JSON`. A location may contain `=`, so the known locations decide where it ends."""
    cuts = [index for index, character in enumerate(text) if character == "="]
    if not cuts:
        raise Refusal(f"--patch {text!r}: write it as LOCATION=JSON")
    cut = next((cut for cut in cuts if text[:cut] in locations), cuts[0])
    return text[:cut], parse_json(text[cut + 1 :], f"the patch of {text[:cut]!r}", '; write a string as "text"')


def read_text(name: str, what: str, advice: str = "") -> str:
    """Read a file that the user names. `what` it contains is for the error."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Refusal(f"there is no file {name!r}{advice}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Refusal(f"cannot read {what} {name!r}: {reason}") from error


def _parse_pairs(words: Sequence[str]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for word in words:
        pair = _PAIR.fullmatch(word)
        if pair is None:
            raise Refusal(f"{word!r} is not a pair; a payload is {FORMS}")
        name, sign, text = pair.groups()
        if name in value:
            raise Refusal(f"{name!r} is given twice")
        value[name] = (
            parse_json(text, f"the value of {name!r}", f"; for a string write {name}=…") if sign == ":=" else text
        )
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _kind(value: Any) -> str:
    kinds = {type(None): "null", bool: "a boolean", str: "a string", list: "an array"}
    return kinds.get(type(value), "a number")
