"""The statements of the Postgres store that commit, by their purpose, as patterns for a proxy."""

from __future__ import annotations

COMMIT = r"(^|; )commit$"
STATEMENTS = {
    "create": r"\bcreate_v\d+\(",
    "claim": r"\bclaim_v\d+\(",
    "checkpoint": r"\bcheckpoint_v\d+\(",
    "renew": r"\brenew_v\d+\(",
    "transaction": COMMIT,
}
