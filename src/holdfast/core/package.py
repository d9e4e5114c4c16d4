"""The installed package."""

from __future__ import annotations


def installed_version() -> str:
    """Return the version of holdfast, for people who read a file or a record later."""
    from importlib.metadata import PackageNotFoundError, version  # imported here: slow to load, and rarely needed

    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "of a checkout"
