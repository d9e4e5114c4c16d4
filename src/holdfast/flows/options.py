"""The options of children in a flow: the dict `options={…}` of call, start and map."""

from __future__ import annotations

from typing import Any

from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import check_delay, check_length, check_priority, check_tags, run_options
from holdfast.core.location import check_name
from holdfast.core.suggestion import refuse_unknown

OPTION_NAMES = (
    "name",
    "priority",
    "delay",
    "tags",
    "on_close",
    "max_run",
    "max_suspend",
    "undelivered",
    "retention",
)
"""The same names as the options of a child in Python."""


def check_child_options(options: Any) -> dict[str, Any]:
    """Return the options of a child if they are valid. Raises `InvalidRequest` otherwise."""
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise InvalidRequest(f"options={options!r:.80}: expected a dict, such as {{'priority': 10}}")
    if not options.keys() <= set(OPTION_NAMES):
        refuse_unknown("option", options, OPTION_NAMES, of="a child")
    if "name" in options:
        check_name(options["name"], "name of a child")
    if "priority" in options:
        check_priority(options["priority"])
    if "delay" in options:
        check_delay(options["delay"])
    if "tags" in options:
        check_tags(options["tags"])
    if options.get("on_close", "cancel") not in ("cancel", "abandon"):
        raise InvalidRequest(f"on_close={options['on_close']!r}: expected 'cancel' or 'abandon'")
    check_length(options.get("retention"), "retention")
    run_options(
        max_run=options.get("max_run"),
        max_suspend=options.get("max_suspend"),
        undelivered=options.get("undelivered", "discard"),
    )
    return dict(options)
