"""A location: the stable path of an operation inside a run.

`charge`, `charge#2`, `+1/charge`, `pay/~/charge`: a name, counted per scope, below the enclosing scopes. A location is
fixed when the operation is *called*. So the order in which branches happen to start never renumbers their operations.

Names, keys, topics and tags must not contain the characters that are refused here: one list for Python, SQL, the CLI
and imports. They are invisible, or they change how the text around them is displayed, so two different names could look
the same. Payloads may contain any of them. Unicode's own notion of printable characters is not the rule, because it
grows from version to version. Processes with different versions of Python would disagree.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from random import Random
from zlib import crc32

from holdfast.core.errors import InvalidRequest

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


NAME_LIMIT = 200
TIMER_NAME = "~timer"

PEOPLE_PREFIX = "@"
"""The beginning of locations that only people and revisions read. A claim leaves these entries out."""

_LISTED = 20
_ITERATION = re.compile(r"/~(\d+)(?=/|$)")


def check_name(name: str, what: str = "name") -> str:
    """Return `name` if it is valid in a location. Raises `InvalidRequest` with the reason otherwise."""
    if not isinstance(name, str):
        raise InvalidRequest(f"a {what} must be a string, not {type(name).__name__}: {name!r}")
    if not 1 <= len(name) <= NAME_LIMIT:
        raise InvalidRequest(f"a {what} has 1 to {NAME_LIMIT} characters; this one has {len(name)}: {name[:40]!r}")
    if "/" in name or "#" in name or name[0] in "~+@":
        raise InvalidRequest(f"a {what} must not contain '/' or '#' or begin with '~', '+' or '@': {name!r}")
    if (found := refused_character(name)) is not None:
        raise InvalidRequest(f"a {what} must not contain {found}: {name!r}")
    return name


def is_for_people(location: str) -> bool:
    """True if only people and revisions read the entry at a location, so that a claim leaves it out."""
    return location.startswith(PEOPLE_PREFIX)


def name_from(kind: str, subject: str) -> str:
    """Return a valid name for an operation that the user did not name, such as a wait for a topic."""
    quoted = subject.replace("%", "%25").replace("/", "%2F").replace("#", "%23")
    return f"{kind}:{quoted}"[:NAME_LIMIT]


class Scope:
    """A part of a run's code that counts its own names: the workflow itself, a task, a branch, a loop's iteration.

    It also numbers the tasks and futures created in it, for their hashes. `iteration` is the path of the innermost loop
    iteration around it. Random numbers restart in each iteration, because a run may resume there. `chances` are the
    random sources, which live as long as anything in that iteration.
    """

    __slots__ = ("_made", "_names", "_spawned", "chances", "has_tasks", "iteration", "path")

    def __init__(self, path: str = "", iteration: str = "", chances: dict[str, Random] | None = None) -> None:
        self.path = path
        self.iteration = iteration
        self.has_tasks = False
        self.chances: dict[str, Random] = {} if chances is None else chances
        self._names: dict[str, int] = {}
        self._spawned = 0
        # Derived from the path alone, because a resumed loop has not created the tasks of its earlier iterations. The
        # low bits count up, so that small sets iterate in order of creation.
        self._made = (crc32(path.encode()) & 0x3FFF) << 16 if path else 0

    def locate(self, name: str) -> str:
        """Return the location of the next operation called `name` in this scope."""
        count = self._names.get(name, 0) + 1
        self._names[name] = count
        return self.path + (name if count == 1 else f"{name}#{count}")

    def spawn(self) -> Scope:
        """Return the scope of the next task that is spawned here."""
        self._spawned += 1
        self.has_tasks = True
        return Scope(f"{self.path}+{self._spawned}/", self.iteration, self.chances)

    def branch(self, location: str, key: str) -> Scope:
        """Return the scope of a branch of an operation in this scope."""
        self.has_tasks = True
        return Scope(f"{location}/{key}/", self.iteration, self.chances)

    def part(self, name: str) -> Scope:
        """Return the scope of a named part of the code, which the same task runs: a step of a pipeline.

        The `~` keeps the operations of one part from being taken for branches that run side by side.
        """
        return Scope(f"{self.path}{name}/~/", self.iteration, self.chances)

    def next_number(self) -> int:
        """Return a number for the next task or future that is created here."""
        self._made += 1
        return self._made


def iteration_of(location: str, number: int) -> str:
    """Return the path of one iteration of the loop at a location."""
    return f"{location}/~{number}"


def without_iterations(location: str) -> str:
    """Return a location without iteration numbers, which is the same in all iterations of the loops around it."""
    return _ITERATION.sub("/~", location)


def iterations_around(location: str) -> Iterator[tuple[str, int]]:
    """Yield the loops around a location, outermost first, each with the number of the iteration."""
    for found in _ITERATION.finditer(location):
        yield location[: found.start()], int(found[1])


def is_within(location: str, scope: str) -> bool:
    """True if a location is that of an operation, or inside it."""
    return location == scope or location.startswith(f"{scope}/")


def listed(locations: Sequence[str]) -> str:
    """Return the first of these locations for people, and how many more there are."""
    more = f" and {len(locations) - _LISTED} more" if len(locations) > _LISTED else ""
    return ", ".join(map(repr, locations[:_LISTED])) + more
