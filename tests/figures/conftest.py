"""The worker processes of the process tests, and their producer."""

from __future__ import annotations

from tests.process.conftest import crew

__all__ = ["crew"]  # a fixture that pytest finds by its name
