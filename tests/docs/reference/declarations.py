"""Declarations: what the source says about the public classes and functions.

It is read from the syntax tree, because that has the annotations as they were written, the overloads, the attributes
that `__init__` sets, and the docstrings of fields, which are string literals below them.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, is_typeddict

import holdfast
from holdfast import testing, typing
from holdfast.core.ports import Store

Function = ast.FunctionDef | ast.AsyncFunctionDef
Kind = Literal["method", "property", "field"]

_MAKERS = {"blocking": "{}", "iterating": "Iterator[{}]", "listing": "list[{}]"}
"""How methods of `hf.sync` are made from those of `hf`, and what they return then."""

# `NamespaceDriver` describes these for all drivers.
_OF_DRIVERS = {"get", "set", "delete", "delete_prefix", "list", "batch", "set_alarm", "clear_alarm"}

INTERNAL = {
    "AsyncList": {"of"},
    "AuditInfo": {"created", "of"},
    "Child": {"codec", "create", "intent"},
    "Definition": {
        "begin",
        "bound",
        "codec_of",
        "block_on",
        "crash_limit",
        "deliver",
        "description",
        "finish",
        "hints",
        "is_strict",
        "is_task",
        "loop_codecs",
        "reason",
        "result",
        "signature",
        "skip",
        "surviving_lines",
    },
    "DictionaryNamespace": _OF_DRIVERS,
    "ErrorRecord": {"of"},
    "Harness": {"pass_until"},
    "Metrics": {"samples"},
    "Registry": {"count", "definition", "get", "schedules"},
    "Retry": {"allows", "pause"},
    "Step": {"codec", "options"},
    "StepInfo": {"has_beaten", "news", "rearm", "recorded"},
    "Task": {"begin", "call", "is_task", "options", "plan"},
    "Pipeline": {"begin", "deliver", "description", "hints", "is_strict", "signature"},
    "SyncWorkflow": {"begin", "deliver", "is_strict", "plan"},
    "Workflow": {"is_strict", "plan"},
    "VirtualClock": {"sync"},
    "SqliteNamespace": _OF_DRIVERS,
    "Worker": {
        "accept",
        "always_replay",
        "body_of",
        "clock",
        "committer",
        "executor",
        "gathers",
        "grace_seconds",
        "free",
        "holds_suspect",
        "is_crowded",
        "is_draining",
        "is_executing",
        "is_quiet",
        "kill",
        "leased_until",
        "release",
        "linger",
        "obey",
        "offer",
        "on_flows",
        "recall",
        "renew",
        "renew_if_late",
        "signal_sender",
        "take",
        "transactor",
    },
    "FaultyStore": {name for name in dir(Store) if not name.startswith("_")},
    "DeadLetterInfo": {"of"},
    "EntryInfo": {"of"},
    "MessageInfo": {"of"},
    "RunInfo": {"of"},
    "ScheduleInfo": {"of"},
    "TopicInfo": {"of"},
    "TypeInfo": {"of"},
    "WorkerInfo": {"of"},
}
"""Members by class that have public names because other parts of holdfast use them. They are not for users."""


@dataclass(frozen=True)
class Source:
    """A module of holdfast: its text and syntax tree."""

    module: ModuleType
    text: str
    tree: ast.Module = field(repr=False)

    def segment(self, node: ast.expr) -> str:
        """The text of an expression, on one line."""
        return " ".join((ast.get_source_segment(self.text, node) or "").split())

    def value(self, name: str) -> Any:
        """What a name stands for in the module; None if it is for type checkers only."""
        return getattr(self.module, name, None) or getattr(builtins, name, None)


@cache
def source_of(module: str) -> Source:
    """The source of a module that is imported."""
    found = sys.modules[module]
    assert found.__file__ is not None
    text = Path(found.__file__).read_text(encoding="utf-8")
    return Source(found, text, ast.parse(text))


@dataclass(frozen=True)
class Member:
    """A public member of a class. `functions` are its overloads, or its one definition.

    `annotation` is the type of a field or property. `made_by` is the type that a method of `hf.sync` returns, with `{}`
    for what the method behind it returns.
    """

    name: str
    kind: Kind
    doc: str
    source: Source
    functions: Sequence[Function] = ()
    annotation: str = ""
    default: str = ""
    made_by: str = "{}"


@dataclass(frozen=True)
class Declaration:
    """A public class or function, with its docstring and its public members in the order of the source."""

    name: str
    value: Any
    doc: str
    source: Source
    node: ast.ClassDef | Function = field(repr=False)
    members: Sequence[Member] = ()

    @property
    def public_bases(self) -> list[type]:
        """Its bases that have an entry of their own, with members."""
        bases = self.value.__bases__ if self.is_class else ()
        return [base for base in bases if _has_entry(base) and any(_members(base))]

    @property
    def builtin_bases(self) -> list[str]:
        """The errors of Python that an error is, too."""
        if not self.is_class:
            return []
        bases = [base for base in self.value.__bases__ if base.__module__ == "builtins"]
        return [base.__name__ for base in bases if issubclass(base, Exception) and base is not Exception]

    @property
    def is_class(self) -> bool:
        return isinstance(self.node, ast.ClassDef)


def declaration_of(value: Any) -> Declaration:
    """The declaration of a public class or function."""
    source = source_of(value.__module__)
    node = _find(source, value.__name__)
    doc = ast.get_docstring(node) or ""
    members = tuple(_members(value)) if isinstance(node, ast.ClassDef) else ()
    return Declaration(value.__name__, value, doc, source, node, members)


def internal_members(kind: type) -> set[str]:
    """The members of a class that are not for users."""
    return {name for base in kind.__mro__ for name in INTERNAL.get(base.__name__, ())}


def _find(source: Source, name: str) -> ast.ClassDef | Function:
    for node in source.tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return node
    raise LookupError(f"{source.module.__name__} has no {name}")


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("holdfast.")


def _members(kind: type) -> Iterator[Member]:
    """Its own members, and those of bases that have no entry of their own."""
    if is_contract(kind):
        return
    seen = internal_members(kind)
    elsewhere = {base for public in kind.__mro__[1:] if _has_entry(public) for base in public.__mro__}
    for base in _lineage(kind):
        if not _is_ours(base) or base in elsewhere:
            continue
        for member in _own_members(base, kind):
            if member.name not in seen:
                seen.add(member.name)
                yield member


def _lineage(kind: type) -> Iterator[type]:
    """A class and its bases. A `TypedDict` does not know its bases before CPython 3.12, but its source does."""
    if not is_typeddict(kind):
        yield from kind.__mro__
        return
    source = source_of(kind.__module__)
    node = _find(source, kind.__name__)
    assert isinstance(node, ast.ClassDef)
    yield kind
    for base in node.bases:
        if (named := ast.unparse(base)) != "TypedDict":
            yield from _lineage(getattr(source.module, named))


def is_contract(kind: type) -> bool:
    """Whether the members of a class are tests and fixtures."""
    return kind.__name__.endswith("Contract")


def _has_entry(base: type) -> bool:
    names = {*holdfast.__all__, *typing.__all__, *testing.__all__}
    return _is_ours(base) and not is_contract(base) and base.__name__ in names


def _own_members(kind: type, owner: type | None = None) -> Iterator[Member]:
    """The members in the body of a class. `owner` is the class whose members they are, if that inherits from it."""
    source = source_of(kind.__module__)
    node = _find(source, kind.__name__)
    assert isinstance(node, ast.ClassDef)
    functions: dict[str, list[Function]] = {}
    for place, statement in enumerate(node.body):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.setdefault(statement.name, []).append(statement)
            if statement.name == "__init__":
                yield from _attributes(statement, source)
            elif _is_public(statement.name) and not _is_overload(statement):
                yield _function_member(functions[statement.name], source)
        elif (named := _assigned(statement, "")) is not None and _is_public(named):
            function = getattr(owner or kind, named, None)
            if inspect.isfunction(function) and isinstance(statement, ast.AnnAssign):
                yield _made_from_table(function, source)
            else:
                yield _field(kind, named, statement, _text_below(node.body, place), source)


def _made_from_table(function: Callable[..., Any], source: Source) -> Member:
    """A method that the class only declares: it is made when the module is loaded, with a signature of its own."""
    signature = inspect.signature(function)
    kind = "async def" if inspect.iscoroutinefunction(function) else "def"
    parameters = [one.replace(annotation=_Verbatim(one.annotation)) for one in signature.parameters.values()]
    shown = signature.replace(parameters=parameters, return_annotation=_Verbatim(signature.return_annotation))
    text = f"{kind} {function.__name__}{shown}: ...".replace("''", '""')
    (node,) = ast.parse(text).body
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    made = Source(source.module, text, ast.parse(text))
    return Member(function.__name__, "method", inspect.getdoc(function) or "", made, (node,))


class _Verbatim:
    """An annotation whose text is shown as it is."""

    def __init__(self, annotation: object) -> None:
        self._text = "Any" if annotation is inspect.Parameter.empty else str(annotation)

    def __repr__(self) -> str:
        return self._text


def _is_public(name: str) -> bool:
    return not name.startswith(("_", "test_")) and name != "pytestmark"


def _is_overload(function: Function) -> bool:
    return "overload" in _decorators(function)


def _decorators(function: Function) -> set[str]:
    return {decorator.id for decorator in function.decorator_list if isinstance(decorator, ast.Name)}


def _function_member(functions: list[Function], source: Source) -> Member:
    last = functions[-1]
    doc = ast.get_docstring(last) or ""
    if _decorators(last) & {"property", "cached_property"}:
        annotation = source.segment(last.returns) if last.returns is not None else ""
        return Member(last.name, "property", doc, source, annotation=annotation)
    overloads = [function for function in functions if _is_overload(function)]
    return Member(last.name, "method", doc, source, tuple(overloads or [last]))


def _assigned(statement: ast.stmt, owner: str) -> str | None:
    """The name that a statement assigns to: in a class body, or to an attribute of `owner`."""
    match statement:
        case ast.AnnAssign(target=target) | ast.Assign(targets=[target]):
            pass
        case _:
            return None
    if not owner:
        return target.id if isinstance(target, ast.Name) else None
    is_attribute = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == owner
    return target.attr if is_attribute and isinstance(target, ast.Attribute) else None


def _text_below(body: Sequence[ast.stmt], place: int) -> str:
    """The docstring of a field: the string literal on the line below it."""
    match body[place + 1 : place + 2]:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            return inspect.cleandoc(text)
        case _:
            return ""


def _field(kind: type, name: str, statement: ast.stmt, doc: str, source: Source) -> Member:
    assert isinstance(statement, (ast.Assign, ast.AnnAssign))
    made = statement.value
    if isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id in _MAKERS:
        return _made_method(name, made, source)
    annotation = source.segment(statement.annotation) if isinstance(statement, ast.AnnAssign) else ""
    default = "" if made is None else source.segment(made)
    if isinstance(made, ast.Call) and ast.unparse(made.func) == "msgspec.field":
        default = "[]" if any(one.arg == "default_factory" for one in made.keywords) else ""
    if issubclass(kind, Enum):
        annotation = ""
    return Member(name, "field", doc, source, annotation=annotation, default=default)


def _made_method(name: str, made: ast.Call, source: Source) -> Member:
    assert isinstance(made.func, ast.Name)
    behind = made.args[0]
    assert isinstance(behind, ast.Attribute)
    assert isinstance(behind.value, ast.Name)
    original = next(one for one in _own_members(source.value(behind.value.id)) if one.name == behind.attr)
    return Member(name, "method", original.doc, original.source, original.functions, made_by=_MAKERS[made.func.id])


def _attributes(function: Function, source: Source) -> Iterator[Member]:
    """The public attributes that an `__init__` sets."""
    given = [*function.args.posonlyargs, *function.args.args]
    owner = given[0].arg
    annotations = {arg.arg: arg.annotation for arg in [*given, *function.args.kwonlyargs]}
    for place, statement in enumerate(function.body):
        name = _assigned(statement, owner)
        if name is None or not _is_public(name):
            continue
        if isinstance(statement, ast.AnnAssign):
            annotation = source.segment(statement.annotation)
        else:
            assert isinstance(statement, ast.Assign)
            annotation = _type_of(statement.value, annotations, source)
        yield Member(name, "field", _text_below(function.body, place), source, annotation=annotation)


def _type_of(value: ast.expr, annotations: dict[str, ast.expr | None], source: Source) -> str:
    """The type of a value that is assigned to an attribute, as far as the source says it."""
    match value:
        case ast.Constant(value=constant):
            return type(constant).__name__
        case ast.BoolOp(values=[first, *_]):
            return _type_of(first, annotations, source).removesuffix(" | None")
        case ast.Name(id=name) if (annotation := annotations.get(name)) is not None:
            return source.segment(annotation)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if (of := annotations.get(name)) is not None:
            owner = source.value(source.segment(of))
            return str(next(k.__annotations__[attribute] for k in owner.__mro__ if attribute in k.__annotations__))
        case ast.Call(func=ast.Name(id="dict"), args=[copied]):
            return _type_of(copied, annotations, source)
        case ast.Call(func=ast.Name() | ast.Attribute() as function):
            called = source.value(source.segment(function).split(".", maxsplit=1)[0])
            if isinstance(called, type):
                return called.__name__
            if isinstance(called, ModuleType):
                return source.segment(function)
            return str(called.__annotations__.get("return", ""))
        case _:
            return ""
