"""The public object and the package root: few names, each of which a user needs."""

from __future__ import annotations

import holdfast
from holdfast import Context, Holdfast
from holdfast.engine.controls import Selection
from holdfast.engine.handle import RunHandle

VERBS = """start start_many start_in send_in emit_in execute run runs list emit connection worker include check export
import_ on sync close"""
DECORATORS = "workflow task step schedule pipeline"
NAMESPACES = {
    "schedules": "put list get next pause resume trigger remove",
    "flows": "register list get",
    "topics": "set list",
    "types": "set list enable disable",
    "dead_letters": "list replay purge",
    "workers": "list",
}
CONTEXT = """step sleep sleep_until wait_event receive receive_message receive_batch send emit start call map join race
first_settled loop version removed continue_as_new tx set_value now random uuid run logger"""
SELECTION = "cancel pause resume wake evict recover rewind delete"

NAMES_LIMIT = 32
ROOT_LIMIT = 44


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_a_holdfast_has_the_names_of_the_design_and_no_others() -> None:
    names = public(Holdfast("memory://"))

    assert names == {*VERBS.split(), *DECORATORS.split(), *NAMESPACES, "metrics"}
    assert len(names) <= NAMES_LIMIT


def test_a_holdfast_is_composed_and_not_inherited() -> None:
    assert Holdfast.__mro__ == (Holdfast, object)


def test_each_namespace_is_a_separate_object() -> None:
    hf = Holdfast("memory://")

    assert {name: public(getattr(hf, name)) for name in NAMESPACES} == {
        name: set(verbs.split()) for name, verbs in NAMESPACES.items()
    }
    assert hf.types is hf.types


def test_a_context_has_the_operations_of_the_design_and_no_others() -> None:
    assert public(Context) == set(CONTEXT.split())


def test_a_selection_has_verbs_that_a_handle_has_too() -> None:
    assert public(Selection) == set(SELECTION.split())
    assert public(Selection) <= public(RunHandle)


def test_the_package_root_has_about_forty_names() -> None:
    assert len(holdfast.__all__) <= ROOT_LIMIT
    assert public(holdfast) >= set(holdfast.__all__)
