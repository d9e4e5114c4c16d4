"""The rank of a run before its last claim, which decides the shares of the ranks."""

from __future__ import annotations

import pytest

from holdfast.core.claim_order import BEGUN, CHILD, EPOCH_TOKENS, NEW, rank_before
from holdfast.core.model import Run
from holdfast.core.states import RunState


def a_run(token: int, parent_id: str | None = None) -> Run:
    return Run(
        id="r",
        type="t",
        state=RunState.RUNNING,
        payload="1",
        created_at=0,
        start_at=0,
        updated_at=0,
        token=token,
        parent_id=parent_id,
    )


@pytest.mark.parametrize("epochs", [0, 1, 7])
def test_only_a_first_claim_counts_as_a_new_start(epochs: int) -> None:
    first = epochs * EPOCH_TOKENS + 1

    assert rank_before(a_run(first)) == NEW
    assert rank_before(a_run(first, parent_id="p")) == CHILD
    assert rank_before(a_run(first + 1)) == BEGUN
    assert rank_before(a_run(first + 40, parent_id="p")) == BEGUN
