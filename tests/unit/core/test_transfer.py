"""Transfer: decisions of a store about imported runs."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import audit, rules
from holdfast.core.checkpoint import Checkpoint, Release
from holdfast.core.commands import Pause
from holdfast.core.model import Run
from holdfast.core.states import RunState
from holdfast.core.transfer import EXPORT, export_pause
from holdfast.core.verbs import VERBS, StopRequest

HELD = Run(
    id="r", type="t", state=RunState.RUNNING, payload="{}", created_at=0, start_at=0, updated_at=0, worker="w", token=1
)


def test_a_heartbeat_before_a_run_pauses_does_not_hide_that_an_export_paused_it() -> None:
    """Otherwise an import would leave the run paused forever."""
    pause = Pause(run_id="r", id=f"{EXPORT}e1")
    pausing = replace(HELD, stop=StopRequest.PAUSE)
    release = Checkpoint(run_id="r", token=1, seen=0, next=Release(), beat=1)
    facts = (
        audit.of_change(pausing, pause, VERBS["pause"], 1),
        audit.of_beat(pausing, release, 2),
        audit.of_move(pausing, rules.advanced(pausing, release, 3), 3),
    )

    assert export_pause([fact for fact in facts if fact is not None]) == pause.id
