"""Statements: a text of ours in which `{schema}` stands for the schema of the store it is for.

No name in a statement may depend on the search path of a session: that is the user's, or another client's of a pooler.
"""

from __future__ import annotations

from functools import lru_cache

from psycopg import sql

from holdfast.core.claim_order import BEGUN, CHILD, NEW

RANK = f"case when token > 0 then {BEGUN} when parent_id is not null then {CHILD} else {NEW} end"
"""`claim_order.rank_of` in SQL. A statement that is to use the index `runs_queue` must have exactly this expression."""

_KNOWN_LIMIT = 1_000


@lru_cache(_KNOWN_LIMIT)
def qualified(text: str, schema: str) -> bytes:
    """The statement for one schema. Texts are constants, so each is put together once, and prepared as the same one."""
    return text.replace("{schema}", identifier(schema)).encode()


def identifier(schema: str) -> str:
    """The name of a schema as it is written in SQL."""
    return sql.Identifier(schema).as_string(None)
