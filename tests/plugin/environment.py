"""The environment of the tests: the same wherever and however pytest is started.

This module neutralises only settings that holdfast is meant to follow, such as `HOLDFAST_URL` and `NO_COLOR`. Tests
have to pass with all else as it is: the user, the home directory, `TMPDIR`, the umask, the time zone.
"""

from __future__ import annotations

import gc
import locale
import os
import signal
from contextlib import suppress
from types import FrameType

import pytest

from holdfast.cli import supervisor
from holdfast.config.settings import SETTINGS
from holdfast_demo import application
from tests.folders import MEMORY, has_room

_SETTINGS = {setting.variable for setting in SETTINGS.values()}
_INTERNAL = {supervisor.VARIABLE, application.LEDGER_VARIABLE, application.PACE_VARIABLE, "_HOLDFAST_COMPLETE"}
_DISPLAY = {
    *("CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "FORCE_COLOR", "NO_COLOR", "PY_COLORS"),
    *("COLUMNS", "LINES", "TERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
}
_PASSWORDS = {"PGPASSFILE", "PGPASSWORD"}
"""Passwords of a server that `HOLDFAST_TEST_POSTGRES` names; the URLs of private ones have their own."""
_ENCODING = {"PYTHONCOERCECLOCALE", "PYTHONIOENCODING", "PYTHONUTF8"}

_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


def pytest_configure(config: pytest.Config) -> None:
    """Let the short tier write its temporary files in memory, if there is enough: no test of it cuts the power.

    The workers of pytest-xdist inherit the variable.
    """
    if config.getoption("--tier") == "short" and has_room(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_sessionstart() -> None:
    forget_settings()


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection.

    Those are most of all objects. Many tests of evictions collect garbage, and each collection would visit all of them.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _settled() -> None:
    settle()


def forget_settings() -> None:
    """Remove the variables by which a person chooses settings of holdfast, Postgres servers and a display.

    This happens before tests are collected: modules create a `Holdfast` when they are imported.
    """
    for name in list(os.environ):
        if name in _SETTINGS | _INTERNAL | _DISPLAY or (name.startswith("PG") and name not in _PASSWORDS):
            del os.environ[name]


def settle() -> None:
    """Give this process, and the processes that it starts, default signals and text in UTF-8.

    Only a process that runs tests does this, not the one that starts the workers of pytest-xdist: the workers inherit
    its file system encoding and its ignored signals.
    """
    _start_children_with_default_signals()
    _use_utf8()


def _start_children_with_default_signals() -> None:
    """Prevent child processes from starting with an ignored signal because a shell started the tests that way.

    With `&` a shell starts a command that ignores SIGINT, and programs pass ignored signals on to their children. A
    signal with a handler gets its default action back there. So this process still ignores the signal, but by a handler
    that does nothing.

    SIGHUP stays as it is: under `nohup` the tests and all their processes survive the end of the terminal. A test that
    sends SIGHUP has to choose its action first.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignore)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # otherwise the parent would not learn how a child ended


def _ignore(number: int, frame: FrameType | None) -> None:
    del number, frame


def _use_utf8() -> None:
    for name in list(os.environ):
        if name in _ENCODING or name == "LANGUAGE" or name.startswith("LC_"):
            del os.environ[name]
    os.environ["LC_ALL"] = "C.UTF-8"
    with suppress(locale.Error):  # without such a locale, Python uses UTF-8 by itself
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
