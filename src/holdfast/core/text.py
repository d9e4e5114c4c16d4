"""Characters that names, keys, topics and tags must not contain: one list for Python, SQL, the CLI and imports.

They are invisible, or they change how the text around them is displayed, so two different names could look the same.
Payloads may contain any of them.

Unicode's own notion of printable characters is not the rule, because it grows from version to version. Processes with
different versions of Python would disagree.
"""

from __future__ import annotations

import re
import unicodedata

REFUSED_CHARACTERS: tuple[tuple[int, int, str], ...] = (
    (0x0000, 0x001F, "control characters (C0)"),
    (0x007F, 0x009F, "delete and control characters (C1)"),
    (0x00AD, 0x00AD, "soft hyphen"),
    (0x061C, 0x061C, "Arabic letter mark (bidirectional)"),
    (0x180E, 0x180E, "Mongolian vowel separator"),
    (0x200B, 0x200B, "zero width space"),
    (0x200E, 0x200F, "left-to-right and right-to-left marks"),
    (0x2028, 0x2029, "line and paragraph separators"),
    (0x202A, 0x202E, "bidirectional embeddings and overrides"),
    (0x2060, 0x206F, "word joiner, invisible operators, bidirectional isolates"),
    (0xD800, 0xDFFF, "surrogates"),
    (0xFDD0, 0xFDEF, "noncharacters"),
    (0xFEFF, 0xFEFF, "byte order mark"),
    (0xFFF9, 0xFFFB, "interlinear annotations"),
    *((plane + 0xFFFE, plane + 0xFFFF, "noncharacters") for plane in range(0, 0x110000, 0x10000)),
    (0xE0000, 0xE007F, "tags"),
)
"""The first and last character of each range, and a description.

The zero width non-joiner and joiner (U+200C, U+200D) are allowed: Persian, Hindi and emoji need them.
"""


def _escaped(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _ranges(characters: tuple[tuple[int, int, str], ...]) -> str:
    return "".join(f"{_escaped(first)}-{_escaped(last)}" for first, last, _ in characters)


REFUSED_RANGE = _ranges(REFUSED_CHARACTERS)
"""The refused characters as the inside of brackets in a Python regular expression."""

POSTGRES_REFUSED_RANGE = _ranges(
    tuple((max(1, first), last, what) for first, last, what in REFUSED_CHARACTERS if not 0xD800 <= first <= 0xDFFF)
)
"""The same for Postgres, whose text can have neither NUL nor surrogates."""

NOT_IN_TYPES_RANGE = r" \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000,*'\"/#"
"""Characters that type names must not contain in addition, in the same form: spaces and some punctuation marks."""

_REFUSED = re.compile(f"[{REFUSED_RANGE}]")


def refused_character(text: str) -> str | None:
    """Return a description of the first refused character in a text; None if it has none."""
    # No refused character is printable, and `isprintable` takes a tenth of the time of the search.
    if text.isprintable() or (found := _REFUSED.search(text)) is None:
        return None
    code = ord(found[0])
    name = unicodedata.name(found[0], "")
    kind = next(what for first, last, what in REFUSED_CHARACTERS if first <= code <= last)
    return f"U+{code:04X} ({name.lower() or kind})"
