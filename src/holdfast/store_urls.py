"""Store URLs: makes the store for a URL. Only this module loads drivers."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.config.secret import scrubbed
from holdfast.core.errors import HoldfastError, InvalidRequest
from holdfast.core.ports import Store


def store_for(url: str) -> Store:
    """Return the store for a URL."""
    if not isinstance(url, str):
        raise InvalidRequest(f"{url!r} is not a valid store URL: expected a string, such as sqlite:///file.db")
    if url.partition(":")[0] in ("postgresql", "postgres"):
        return _postgres(url)  # parsed like its driver does, which accepts brackets that `urlsplit` refuses
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidRequest(f"{scrubbed(url)!r} is not a valid store URL: {error}") from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "memory":
        from holdfast.stores.memory import MemoryStore

        _refuse_options(url, options)
        return MemoryStore()
    if parts.scheme in ("redis", "rediss"):
        return _redis(url)
    if parts.scheme == "sqlite":
        if parts.netloc or len(parts.path) < 2:
            raise InvalidRequest(
                f"{url!r}: expected sqlite:///relative/path.db or, with four slashes, sqlite:////absolute/path.db"
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


def _redis(url: str) -> Store:
    try:
        from holdfast.stores.redis import redis_store
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("hiredis", "redis"):
            raise
        raise InvalidRequest("Redis needs a driver: pip install 'holdfast[redis]'") from error
    return redis_store(url)


ENTRY_POINTS = "holdfast.stores"
"""Group of entry points for stores of other packages. The name is the URL scheme, the value a callable with the URL."""


def _third_party(url: str) -> Store:
    """Return the store that an installed package offers for the scheme of a URL."""
    from importlib.metadata import entry_points  # imported here: slow to load, and rarely needed

    scheme = url.partition(":")[0].lower()
    offered = entry_points(group=ENTRY_POINTS)
    found = {point.value: point for point in offered if point.name.lower() == scheme}
    if not found:
        others = "".join(f", {name}://…" for name in sorted({point.name for point in offered}))
        raise InvalidRequest(
            f"{scrubbed(url)!r}: unknown kind of store; use sqlite:///file.db, postgresql://user@host/database, "
            f"redis://host (Redis or Valkey), memory://{others}, or install a package that offers such a store"
        )
    if len(found) > 1:
        raise InvalidRequest(f"several packages offer stores for {scheme}://: {', '.join(sorted(found))}; keep one")
    ((value, point),) = found.items()
    try:
        store: Store = point.load()(url)
    except HoldfastError:
        raise
    except Exception as error:  # a package may raise anything, and the message must name the package
        raise InvalidRequest(f"the store for {scheme}://, {value}, cannot be created: {error!r}") from error
    if not hasattr(store, "apply"):
        raise InvalidRequest(f"the store for {scheme}://, {value}, returned {store!r}, which is not a store")
    return store


def _refuse_options(url: str, options: dict[str, str]) -> None:
    if options:
        raise InvalidRequest(f"{scrubbed(url)!r}: unknown option {', '.join(sorted(options))}")
