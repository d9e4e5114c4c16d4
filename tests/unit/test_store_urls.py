"""A URL names a store: a built-in one, or one that an installed package provides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import metadata

import pytest

from holdfast import Holdfast, InvalidRequest
from holdfast.store_urls import ENTRY_POINTS
from holdfast.stores.memory import MemoryStore


def make(url: str) -> MemoryStore:
    store = MemoryStore()
    store.url = url  # type: ignore[attr-defined]
    return store


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[metadata.EntryPoint]:
    """Set the stores that installed packages provide."""
    points: list[metadata.EntryPoint] = []

    def entry_points(*, group: str) -> Sequence[metadata.EntryPoint]:
        assert group == ENTRY_POINTS
        return points

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    return points


def point(name: str, value: str) -> metadata.EntryPoint:
    return metadata.EntryPoint(name=name, value=value, group=ENTRY_POINTS)


def test_a_package_provides_a_store_for_a_scheme(offered: list[metadata.EntryPoint]) -> None:
    offered += [point("other", "nowhere:Store"), point("toy", f"{__name__}:make")]

    store = Holdfast("toy://a:b@c/d?e=f")._session.store

    assert store.url == "toy://a:b@c/d?e=f"  # type: ignore[attr-defined]


@pytest.mark.parametrize("url", ["memory://", "sqlite:///x.db"])
def test_a_package_does_not_replace_a_built_in_store(offered: list[metadata.EntryPoint], url: str) -> None:
    offered += [point(scheme, "nowhere:Store") for scheme in ("memory", "sqlite", "postgresql")]

    assert type(Holdfast(url)._session.store).__module__.startswith("holdfast.stores.")


def test_an_unknown_scheme_is_refused_with_the_known_ones(offered: list[metadata.EntryPoint]) -> None:
    offered.append(point("toy", f"{__name__}:make"))

    with pytest.raises(InvalidRequest, match=r"'tyo://x': unknown kind of store; use .* toy://…, or install"):
        Holdfast("tyo://x")


def test_two_packages_for_one_scheme_are_refused(offered: list[metadata.EntryPoint]) -> None:
    offered += [point("toy", "first:Store"), point("toy", "second:Store")]

    with pytest.raises(InvalidRequest, match="several packages offer stores for toy://: first:Store, second:Store"):
        Holdfast("toy://x")


def fail(url: str) -> MemoryStore:
    raise ModuleNotFoundError(f"no driver for {url}")


def refuse(url: str) -> MemoryStore:
    raise InvalidRequest(f"{url} has no host")


@pytest.mark.parametrize(
    "value",
    [
        "nowhere_at_all:Store",
        "holdfast.app:NoSuchStore",
        "holdfast.app",
        "holdfast.app:ENTRY_POINTS",
        f"{__name__}:fail",
    ],
)
def test_a_store_that_cannot_be_created_is_named(offered: list[metadata.EntryPoint], value: str) -> None:
    offered.append(point("toy", value))

    with pytest.raises(InvalidRequest, match=re.escape(f"the store for toy://, {value}, cannot be created: ")):
        Holdfast("toy://x")


def test_a_store_itself_reports_an_invalid_url(offered: list[metadata.EntryPoint]) -> None:
    offered.append(point("toy", f"{__name__}:refuse"))

    with pytest.raises(InvalidRequest, match=r"^toy:// has no host$"):
        Holdfast("toy://")


def test_an_object_that_is_not_a_store_is_refused(offered: list[metadata.EntryPoint]) -> None:
    offered.append(point("toy", "builtins:len"))

    with pytest.raises(InvalidRequest, match=r"the store for toy://, builtins:len, returned 7, which is not a store"):
        Holdfast("toy://x")


@pytest.mark.parametrize("scheme", ["my_store", "Etcd", "etcd", "ETCD"])
def test_the_name_of_an_entry_point_is_found_in_any_case(offered: list[metadata.EntryPoint], scheme: str) -> None:
    offered += [point("my_store", f"{__name__}:make"), point("Etcd", f"{__name__}:make")]

    assert isinstance(Holdfast(f"{scheme}://x")._session.store, MemoryStore)
