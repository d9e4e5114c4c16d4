"""The JSON of the port: every command, question, checkpoint and answer has one, and is made from it again."""

from __future__ import annotations

import re

from holdfast.core.model import Value


def tag_of(name: str) -> str:
    """Return the tag of a class: `SendMessages` is `send_messages`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.rpartition(".")[2]).lower()


class Tagged(Value, frozen=True, kw_only=True, tag=tag_of, tag_field="kind"):
    """The base of the members of unions. `kind` in the JSON of a value names its class."""
