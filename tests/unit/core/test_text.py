"""Characters that names must not contain: one list, with the same meaning in Python and Postgres."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import pytest

from holdfast import Holdfast, InvalidRequest, Registry
from holdfast.core.intent import check_id, check_key, check_tags, check_text, check_topic, check_type
from holdfast.core.location import POSTGRES_REFUSED_RANGE, REFUSED_CHARACTERS, check_name, refused_character
from holdfast.core.schedules import check_schedule_name

REFUSED = [code for first, last, _ in REFUSED_CHARACTERS for code in (first, last)]
ALLOWED = [
    "\u200c",  # zero width non-joiner, which Persian needs
    "\u200d",  # zero width joiner, which emoji need
    "\u00a0",
    "\u3000",
    "\ue000",  # private use
    "\U0001fae9",  # an emoji that some Python versions do not know
    "é",
    "漢",
    "א",
    "\u0300",
]


def _nothing() -> None: ...


CHECKS: dict[str, Callable[[str], object]] = {
    "name": check_name,
    "type": check_type,
    "text": lambda text: check_text(text, "thing"),
    "topic": check_topic,
    "key": check_key,
    "id": check_id,
    "tag": lambda text: check_tags({text: "x"}),
    "tag's value": lambda text: check_tags({"x": text}),
    "schedule": check_schedule_name,
    "worker": lambda text: Holdfast("memory://").worker(name=text),
    "registered type": lambda text: Registry().task(text)(_nothing),
}


@pytest.mark.parametrize("check", CHECKS)
def test_every_character_of_the_list_is_refused_everywhere(check: str) -> None:
    for code in REFUSED:
        with pytest.raises(InvalidRequest, match=f"U\\+{code:04X} "):
            CHECKS[check](f"a{chr(code)}b")


@pytest.mark.parametrize("check", CHECKS)
def test_every_other_character_is_accepted_by_every_python(check: str) -> None:
    for character in ALLOWED:
        if check.endswith("type") and character in "\u00a0\u3000":
            continue
        CHECKS[check](f"a{character}b")


def test_type_names_have_no_whitespace_of_any_kind() -> None:
    for blank in " \u00a0\u1680\u2003\u200a\u202f\u205f\u3000":
        with pytest.raises(InvalidRequest, match="spaces"):
            check_type(f"a{blank}b")


def test_no_refused_character_counts_as_printable() -> None:
    """`refused_character` relies on it."""
    for first, last, _ in REFUSED_CHARACTERS:
        assert not any(chr(code).isprintable() for code in range(first, last + 1))


def test_postgres_refuses_the_same_characters_as_python() -> None:
    """Regular expressions of Postgres have the same escapes."""
    pattern = re.compile(f"[{POSTGRES_REFUSED_RANGE}]")
    for code in range(1, sys.maxunicode + 1):
        if not 0xD800 <= code <= 0xDFFF:
            assert (pattern.search(chr(code)) is not None) == (refused_character(chr(code)) is not None), hex(code)


def test_a_refusal_names_the_character() -> None:
    assert refused_character("a\u202eb") == "U+202E (right-to-left override)"
    assert refused_character("a\nb") == "U+000A (control characters (C0))"
    assert refused_character("plain") is None


def test_the_list_has_all_control_and_bidirectional_characters() -> None:
    control = [*range(0x20), *range(0x7F, 0xA0)]
    bidirectional = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    separators = [0x2028, 0x2029, 0xFEFF]
    assert [hex(code) for code in [*control, *bidirectional, *separators] if refused_character(chr(code)) is None] == []
