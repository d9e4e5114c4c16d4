"""Help: every command has a text with an example, and printing it imports almost nothing."""

from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from holdfast.cli.command import HoldfastCommand
from holdfast.cli.main import SUMMARIES, cli
from tests.rows import each_row


def all_commands() -> dict[str, click.Command]:
    """Yield every command and group, by the words that call it."""
    context, found = click.Context(cli), {}
    for name in SUMMARIES:
        command = cli.get_command(context, name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {verb}": one for verb, one in command.commands.items()}
    return found


COMMANDS = all_commands()


def test_the_list_of_commands_describes_each_one() -> None:
    result = CliRunner().invoke(cli, ["--help"])

    assert result.exit_code == 0
    for name, summary in SUMMARIES.items():
        assert re.search(rf"^  {name} +{re.escape(summary)}$", result.stdout, re.MULTILINE)


@each_row("name", COMMANDS)
def test_every_command_has_a_help_text_with_an_example(name: str) -> None:
    result = CliRunner().invoke(cli, [*name.split(), "--help"])

    assert result.exit_code == 0
    assert re.search(rf"^Examples:\n  holdfast (--\S+ \S+ )?{name}\b", result.stdout, re.MULTILINE)
    assert "-h, --help" in result.stdout


@each_row("name", COMMANDS)
def test_every_example_names_options_that_exist(name: str) -> None:
    command = COMMANDS[name]
    if isinstance(command, click.Group):
        return
    assert isinstance(command, HoldfastCommand)
    known = {option for parameter in command.params for option in parameter.opts}

    for example in command.examples:
        given = re.findall(r"(?<!\S)--?[a-z-]+", example.partition("|")[0])
        assert set(given) <= known, example


@each_row("name", COMMANDS)
def test_every_option_has_a_help_text(name: str) -> None:
    command = COMMANDS[name]

    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    assert [option.name for option in options if not option.help] == []


@pytest.mark.parametrize(("typed", "meant"), [("shw", "show"), ("dmeo", "demo"), ("list", "ls"), ("cancle", "cancel")])
def test_an_unknown_command_suggests_the_nearest_one(typed: str, meant: str) -> None:
    result = CliRunner().invoke(cli, [typed])

    assert result.exit_code == 2
    assert f"there is no command {typed!r}; did you mean `holdfast {meant}`?" in result.stderr


def test_an_unknown_word_without_a_near_one_points_to_the_help() -> None:
    result = CliRunner().invoke(cli, ["xyzzyxyzzy"])

    assert result.exit_code == 2
    assert "`holdfast --help` lists the commands" in result.stderr


def test_asking_for_help_loads_no_command_no_renderer_and_no_driver() -> None:
    # Modules that `import holdfast` itself loads do not count.
    base = _modules("import holdfast")
    loaded = _modules("from holdfast.cli.main import cli; cli(['--help'], standalone_mode=False)")
    heavy = ("apsw", "asyncio", "rich", "holdfast.app", "holdfast.cli.commands.", "holdfast.engine", "holdfast.stores.")

    assert {name for name in loaded - base if name.startswith(heavy)} == set()
    assert {name for name in loaded if name.split(".")[0] in ("apsw", "rich")} == set()


def _modules(code: str) -> set[str]:
    """Return the modules that a fresh process has loaded after some code."""
    probe = f"import sys; {code}; print('loaded', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])
