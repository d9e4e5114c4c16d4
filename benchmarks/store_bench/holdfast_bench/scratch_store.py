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
from holdfast.cli.option import Settings
from holdfast.cli.session import engine_for


@asynccontextmanager
async def scratch_store(settings: Settings) -> AsyncIterator[Holdfast]:
    """Yield an engine on a scratch store: another file for SQLite, another schema or namespace on a server."""
    url = session_of(engine_for(settings)).url
    name = f"holdfast_bench_{secrets.token_hex(4)}"
    match url.partition(":")[0]:
        case "sqlite":
            scratch = _file(url)
        case "redis" | "rediss":
            scratch = _namespace(_with_option(url, "namespace", name))
        case _:
            scratch = _schema(_with_option(url, "schema", name), name)
    async with scratch as hf:
        yield hf


@asynccontextmanager
async def _file(url: str) -> AsyncIterator[Holdfast]:
    folder = Path(unquote(urlsplit(url).path[1:])).parent
    if not folder.is_dir():
        raise Refusal(f"there is no directory {folder}; create it, or name another with --url", ExitCode.UNREACHABLE)
    with tempfile.TemporaryDirectory(prefix=".holdfast-bench-", dir=folder) as own:
        async with Holdfast(f"sqlite:///{quote(own)}/bench.db") as hf:
            yield hf


@asynccontextmanager
async def _schema(url: str, schema: str) -> AsyncIterator[Holdfast]:
    async with Holdfast(url) as hf:
        try:
            yield hf
        finally:
            with hf.connection() as connection:
                connection.execute(f"drop schema {schema} cascade")


@asynccontextmanager
async def _namespace(url: str) -> AsyncIterator[Holdfast]:
    from holdfast.stores.redis.driver import erase  # imported here: its driver is optional

    try:
        async with Holdfast(url) as hf:
            yield hf
    finally:
        erase(url)  # after the store is closed: nothing writes to the namespace any more


def _with_option(url: str, option: str, value: str) -> str:
    base, _, query = url.partition("?")
    others = [given for given in query.split("&") if given and not given.startswith(f"{option}=")]
    return f"{base}?{'&'.join([*others, f'{option}={value}'])}"
