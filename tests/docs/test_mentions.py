"""Everything public is documented, and everything documented exists."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import click

import holdfast
from holdfast.cli.main import SUMMARIES, cli
from holdfast.config.settings import SETTINGS, Setting
from holdfast.core import errors, states
from holdfast.core.news import SIGNALS
from holdfast.telemetry.metrics import METRICS, Metric
from tests.docs.page import DOCS, PROJECT, Page, pages
from tests.rows import each_row

SOURCE = PROJECT / "src" / "holdfast"
LINE_LIMIT = 210

_PATH = re.compile(r"`([\w./-]+\.(?:py|sql|md|toml))`")
_LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")

USER_PAGES = [page for page in pages() if page.path.parent == DOCS or page.path.name == "README.md"]


USER_TEXT = "\n".join(page.text for page in USER_PAGES)


def test_every_public_name_is_mentioned() -> None:
    assert set(holdfast.__all__) - set(re.findall(r"\w+", USER_TEXT)) == set()


def test_every_error_is_on_the_page_of_errors() -> None:
    page = Page(DOCS / "errors.md").text
    kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and not name.startswith("_")}

    assert [name for name, kind in kinds.items() if issubclass(kind, Exception) and name not in page] == []


def test_every_operation_of_the_context_is_mentioned() -> None:
    operations = [name for name in dir(holdfast.Context) if not name.startswith("_")]

    assert [name for name in operations if f"ctx.{name}" not in USER_TEXT] == []


def test_every_operation_of_a_handle_is_mentioned() -> None:
    operations = [name for name in vars(holdfast.RunHandle) if not name.startswith("_")]

    assert [name for name in operations if f"run.{name}" not in USER_TEXT] == []


def test_every_signal_is_on_the_page_about_observing() -> None:
    page = Page(DOCS / "observing.md").text

    assert [name for name in SIGNALS if f"`{name}`" not in page] == []


@each_row("metric", METRICS)
def test_every_metric_is_on_the_page_about_observing_with_its_labels(metric: Metric) -> None:
    rows = [line for line in Page(DOCS / "observing.md").text.splitlines() if f"`{metric.name}`" in line]

    assert any(all(f"`{label}`" in row for label in metric.labels) for row in rows)


@each_row("name", SUMMARIES)
def test_every_command_has_a_heading_on_the_page_of_commands(name: str) -> None:
    assert re.search(rf"^##+ .*`{name}`", Page(DOCS / "cli.md").text, re.MULTILINE)


@each_row("name", SUMMARIES)
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


@each_row("setting", SETTINGS.values())
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


def test_links_between_pages_are_valid() -> None:
    broken = [(page.name, link) for page in pages() for link in _LINK.findall(page.prose()) if not _is_good(link, page)]

    assert broken == []


def _is_good(link: str, page: Page) -> bool:
    if link.startswith(("https://", "http://", "mailto:")):
        return True
    path, _, anchor = link.partition("#")
    target = (page.path.parent / path).resolve() if path else page.path
    return target.exists() and (not anchor or anchor in Page(target).anchors())


def test_files_named_by_a_page_exist() -> None:
    ours = [page for page in pages() if page not in USER_PAGES]  # the others name files of the user
    named = {(page, name) for page in ours for name in _PATH.findall(page.prose())}
    missing = [
        (page.name, name)
        for page, name in named
        if not any((root / name).exists() for root in (PROJECT, SOURCE, page.path.parent))
    ]

    assert missing == []


def test_every_page_is_in_the_index() -> None:
    index = Page(DOCS / "README.md")
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in _LINK.findall(index.prose())}

    assert [page.name for page in pages() if page.path.is_relative_to(DOCS) and page.path not in linked] == [index.name]


def test_pages_have_a_limited_length() -> None:
    looked_up = ("cli.md", "flows-reference.md")  # a section for each command, and a line for each construct
    lengths = {page.name: len(page.text.splitlines()) for page in pages() if page.path.name not in looked_up}

    assert {name: length for name, length in lengths.items() if length > LINE_LIMIT} == {}


def test_the_tested_python_versions_are_named_alike() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    classified = re.findall(r":: (3\.\d+)\b", "\n".join(project["classifiers"]))
    readme = Page(PROJECT / "README.md").text

    assert project["requires-python"] == f">={classified[0]}"
    assert f"CPython {', '.join(classified[:-1])} and {classified[-1]}" in readme
