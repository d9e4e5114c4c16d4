"""`ctx.run` and `ctx.logger`: the facts about a run for its own code, and its logger."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from holdfast.core.clock import moment
from holdfast.core.model import Run

if TYPE_CHECKING:
    from holdfast.runner.code_requests import CodeRequests


class RunView:
    """Facts about a run for its own code, as `ctx.run`. The same on every replay.

    `id`, `type`, `key`, `tags`, `priority` and `created_at` are those of its start. `generation` is 1, and one more
    after each `ctx.continue_as_new`. `parent_id` is the run that it was started by or under.
    """

    def __init__(self, run: Run) -> None:
        self.id = run.id
        self.type = run.type
        self.key = run.key
        self.tags = dict(run.tags)
        self.priority = run.priority
        self.generation = run.generation
        self.parent_id = run.parent_id
        self.created_at = moment(run.created_at)

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.type}>"


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that is silent while a run is replayed. Records have `run_id`, `type` and `location` (the branch)."""

    def __init__(self, requests: CodeRequests) -> None:
        super().__init__(logging.getLogger("holdfast.workflow"), {"run_id": requests.run.id, "type": requests.run.type})
        self._requests = requests

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        location = self._requests.loop.scope.path.rstrip("/") or None
        kwargs["extra"] = {**(self.extra or {}), "location": location, **(kwargs.get("extra") or {})}
        return msg, kwargs

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name logging calls
        return not self._requests.is_replaying and super().isEnabledFor(level)
