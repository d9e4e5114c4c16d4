"""A mutant: a copy of holdfast with one bug, and the tests that must detect it."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "holdfast"


class Edit(msgspec.Struct, frozen=True):
    """A text that occurs once in a file of the package, and its replacement."""

    path: str
    old: str
    new: str

    def applied_to(self, text: str) -> str:
        """Return the file with the bug. Raises if the text does not occur exactly once."""
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.path} has this {count} times, not once: {self.old!r}")
        return text.replace(self.old, self.new)


class Catch(msgspec.Struct, frozen=True):
    """The catcher that must detect the bug, by name. `words` name the test, as for `pytest -k`: `one or another`."""

    catcher: str
    words: str = ""

    @property
    def names(self) -> list[str]:
        """The words that must each be part of a test name."""
        return self.words.split(" or ") if self.words else []


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A bug: `breaks` is the broken promise, `caught_by` are the catchers, the quickest first."""

    name: str
    breaks: str
    edits: tuple[Edit, ...]
    caught_by: tuple[Catch, ...]

    @property
    def where(self) -> str:
        return ", ".join(dict.fromkeys(edit.path for edit in self.edits))

    def texts(self) -> dict[str, str]:
        """Return the changed files, by their paths."""
        texts: dict[str, str] = {}
        for edit in self.edits:
            try:
                text = texts.get(edit.path) or (PACKAGE / edit.path).read_text()
                texts[edit.path] = edit.applied_to(text)
            except (OSError, ValueError) as error:
                raise ValueError(f"mutant {self.name!r} fits the code no more: {error}") from None
        return texts


def plant(mutant: Mutant | None, folder: Path) -> None:
    """Copy the package into a folder, with its compiled files, and apply the bug, if there is one."""
    texts = {} if mutant is None else mutant.texts()
    shutil.copytree(PACKAGE, folder / "holdfast")
    for path, text in texts.items():
        (folder / "holdfast" / path).write_text(text)
