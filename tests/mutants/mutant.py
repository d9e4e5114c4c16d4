"""A mutant: a copy of holdfast with one bug in it, and who has to notice it."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "holdfast"


class Edit(msgspec.Struct, frozen=True):
    """In a file of the package, a text that stands there once, and what stands there instead."""

    path: str
    old: str
    new: str

    def applied_to(self, text: str) -> str:
        """The file with the bug in it. Refuses a text that the code does not have any more, or more than once."""
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.path} has this {count} times, not once: {self.old!r}")
        return text.replace(self.old, self.new)


class Catch(msgspec.Struct, frozen=True):
    """Who has to notice, by the name of a catcher. `words` name the test, as for `pytest -k`: `one or another`."""

    catcher: str
    words: str = ""

    @property
    def names(self) -> list[str]:
        """The words of which each has to be part of the name of a test."""
        return self.words.split(" or ") if self.words else []


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A bug: `breaks` is the promise that is kept no longer, `caught_by` are those who notice, the quickest first."""

    name: str
    breaks: str
    edits: tuple[Edit, ...]
    caught_by: tuple[Catch, ...]

    @property
    def where(self) -> str:
        return ", ".join(dict.fromkeys(edit.path for edit in self.edits))

    def texts(self) -> dict[str, str]:
        """The files that have the bug, by their paths."""
        texts: dict[str, str] = {}
        for edit in self.edits:
            try:
                text = texts.get(edit.path) or (PACKAGE / edit.path).read_text()
                texts[edit.path] = edit.applied_to(text)
            except (OSError, ValueError) as error:
                raise ValueError(f"mutant {self.name!r} fits the code no more: {error}") from None
        return texts


def plant(mutant: Mutant | None, folder: Path) -> None:
    """Copy the package into a folder, with its compiled files, and put the bug into it, if there is one."""
    texts = {} if mutant is None else mutant.texts()
    shutil.copytree(PACKAGE, folder / "holdfast")
    for path, text in texts.items():
        (folder / "holdfast" / path).write_text(text)
