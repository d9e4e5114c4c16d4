"""Characters that names, keys, topics and tags must not have: one list for Python, SQL, the command line and imports.

They are refused because nobody can see them, or because they change how the text around them is shown: two names
that look alike would be different names. Payloads are the user's own, and may hold any of them.

Which characters Unicode calls printable grows from version to version, so that is not the rule: two processes with
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
"""The first and the last of each range, and what is in it.

The zero width joiner and non-joiner (U+200C, U+200D) are not among them: Persian, Hindi and emoji need them.
"""


def _escaped(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _ranges(characters: tuple[tuple[int, int, str], ...]) -> str:
    return "".join(f"{_escaped(first)}-{_escaped(last)}" for first, last, _ in characters)


REFUSED_RANGE = _ranges(REFUSED_CHARACTERS)
"""All of them as the inside of brackets in a regular expression, of Python."""

POSTGRES_REFUSED_RANGE = _ranges(
    tuple((max(1, first), last, what) for first, last, what in REFUSED_CHARACTERS if not 0xD800 <= first <= 0xDFFF)
)
"""The same for Postgres, whose text can have neither NUL nor surrogates."""

NOT_IN_TYPES_RANGE = r" \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000,*'\"/#"
"""What the names of types must not have besides, in the same form: blanks, which other names may have, and marks."""

_REFUSED = re.compile(f"[{REFUSED_RANGE}]")


def refused_character(text: str) -> str | None:
    """The first character of a text that a name must not have, in words; None if it has none."""
    # None of them is printable, and this test takes a tenth of the time.
    if text.isprintable() or (found := _REFUSED.search(text)) is None:
        return None
    code = ord(found[0])
    name = unicodedata.name(found[0], "")
    kind = next(what for first, last, what in REFUSED_CHARACTERS if first <= code <= last)
    return f"U+{code:04X} ({name.lower() or kind})"
