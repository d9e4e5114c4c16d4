"""Kinds of values: how a value is written in a file, in a variable or on a command line, and how it is shown.

An invalid value raises `ValueError`. Its text continues a message that begins with "url = 5: ".
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import quote

from holdfast.config.secret import HIDDEN, Address, scrubbed
from holdfast.core.length import parse_length, written

T_co = TypeVar("T_co", covariant=True)

_SQLITE = "sqlite:///"


class Kind(Generic[T_co]):
    """A kind of value: `parse` reads a string, `accept` a TOML value, and `written` returns a string for `parse`."""

    metavar = "TEXT"

    def parse(self, text: str) -> T_co:
        raise NotImplementedError

    def accept(self, value: object) -> T_co:
        """Convert a TOML value. By default only a string is valid."""
        if isinstance(value, str):
            return self.parse(value)
        raise ValueError(f"expected a string, not {_kind_of(value)}")

    def written(self, value: object) -> str:
        return str(value)

    def shown(self, value: object) -> object:
        """Return the value as JSON, with secrets hidden."""
        return value

    def rooted(self, value: object, folder: Path) -> object:
        """Resolve a value from a file in this folder. Only paths depend on the folder."""
        del folder
        return value


class Text(Kind[str]):
    """Any string."""

    def parse(self, text: str) -> str:
        return text


class Url(Text):
    """The URL of a store. A relative path in a file is relative to that file, not to the current directory."""

    metavar = "URL"

    def shown(self, value: object) -> object:
        return scrubbed(str(value))

    def rooted(self, value: object, folder: Path) -> object:
        url = str(value)
        path = url.removeprefix(_SQLITE)
        if path == url or path.startswith("/"):
            return url
        return f"{_SQLITE}{quote(str(folder))}/{path}"


class Choice(Kind[str]):
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def parse(self, text: str) -> str:
        if text not in self.words:
            raise ValueError(f"expected one of {', '.join(self.words)}")
        return text


@dataclass(frozen=True)
class Whole(Kind[int]):
    """A whole number."""

    least: int
    most: int | None = None

    metavar = "NUMBER"

    def parse(self, text: str) -> int:
        try:
            return self.accept(int(text))
        except ValueError:
            raise ValueError(self._wanted) from None

    def accept(self, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            if self.least <= value and (self.most is None or value <= self.most):
                return value
            raise ValueError(self._wanted)
        raise ValueError(f"{self._wanted}, not {_kind_of(value)}")

    @property
    def _wanted(self) -> str:
        limit = f"of at least {self.least}" if self.most is None else f"from {self.least} to {self.most}"
        return f"expected a whole number {limit}"


@dataclass(frozen=True)
class Length(Kind[timedelta]):
    """A duration: a string such as `30s`, or a number of seconds."""

    may_be_zero: bool = False

    metavar = "TIME"

    def parse(self, text: str) -> timedelta:
        try:
            length = parse_length(text)
        except ValueError:
            raise ValueError("expected a duration, such as 90 (seconds), 30s, 5m, 1h30m or 2d") from None
        if not length and not self.may_be_zero:
            raise ValueError("expected a duration greater than zero")
        return length

    def accept(self, value: object) -> timedelta:
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            return self.parse(str(value))
        raise ValueError(f"expected a duration such as 30s, or a number of seconds, not {_kind_of(value)}")

    def written(self, value: object) -> str:
        assert isinstance(value, timedelta)
        return written(value)

    def shown(self, value: object) -> object:
        return self.written(value)


class Names(Kind[tuple[str, ...]]):
    """Several names: a list, or a string with commas."""

    metavar = "NAMES"

    def parse(self, text: str) -> tuple[str, ...]:
        names = tuple(name for part in text.split(",") if (name := part.strip()))
        if not names:
            raise ValueError("expected at least one name, or several separated by commas")
        return names

    def accept(self, value: object) -> tuple[str, ...]:
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            return self.parse(",".join(value))
        if isinstance(value, str):
            return self.parse(value)
        raise ValueError(f"expected a list of strings, not {_kind_of(value)}")

    def written(self, value: object) -> str:
        assert isinstance(value, tuple)
        return ",".join(value)

    def shown(self, value: object) -> object:
        assert isinstance(value, tuple)
        return list(value)


class Listening(Kind[Address]):
    """An address to listen on: a port, or a host and a port."""

    metavar = "[HOST:]PORT"

    def parse(self, text: str) -> Address:
        return Address.parsed(text)

    def accept(self, value: object) -> Address:
        is_port = isinstance(value, int) and not isinstance(value, bool)
        return self.parse(str(value)) if is_port else super().accept(value)

    def shown(self, value: object) -> object:
        return None if value is None else str(value)


class Secret(Text):
    """A string that is never shown."""

    def shown(self, value: object) -> object:
        return None if value is None else HIDDEN


def _kind_of(value: object) -> str:
    """Return the name of a value's TOML type, for messages."""
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return "a date or time"
