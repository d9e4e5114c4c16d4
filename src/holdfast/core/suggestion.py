"""Suggestions: the message for a name that does not exist, with the valid name that is nearest to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from holdfast.core.errors import InvalidRequest


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one most likely stands for, if one is near enough."""
    import difflib  # here, as it takes long to load and is needed only for a mistake

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


def refuse_unknown(
    kind: str, given: Iterable[str], known: Iterable[str], *, of: str = "", advice: str = ""
) -> NoReturn:
    """Raise `InvalidRequest` for the names among those given that are not known.

    `kind` says what they would be (`option`, `filter`, `parameter`), `of` whose, and `advice` what to do instead.
    """
    names = list(known)
    unknown = [name for name in given if name not in names]
    near = [found for name in unknown if (found := nearest(name, names)) is not None]
    owner = f" of {of}" if of else ""
    text = f"unknown {kind} {', '.join(unknown)}{owner}"
    if near:
        text += f"; did you mean {', '.join(near)}?"
    listed = f"the {kind}s{owner} are {', '.join(names)}" if names else f"{of or 'it'} has no {kind}s"
    raise InvalidRequest(f"{text}{'' if near else ';'} {advice or listed}")
