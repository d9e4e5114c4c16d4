"""Suggestions: the error message for an unknown name, with the nearest valid name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from holdfast.core.errors import InvalidRequest


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to a misspelt one, if its similarity is at least `cutoff` (0 to 1)."""
    import difflib  # imported here, because it is slow to load and needed only for mistakes

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def refuse_unknown(
    kind: str, given: Iterable[str], known: Iterable[str], *, of: str = "", advice: str = ""
) -> NoReturn:
    """Raise `InvalidRequest` for the given names that are not known.

    `kind` says what they are (`option`, `filter`, `parameter`), `of` names their owner, and `advice` says what to do.
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
