"""A page of the documentation, and its fenced blocks.

A `python` block is executed as written; blocks of a page share one namespace, and `await` is allowed at top level. A
`text` block directly below it is its output, where `…` stands for anything. A block that cannot run is marked by `<!--
skip: reason -->` on the line above it; one marked by `<!-- file: name -->` is saved, for others to import.

`$HOLDFAST_URL` is an SQLite file; on a page that says `<!-- store: postgres -->`, an empty database on the private
server of the tests, and with `<!-- store: redis -->` an empty namespace. On Postgres a `sql` block is typed into psql,
and a `text` block below it is the output of psql.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"

_FENCE = re.compile(r"```(\w*)\s*")
_MARK = re.compile(r"<!-- (skip|file): (.+) -->")
_STORE = re.compile(r"^<!-- store: (\w+) -->$", re.MULTILINE)
_HEADING = re.compile(r"#{1,6} (.+)")


@dataclass(frozen=True)
class Block:
    """A fenced block. `line` is its first line in the page, `after` the last line above its fence."""

    language: str
    text: str
    line: int
    after: str

    @property
    def skip_reason(self) -> str | None:
        return self._marked("skip")

    @property
    def file_name(self) -> str | None:
        """The name of the file it is saved as."""
        return self._marked("file")

    def _marked(self, kind: str) -> str | None:
        found = _MARK.fullmatch(self.after)
        return found[2] if found and found[1] == kind else None


@dataclass(frozen=True)
class Page:
    """One Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(PROJECT))

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def store(self) -> str:
        """The kind of store its blocks run on."""
        found = _STORE.search(self.text)
        return found[1] if found else "sqlite"

    def blocks(self, language: str | None = None) -> list[Block]:
        """The fenced blocks, or those in one language."""
        return [block for block in self._blocks() if language in (None, block.language)]

    def prose(self) -> str:
        """Everything outside of fenced blocks."""
        lines = self.text.splitlines()
        for block in self._blocks():
            end = block.line + block.text.count("\n")
            lines[block.line - 2 : end] = [""] * (end - block.line + 2)
        return "\n".join(lines)

    def anchors(self) -> set[str]:
        """The anchors that a link may name after `#`, as GitHub derives them from the headings."""
        headings = (_HEADING.fullmatch(line) for line in self.prose().splitlines())
        return {_slug(heading[1]) for heading in headings if heading}

    def _blocks(self) -> Iterator[Block]:
        language, start, after = "", 0, ""
        inside: list[str] | None = None
        for number, line in enumerate(self.text.splitlines(), start=1):
            if inside is None:
                if opening := _FENCE.fullmatch(line):
                    language, start, inside = opening[1], number + 1, []
                elif line.strip():
                    after = line.strip()
            elif line == "```":
                yield Block(language, "".join(f"{one}\n" for one in inside), start, after)
                after, inside = f"```{language}", None
            else:
                inside.append(line)
        assert inside is None, f"{self.name}: the block that begins at line {start} does not end"


def _slug(heading: str) -> str:
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")


def pages() -> list[Page]:
    """Return every page for readers."""
    return [
        Page(path)
        for path in sorted(
            [
                *PROJECT.glob("*.md"),
                *PROJECT.glob("examples/*.md"),
                PROJECT / "tests" / "README.md",
                *DOCS.rglob("*.md"),
            ]
        )
    ]
