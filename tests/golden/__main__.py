"""Keep golden stores of the numbers that this code makes: `python -m tests.golden`."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from holdfast.store_urls import store_for
from holdfast.stores.postgres import sql_files
from tests.golden.files import FOLDER, file_of, keep_postgres, keep_redis, keep_sqlite
from tests.golden.runs import fill
from tests.postgres import Databases, shared_url
from tests.redis import shared_namespaces


def main() -> None:
    """Fill a new store of each kind, and write it to its file, unless there is one of its number."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "golden.db"
        if (number := _new("sqlite", f"sqlite:///{path}")) is not None:
            keep_sqlite(path, number)
        with shared_url(folder) as server, Databases(server) as databases, databases.lend() as url:
            if (number := _new("postgres", url)) is not None:
                keep_postgres(url, number, sql_files.script())
        with shared_namespaces(folder) as namespaces, namespaces.lend() as url:
            if (number := _new("redis", url)) is not None:
                keep_redis(url, number)


def _new(kind: str, url: str) -> int | None:
    """Fill a store and return its number. None if this number is kept already: a kept file never changes."""
    number = store_for(url).schema().wanted
    if file_of(kind, number).exists():
        return None
    asyncio.run(fill(url))
    return number


if __name__ == "__main__":
    main()
