"""Everything public is documented, and everything documented exists."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import click
import pytest

import holdfast
from holdfast.cli.main import SUMMARIES, cli
from holdfast.config.settings import SETTINGS, Setting
from holdfast.core import errors, states
from holdfast.core.signals import SIGNALS
from holdfast.telemetry.definitions import METRICS, Metric
from tests.docs.page import DOCS, PROJECT, Page, pages

SOURCE = PROJECT / "src" / "holdfast"
LINE_LIMIT = 210

_PATH = re.compile(r"`([\w./-]+\.(?:py|sql|md|toml))`")
_LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")

USER_PAGES = [page for page in pages() if page.path.parent == DOCS or page.path.name == "README.md"]


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_public_name_is_mentioned(name: str) -> None:
    assert any(re.search(rf"\b{name}\b", page.text) for page in USER_PAGES)


@pytest.mark.parametrize("name", [name for name, kind in vars(errors).items() if isinstance(kind, type)])
def test_every_error_is_on_the_page_of_errors(name: str) -> None:
    is_error = issubclass(getattr(errors, name), Exception)

    assert not is_error or name.startswith("_") or name in Page(DOCS / "errors.md").text


@pytest.mark.parametrize("method", [name for name in dir(holdfast.Context) if not name.startswith("_")])
def test_every_operation_of_the_context_is_mentioned(method: str) -> None:
    assert any(f"ctx.{method}" in page.text for page in USER_PAGES)


@pytest.mark.parametrize("method", [name for name in vars(holdfast.RunHandle) if not name.startswith("_")])
def test_every_operation_of_a_handle_is_mentioned(method: str) -> None:
    assert any(f"run.{method}" in page.text for page in USER_PAGES)


@pytest.mark.parametrize("name", SIGNALS)
def test_every_signal_is_on_the_page_about_observing(name: str) -> None:
    assert f"`{name}`" in Page(DOCS / "observing.md").text


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_is_on_the_page_about_observing_with_its_labels(metric: Metric) -> None:
    rows = [line for line in Page(DOCS / "observing.md").text.splitlines() if f"`{metric.name}`" in line]

    assert any(all(f"`{label}`" in row for label in metric.labels) for row in rows)


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_command_has_a_heading_on_the_page_of_commands(name: str) -> None:
    assert re.search(rf"^##+ .*`{name}`", Page(DOCS / "cli.md").text, re.MULTILINE)


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_option_of_a_command_is_mentioned(name: str) -> None:
    text = Page(DOCS / "cli.md").text

    assert [option for option in _options(name) if not re.search(rf"{option}\b", text)] == []


def _options(name: str) -> Iterator[str]:
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command is not None
    verbs = command.commands.values() if isinstance(command, click.Group) else ()
    for parameter in [*command.params, *cli.params, *(one for verb in verbs for one in verb.params)]:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            yield from (option for option in parameter.opts if option.startswith("--"))


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.key)
def test_every_setting_is_listed_with_its_variable_and_default(setting: Setting[Any]) -> None:
    default = f"`{setting.default_text}`" if setting.default is not None else setting.default_text
    row = f"| `{setting.key}` | `{setting.variable}` |{f' {default} ' if default else ' '}| "

    assert row in Page(DOCS / "configuration.md").text


def test_every_setting_that_is_listed_exists() -> None:
    listed = re.findall(r"^\| `([a-z._]+)` \| `HOLDFAST_", Page(DOCS / "configuration.md").text, re.MULTILINE)

    assert listed == list(SETTINGS)


def test_the_state_diagram_equals_the_code() -> None:
    (shown,) = Page(DOCS / "protocol.md").blocks("mermaid")

    assert shown.text.rstrip() == states.diagram()


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_between_pages_are_valid(page: Page) -> None:
    broken = [link for link in _LINK.findall(page.prose()) if not _is_good(link, page)]

    assert broken == []


def _is_good(link: str, page: Page) -> bool:
    if link.startswith(("https://", "http://", "mailto:")):
        return True
    path, _, anchor = link.partition("#")
    target = (page.path.parent / path).resolve() if path else page.path
    return target.exists() and (not anchor or anchor in Page(target).anchors())


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_files_named_by_a_page_exist(page: Page) -> None:
    if page in USER_PAGES:
        return  # these name files of the user
    roots = (PROJECT, SOURCE, page.path.parent)
    missing = [name for name in _PATH.findall(page.prose()) if not any((root / name).exists() for root in roots)]

    assert missing == []


def test_every_page_is_in_the_index() -> None:
    index = Page(DOCS / "README.md")
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in _LINK.findall(index.prose())}

    assert [page.name for page in pages() if page.path.is_relative_to(DOCS) and page.path not in linked] == [index.name]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_page_has_a_limited_length(page: Page) -> None:
    # A section for each command, and a line for each construct.
    is_looked_up = page.path.name in ("cli.md", "flows-reference.md")

    assert is_looked_up or len(page.text.splitlines()) <= LINE_LIMIT


def test_the_tested_python_versions_are_named_alike() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    classified = re.findall(r":: (3\.\d+)\b", "\n".join(project["classifiers"]))
    readme = Page(PROJECT / "README.md").text

    assert project["requires-python"] == f">={classified[0]}"
    assert f"CPython {', '.join(classified[:-1])} and {classified[-1]}" in readme
