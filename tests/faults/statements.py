"""The statements of the Postgres store that commit, as a proxy knows them, by what they do."""

from __future__ import annotations

COMMIT = r"(^|; )commit$"
STATEMENTS = {
    "create": r"\bcreate_v\d+\(",
    "claim": r"\bclaim_v\d+\(",
    "checkpoint": r"\bcheckpoint_v\d+\(",
    "renew": r"\brenew_v\d+\(",
    "transaction": COMMIT,
}
