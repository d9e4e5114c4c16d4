"""Store URLs: the store that a URL names. Drivers are loaded here and nowhere else."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.config.secret import scrubbed
from holdfast.core.errors import HoldfastError, InvalidRequest
from holdfast.core.ports import Store


def store_for(url: str) -> Store:
    """The store that a URL names."""
    if not isinstance(url, str):
        raise InvalidRequest(f"{url!r} is no URL of a store: it is a text, such as sqlite:///file.db")
    if url.partition(":")[0] in ("postgresql", "postgres"):
        return _postgres(url)  # which reads it as its driver does, brackets and all
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidRequest(f"{scrubbed(url)!r} is no URL of a store: {error}") from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "memory":
        from holdfast.stores.memory import MemoryStore

        _refuse_options(url, options)
        return MemoryStore()
    if parts.scheme == "sqlite":
        if parts.netloc or len(parts.path) < 2:
            raise InvalidRequest(
                f"{url!r}: a SQLite URL is sqlite:///relative/path.db or, with four slashes, sqlite:////absolute/path.db"
            )
        from holdfast.stores.sqlite import SqliteStore, in_namespace, mode_of

        namespace, mode = options.pop("namespace", None), mode_of(options.pop("mode", "0600"))
        _refuse_options(url, options)
        path = unquote(parts.path[1:])
        return SqliteStore(path if namespace is None else in_namespace(path, namespace), mode=mode)
    return _third_party(url)


def _postgres(url: str) -> Store:
    try:
        from holdfast.stores.postgres import PostgresStore
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise InvalidRequest("Postgres needs a driver: pip install 'holdfast[postgres]'") from error
    return PostgresStore(url)


ENTRY_POINTS = "holdfast.stores"
"""The group of entry points in which packages offer stores: the name is the scheme of URLs, the value takes a URL."""


def _third_party(url: str) -> Store:
    """The store that an installed package offers for the scheme of a URL."""
    from importlib.metadata import entry_points  # here, because it takes long and few need it

    scheme = url.partition(":")[0].lower()
    offered = entry_points(group=ENTRY_POINTS)
    found = {point.value: point for point in offered if point.name.lower() == scheme}
    if not found:
        others = "".join(f", {name}://…" for name in sorted({point.name for point in offered}))
        raise InvalidRequest(
            f"{scrubbed(url)!r}: unknown kind of store; use sqlite:///file.db, postgresql://user@host/database, "
            f"memory://{others}, or install a package that offers such a store"
        )
    if len(found) > 1:
        raise InvalidRequest(f"several packages offer stores for {scheme}://: {', '.join(sorted(found))}; keep one")
    ((value, point),) = found.items()
    try:
        store: Store = point.load()(url)
    except HoldfastError:
        raise
    except Exception as error:  # a package may fail in any way, and the message has to name it
        raise InvalidRequest(f"the store for {scheme}://, {value}, cannot be made: {error!r}") from error
    if not hasattr(store, "apply"):
        raise InvalidRequest(f"the store for {scheme}://, {value}, gave {store!r}, which is no store")
    return store


def _refuse_options(url: str, options: dict[str, str]) -> None:
    if options:
        raise InvalidRequest(f"{scrubbed(url)!r}: unknown option {', '.join(sorted(options))}")
