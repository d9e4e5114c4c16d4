"""Workers as rows: registration and heartbeats."""

# ruff: noqa: S608 - statements are built from constants in this package; user input is always bound

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.model import WorkerRecord
from holdfast.stores.sqlite import rows

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

_BEAT = f"""
    insert into worker ({rows.WORKER_COLUMNS})
    values ({rows.placed(rows.WORKER_COLUMNS)})
    on conflict (id) do update
    set {rows.overwritten(WorkerRecord, "id", "started_at", "is_dead")}
"""

_REMOVE = """
    delete from worker
    where id = ?
"""  # by the primary key


class SqliteWorkers:
    """The registered workers."""

    def __init__(self, transaction: Transaction) -> None:
        self._connection = transaction.connection

    def beat(self, worker: WorkerRecord, now: Micros) -> None:
        self._connection.execute(_BEAT, rows.worker_row(replace(worker, started_at=now, heartbeat_at=now)))

    def remove(self, worker_id: str) -> None:
        self._connection.execute(_REMOVE, (worker_id,))
