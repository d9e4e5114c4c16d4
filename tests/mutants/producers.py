"""Bugs in what SQL producers are promised."""

from __future__ import annotations

from tests.mutants.mutant import Catch, Edit, Mutant

MUTANTS = (
    Mutant(
        name="requests-only-with-a-free-slot",
        breaks="requests of SQL producers are carried out whether or not a worker has a free slot",
        edits=(
            Edit(
                "worker/worker.py",
                "        self._unserve = self._store.serve()\n",
                "        self._unserve = None\n",
            ),
        ),
        caught_by=(Catch("busy workers", "only_slot"),),
    ),
)
