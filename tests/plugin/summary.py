"""The last lines of a test run: the number of tests, the time, the slowest, the servers used, and the omissions.

Workers of pytest-xdist send their data to the process that prints.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import Any

import apsw
import pytest

from tests.plugin.tiers import Tier

SLOWEST = 5
OTHER_TIER: dict[Tier, str] = {"short": "the long tier: make test-long", "long": "the short tier: make test"}

_servers: set[str] = set()
"""The real servers that tests of this process have used, each in a few words."""

_STARTED = pytest.StashKey[float]()
_SERVERS = pytest.StashKey[set[str]]()


def note_server(words: str) -> None:
    """Record that a test has used a real server, such as `Postgres 16.4 (private)`."""
    _servers.add(words)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STARTED] = time.monotonic()
    config.stash[_SERVERS] = _servers
    if config.pluginmanager.hasplugin("dsession"):
        config.pluginmanager.register(_Collector(config), "holdfast-summary")


class _Collector:
    """Collect the data of the pytest-xdist workers at their end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._config.stash[_SERVERS].update(getattr(node, "workeroutput", {}).get("servers", ()))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["servers"] = sorted(_servers)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.section("summary")
    for line in _lines(terminalreporter.stats, config):
        terminalreporter.write_line(line)


def _lines(stats: dict[str, list[Any]], config: pytest.Config) -> Iterator[str]:
    reports = [report for reports in stats.values() for report in reports if isinstance(report, pytest.TestReport)]
    spent: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        spent[report.nodeid] += report.duration
    tier: Tier = config.getoption("--tier")
    seconds = time.monotonic() - config.stash[_STARTED]
    yield f"{len(spent):,} tests of {_name(tier)} in {_minutes(seconds)} on {_host()}"
    yield from (
        f"  slow: {duration:6.1f} s  {name}" for name, duration in nlargest(SLOWEST, spent.items(), key=itemgetter(1))
    )
    yield f"real stores: {', '.join(_stores(config))}"
    yield from (f"not tested: {one}" for one in _not_tested(stats, tier))


def _name(tier: Tier) -> str:
    return "both tiers" if tier == "all" else f"the {tier} tier"


def _stores(config: pytest.Config) -> list[str]:
    servers = config.stash[_SERVERS]
    return [f"SQLite {apsw.sqlite_lib_version()} (apsw)", *(sorted(servers) or ["no server was needed"])]


def _not_tested(stats: dict[str, list[Any]], tier: Tier) -> Iterator[str]:
    if tier in OTHER_TIER:
        yield OTHER_TIER[tier]
    yield "other Python versions: make test-pythons"
    reasons = Counter(_reason(report) for report in stats.get("skipped", ()))
    yield from (f"{count} skipped: {reason}" for reason, count in reasons.items())


def _reason(report: Any) -> str:
    reason = report.longrepr
    return str(reason[2] if isinstance(reason, Sequence) and len(reason) == 3 else reason).removeprefix("Skipped: ")


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def _host() -> str:
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    return f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, load {load}"
