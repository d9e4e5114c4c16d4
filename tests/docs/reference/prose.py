"""Prose: docstrings as Markdown, in lines of one width, with links from the names they mention to their entries."""

from __future__ import annotations

import re
from collections.abc import Mapping

WIDTH = 116

_WORDS = re.compile(r"(?:`[^`]*`|\[[^]]*\]\([^)]*\)|[^\s`])+")
_CODE = re.compile(r"(?<!\[)`([\w.@]+)`(?!\])")


def paragraphs(doc: str) -> list[str]:
    """The paragraphs of a docstring. One that is indented is an example."""
    return [part for part in re.split(r"\n\s*\n", doc) if part.strip()]


def wrapped(text: str, *, first: str = "", rest: str = "") -> str:
    """Text in lines of one width. Code and links stay whole. The lines begin with `first` and `rest`."""
    lines, current = [], first
    is_fresh = True
    for word in _WORDS.findall(" ".join(text.split())):
        if not is_fresh and len(current) + 1 + len(word) > WIDTH:
            lines.append(current)
            current, is_fresh = rest, True
        current += word if is_fresh else f" {word}"
        is_fresh = False
    return "\n".join([*lines, current])


def markdown(doc: str, links: Mapping[str, str]) -> str:
    """A docstring as Markdown; each name that has an entry is linked once."""
    seen: set[str] = set()
    parts = []
    for part in paragraphs(doc):
        if part.startswith("    "):
            code = "\n".join(line[4:] for line in part.splitlines())
            parts.append(f"```py\n{code}\n```")
        elif part.startswith("- "):
            items = re.split(r"\n(?=- )", part)
            parts.append("\n".join(wrapped(linked(one[2:], links, seen), first="- ", rest="  ") for one in items))
        else:
            parts.append(wrapped(linked(part, links, seen)))
    return "\n\n".join(parts)


def linked(text: str, links: Mapping[str, str], seen: set[str] | None = None) -> str:
    """The text with a link at the first mention of each name that has an entry."""
    known: set[str] = set() if seen is None else seen

    def link(found: re.Match[str]) -> str:
        name = found[1]
        if name not in links or name in known:
            return found[0]
        known.add(name)
        return f"[`{name}`]({links[name]})"

    return _CODE.sub(link, text)


def summary(doc: str) -> str:
    """The first sentence of a docstring, on one line."""
    first = " ".join(paragraphs(doc)[0].split()) if doc else ""
    return re.split(r"(?<=[.!?]) (?=[A-Z`])|: (?=`)", first)[0].rstrip(".:")
