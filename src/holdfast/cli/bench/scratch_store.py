"""A scratch store: empty, on the same disk or server as the store of the settings, and deleted at the end."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from holdfast.app import Holdfast, session_of
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.session import engine_for
from holdfast.cli.settings import Settings


@asynccontextmanager
async def scratch_store(settings: Settings) -> AsyncIterator[Holdfast]:
    """Yield an engine on a scratch store: for SQLite a file in a folder of its own, for Postgres a schema."""
    url = session_of(engine_for(settings)).url
    if url.startswith("sqlite:"):
        folder = Path(unquote(urlsplit(url).path[1:])).parent
        if not folder.is_dir():
            raise Refusal(
                f"there is no directory {folder}; create it, or name another with --url", ExitCode.UNREACHABLE
            )
        with tempfile.TemporaryDirectory(prefix=".holdfast-bench-", dir=folder) as own:
            async with Holdfast(f"sqlite:///{quote(own)}/bench.db") as hf:
                yield hf
    else:
        schema = f"holdfast_bench_{secrets.token_hex(4)}"
        async with Holdfast(_with_schema(url, schema)) as hf:
            try:
                yield hf
            finally:
                with hf.connection() as connection:
                    connection.execute(f"drop schema {schema} cascade")


def _with_schema(url: str, schema: str) -> str:
    base, _, query = url.partition("?")
    others = [option for option in query.split("&") if option and not option.startswith("schema=")]
    return f"{base}?{'&'.join([*others, f'schema={schema}'])}"
