"""Every command in a console block of the documentation exists, with its options and arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import groupby

import click

from holdfast.cli.main import cli
from tests.docs.page import PROJECT, Page, pages

_OPERATORS = {"|", "||", "&", "&&", ";", ">", ">>", "<"}


def _commands(page: Page) -> Iterator[tuple[int, list[str]]]:
    for block in page.blocks("console"):
        text = block.text.replace("\\\n", "\0")
        for number, line in enumerate(text.splitlines(), start=block.line):
            if line.startswith("$ "):
                words = shlex.shlex(line[2:].replace("\0", " "), posix=True, punctuation_chars=True)
                words.whitespace_split = True
                for is_operator, group in groupby(words, key=_OPERATORS.__contains__):
                    if not is_operator:
                        yield number, _without_variables(list(group))


def _without_variables(words: list[str]) -> list[str]:
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    return words


def test_the_commands_of_the_pages_can_be_typed() -> None:
    refused = {}
    for page in pages():
        for line, words in _commands(page):
            try:
                _check(words)
            except (AssertionError, click.ClickException) as error:
                refused[f"{page.name}:{line}"] = str(error)

    assert refused == {}


def _check(words: list[str]) -> None:
    match words:
        case ["holdfast", *arguments]:
            _parse(arguments)
        case ["make", *targets]:
            known = re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE)
            assert {target for target in targets if "=" not in target} <= set(known)
        case ["python", "-m", module, *_] if module.startswith(("examples.", "benchmarks.")):
            assert (PROJECT / f"{module.replace('.', '/')}.py").exists()


def _parse(arguments: list[str]) -> None:
    """Let click parse the words of a command without executing it."""
    try:
        with cli.make_context("holdfast", list(arguments)) as context:
            words = [*context._protected_args, *context.args]
            name, command, rest = cli.resolve_command(context, words)
            assert command is not None
            command.make_context(name, rest, parent=context).close()
    except click.exceptions.Exit as finished:
        assert finished.exit_code == 0  # noqa: PT017 - `--help` and `--version` end here
