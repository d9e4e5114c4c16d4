"""The options of children in a flow: the dict `options={…}` of call, start and map."""

from __future__ import annotations

from typing import Any

from holdfast.core.errors import InvalidRequest
from holdfast.core.location import check_name
from holdfast.core.start_options import ChildOptions, intent_fields, refuse_parent
from holdfast.core.suggestion import refuse_unknown

OPTION_NAMES = tuple(ChildOptions.__annotations__)
"""The same names as the options of a child in Python."""


def check_child_options(options: Any) -> dict[str, Any]:
    """Return the options of a child if they are valid. Raises `InvalidRequest` otherwise."""
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise InvalidRequest(f"options={options!r:.80}: expected a dict, such as {{'priority': 10}}")
    if not options.keys() <= set(OPTION_NAMES):
        refuse_parent(options)
        refuse_unknown("option", options, OPTION_NAMES, of="a child")
    if "name" in options:
        check_name(options["name"], "name of a child")
    intent_fields(options)
    return dict(options)
