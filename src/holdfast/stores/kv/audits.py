"""The audit facts of runs: one line of a log each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.core import audit
from holdfast.core.model import AuditFact
from holdfast.stores.kv import names
from holdfast.stores.kv.runs import KvRuns
from holdfast.stores.kv.workspace import Workspace

encode = msgspec.json.encode
_decode = msgspec.json.Decoder(AuditFact).decode


def fact_line(fact: AuditFact) -> bytes:
    """Return a fact as a line of the log of its run: JSON without the run."""
    return b"{" + encode(fact)[len(encode(fact.run_id)) + 11 :]


def facts_of(run_id: str, lines: Iterable[bytes]) -> tuple[AuditFact, ...]:
    """Return the facts in the log of a run."""
    begin = b'{"run_id":' + encode(run_id) + b","
    return tuple(_decode(begin + line[1:]) for line in lines)


class KvAudit:
    """The audit facts of runs. A change of a run's audit always comes with a change of its head."""

    def __init__(self, space: Workspace, runs: KvRuns) -> None:
        self._space = space
        self._runs = runs

    def note(self, fact: AuditFact | None) -> None:
        if fact is not None:
            self._space.append(names.audit(fact.run_id), fact_line(fact))

    def note_often(self, fact: AuditFact, count: int) -> None:
        self.note(fact)
        if count and count % audit.TRIM_EVERY == 0 and not self._runs.is_new(fact.run_id):
            self._trim(fact.run_id)

    def note_once(self, fact: AuditFact, count: int = 1) -> None:
        if all(fact.event != known.event or fact.data != known.data for known in self.all(fact.run_id)):
            self.note_often(fact, count)

    def _trim(self, run_id: str) -> None:
        lines = self._space.log(names.audit(run_id))
        for line in surplus(lines):
            self._space.cut(names.audit(run_id), line)

    def has_request(self, run_id: str, request_id: str) -> bool:
        return any(fact.data.get(audit.REQUEST) == request_id for fact in self.all(run_id))

    def requests(self, run_id: str) -> Sequence[AuditFact]:
        return self.all(run_id)

    def all(self, run_id: str) -> Sequence[AuditFact]:
        return facts_of(run_id, self._space.log(names.audit(run_id)))


def surplus(lines: Sequence[bytes]) -> list[bytes]:
    """Return the lines of routine facts beyond the number that is kept."""
    events = (fact.event for fact in facts_of("", lines))
    routine = [line for line, event in zip(lines, events, strict=True) if event in audit.ROUTINE]
    return routine[: max(0, len(routine) - audit.KEPT)]
