"""The table of verbs is complete, and everything that stands beside it by hand agrees with it."""

from __future__ import annotations

import inspect
from typing import get_args

import msgspec
import pytest

from holdfast.cli.main import SUMMARIES, cli
from holdfast.core import rules
from holdfast.core.commands import AnyCommand, Control, DropMessage, Fork
from holdfast.core.news import SIGNALS
from holdfast.core.states import ENDS, RunState
from holdfast.core.verbs import VERBS, Verb
from holdfast.engine.controls import BulkVerbs, Selection, SyncSelection
from holdfast.engine.handle import RunHandle, SyncRunHandle

ONE_RUN_ONLY = {Fork, DropMessage}
"""Controls that have no verb: they make something new of one run, or change something inside it."""

every_verb = pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)


def parameters_of(method: object) -> dict[str, tuple[object, object]]:
    """Return the parameters of a method with their kinds and defaults, without `self`."""
    assert callable(method)
    _, *parameters = inspect.signature(method).parameters.values()
    return {one.name: (one.kind, one.default) for one in parameters}


def test_every_control_of_the_port_has_a_verb() -> None:
    controls = {command for command in get_args(AnyCommand) if issubclass(command, Control)}

    assert {verb.command for verb in VERBS.values()} == controls - ONE_RUN_ONLY


@every_verb
def test_a_command_names_its_verb(verb: Verb) -> None:
    required = {field.name: "x" for field in msgspec.structs.fields(verb.command) if field.required}

    assert verb.command(**required).verb == verb.name


@every_verb
def test_the_parameters_of_a_verb_are_fields_of_its_command(verb: Verb) -> None:
    assert set(verb.parameters) <= {field.name for field in msgspec.structs.fields(verb.command)}
    assert not verb.rule or callable(getattr(rules, verb.rule))


@every_verb
def test_the_handle_has_the_verb_with_its_parameters(verb: Verb) -> None:
    on_handle = parameters_of(getattr(RunHandle, verb.name))
    on_selection = parameters_of(getattr(Selection, verb.name))

    assert list(on_handle) == [*verb.parameters, "by"]
    assert on_handle.items() <= on_selection.items()
    assert on_selection.keys() - on_handle.keys() == {"dry_run", "progress"}


@every_verb
def test_blocking_callers_have_the_verb(verb: Verb) -> None:
    assert parameters_of(getattr(SyncRunHandle, verb.name)) == parameters_of(getattr(RunHandle, verb.name))
    assert parameters_of(getattr(SyncSelection, verb.name)) == parameters_of(getattr(Selection, verb.name))


@every_verb
def test_the_command_line_has_the_verb_with_its_parameters(verb: Verb) -> None:
    command = cli.get_command(cli.make_context("holdfast", ["version"]), verb.name)

    assert command is not None
    flags = {option.name: option.is_flag for option in command.params if hasattr(option, "is_flag")}
    kinds = {field.name: field.type is bool for field in msgspec.structs.fields(verb.command)}
    texts = {name: kinds[name] for name in verb.parameters if name != "location"}  # that of `rewind` is an argument
    assert texts.items() <= flags.items()
    assert verb.summary in (command.help or "")


def test_types_are_declared_for_exactly_these_verbs() -> None:
    assert list(BulkVerbs.__annotations__) == list(VERBS)


@every_verb
def test_the_words_of_a_verb_are_complete(verb: Verb) -> None:
    assert SUMMARIES[verb.name] == verb.summary
    assert SIGNALS[f"run.{verb.event}"] == verb.signal
    assert verb.states
    for state in RunState:
        expected = "had ended already" if state in ENDS and not verb.applies_to_ends else verb.unchanged
        assert verb.why_unchanged(state) == expected.format(state=state.value)
