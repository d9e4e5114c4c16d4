"""The checker of calls: the names that can be called, and their arguments."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from holdfast.core.suggestion import nearest
from holdfast.flows.function_scope import FunctionScope
from holdfast.flows.grammar import (
    BUILTINS,
    DURABLE,
    ITERATING_BUILTINS,
    LAZY,
    LAZY_METHODS,
    METHOD_NAMES,
    METHODS,
    REFUSED_FUNCTIONS,
    DurableShape,
    Shape,
)
from holdfast.flows.limits import CALL_ARGUMENT_LIMIT
from holdfast.flows.mistakes import Mistakes
from holdfast.flows.options import OPTION_NAMES
from holdfast.flows.scopes import Helper

if TYPE_CHECKING:
    from holdfast.flows.expression_checker import ExpressionChecker


class CallChecker:
    """Checks the calls in the expressions of one function."""

    def __init__(self, scope: FunctionScope, mistakes: Mistakes, expressions: ExpressionChecker) -> None:
        self._scope = scope
        self._mistakes = mistakes
        self._expressions = expressions

    @staticmethod
    def is_lazy(node: ast.expr) -> bool:
        """True if a call gives something that can only be iterated."""
        match node:
            case ast.Call(func=ast.Name(id=name)):
                return name in LAZY
            case ast.Call(func=ast.Attribute(attr=name)):
                return name in LAZY_METHODS
            case _:
                return False

    def check_lazy(self, node: ast.expr) -> None:
        """Add the mistakes of a lazy call, in a place where it is iterated."""
        assert isinstance(node, ast.Call)
        if isinstance(node.func, ast.Attribute):
            self._check_method(node, node.func)
            return
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if self._scope.is_variable(name):
            self.check(node)
            return
        shape = LAZY[name]
        self._check_count(node, name, shape)
        self._check_keywords(node, name, shape.keywords)
        if name == "reversed" and any(_name_of(argument) in ("enumerate", "zip", "reversed") for argument in node.args):
            self._mistakes.add(node, "only a list, text, dict or range can be reversed", "write reversed(list(…))")
        for argument in node.args:
            if name == "range":
                self._expressions.check(argument)
            else:
                self._expressions.check_iterable(argument)

    def check(self, node: ast.Call) -> None:
        """Add the mistakes of a call."""
        if len(node.args) + len(node.keywords) > CALL_ARGUMENT_LIMIT:
            self._mistakes.add(node, f"more than {CALL_ARGUMENT_LIMIT} arguments", "pass one list or dict")
        for keyword in node.keywords:
            if keyword.arg is None:
                self._mistakes.add(keyword.value, "a call cannot have `**`", "write out each argument")
        match node.func:
            case ast.Name(id=name):
                self._check_named(node, name)
            case ast.Attribute() as method:
                self._check_method(node, method)
            case _:
                self._mistakes.add(node.func, "only functions and methods can be called", "call a function by name")
                self._check_arguments(node)

    def _check_named(self, node: ast.Call, name: str) -> None:
        if self._scope.is_variable(name) or self._scope.is_constant(name):
            self._mistakes.add(node.func, f"{name} is a variable here, not a function", "rename the variable")
        elif name in self._scope.names.helpers:
            self._check_helper(node, self._scope.names.helpers[name])
        elif name in BUILTINS:
            self._check_builtin(node, name)
            return
        elif name in DURABLE:
            self._check_durable(node, name, DURABLE[name])
        else:
            self._refuse_unknown(node, name)
        self._check_arguments(node)

    def _refuse_unknown(self, node: ast.Call, name: str) -> None:
        known = [*self._scope.names.helpers, *BUILTINS, *LAZY, *DURABLE]
        near = nearest(name, known)
        advice = REFUSED_FUNCTIONS.get(name) or (f"did you mean {near}?" if near else "define it with `def`")
        if name == "Error":
            advice = 'write raise Error("code", "message")'
        self._mistakes.add(node.func, f"unknown function {name}", advice)

    def _check_arguments(self, node: ast.Call) -> None:
        for value in (*node.args, *(keyword.value for keyword in node.keywords)):
            self._expressions.check(value)

    def _check_builtin(self, node: ast.Call, name: str) -> None:
        shape = BUILTINS[name]
        self._check_count(node, name, shape)
        self._check_keywords(node, name, shape.keywords)
        is_single = len(node.args) == 1 or name not in ("min", "max")
        for place, argument in enumerate(node.args):
            if place == 0 and is_single and name in ITERATING_BUILTINS:
                self._expressions.check_iterable(argument)
            else:
                self._expressions.check(argument)
        if name == "len" and any(_name_of(argument) in ("enumerate", "zip", "reversed") for argument in node.args):
            self._mistakes.add(node, "this has no length", "write len(list(…))")
        for keyword in node.keywords:
            self._expressions.check(keyword.value)

    def _check_count(self, node: ast.Call, name: str, shape: Shape) -> None:
        count = len(node.args)
        if not shape.least <= count <= shape.most:
            self._mistakes.add(node, f"{name} takes {_span(shape)}, not {count}", f"pass {_span(shape)}")

    def _check_keywords(self, node: ast.Call, name: str, known: tuple[str, ...]) -> None:
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in known:
                advice = f"the keywords are {', '.join(known)}" if known else "pass the arguments by position"
                if keyword.arg == "key":
                    advice = "sort a list of [key, item] pairs"
                self._mistakes.add(keyword.value, f"{name} has no keyword {keyword.arg}", advice)
            elif keyword.arg == "start" and len(node.args) > 1:
                self._mistakes.add(keyword.value, f"{name} gets start twice", "pass it once")
            elif keyword.arg == "ndigits" and len(node.args) > 1:
                self._mistakes.add(keyword.value, f"{name} gets ndigits twice", "pass it once")
        _refuse_twice(node, self._mistakes)

    def _check_method(self, node: ast.Call, method: ast.Attribute) -> None:
        name = method.attr
        self._expressions.check(method.value)
        if name not in METHOD_NAMES:
            near = nearest(name, METHOD_NAMES)
            advice = f"did you mean {near}?" if near else f"the methods are {', '.join(sorted(METHOD_NAMES))}"
            if name == "format":
                advice = 'use an f-string: f"{value}"'
            self._mistakes.add(method, f"values have no method {name}", advice)
        else:
            shapes = [methods[name] for methods in METHODS.values() if name in methods]
            count = len(node.args)
            if not any(shape.least <= count <= shape.most for shape in shapes):
                spans = " or ".join(dict.fromkeys(_span(shape) for shape in shapes))
                self._mistakes.add(node, f"{name} takes {spans}, not {count}", f"pass {spans}")
            self._check_keywords(node, name, tuple(word for shape in shapes for word in shape.keywords))
        for argument in node.args:
            if name in ("join", "extend", "update"):
                self._expressions.check_iterable(argument)
            else:
                self._expressions.check(argument)
        for keyword in node.keywords:
            self._expressions.check(keyword.value)

    def _check_helper(self, node: ast.Call, helper: Helper) -> None:
        given = helper.parameters[: len(node.args)]
        if len(node.args) > len(helper.parameters):
            advice = f"pass at most {len(helper.parameters)}"
            self._mistakes.add(node, f"{helper.name} takes {len(helper.parameters)} arguments", advice)
        for keyword in node.keywords:
            if keyword.arg is None:
                continue
            if keyword.arg not in helper.parameters:
                near = nearest(keyword.arg, helper.parameters)
                advice = (
                    f"did you mean {near}?" if near else f"its parameters are {', '.join(helper.parameters) or 'none'}"
                )
                self._mistakes.add(keyword.value, f"{helper.name} has no parameter {keyword.arg}", advice)
            elif keyword.arg in given:
                self._mistakes.add(keyword.value, f"{helper.name} gets {keyword.arg} twice", "pass it once")
            given = [*given, keyword.arg]
        missing = [name for name in helper.parameters if name not in given and name not in helper.defaults]
        if missing:
            self._mistakes.add(node, f"{helper.name} is missing {', '.join(missing)}", "pass each of them")
        if helper.is_async and not self._scope.is_async:
            what = f"{self._scope.function} is a pure function and cannot call the async {helper.name}"
            self._mistakes.add(node, what, f"write `async def {self._scope.function}`")

    def _check_durable(self, node: ast.Call, name: str, shape: DurableShape) -> None:
        if not self._scope.is_async:
            what = f"{self._scope.function} is a pure function and cannot call {name}"
            self._mistakes.add(node, what, f"write `async def {self._scope.function}`")
        if len(node.args) > len(shape.positional) and not shape.takes_many:
            most = len(shape.positional)
            self._mistakes.add(node, f"{name} takes at most {most} arguments by position", _usage(name, shape))
        given = list(shape.positional[: len(node.args)])
        for keyword in node.keywords:
            if keyword.arg is None:
                continue
            if keyword.arg in given:
                self._mistakes.add(keyword.value, f"{name} gets {keyword.arg} twice", "pass it once")
            given.append(keyword.arg)
            is_known = keyword.arg in shape.positional or keyword.arg in shape.keywords
            if not is_known and not shape.takes_payload:
                self._mistakes.add(keyword.value, f"{name} has no keyword {keyword.arg}", _usage(name, shape))
        if name in ("call", "start"):
            self._check_child(node, name)
        missing = [word for word in shape.positional[: shape.required] if word not in given]
        if missing:
            self._mistakes.add(node, f"{name} is missing {', '.join(missing)}", _usage(name, shape))
        self._check_options(node)

    def _check_child(self, node: ast.Call, name: str) -> None:
        has_payload = len(node.args) > 1
        words = [keyword.arg for keyword in node.keywords if keyword.arg not in ("options", None)]
        if has_payload and words:
            what = f"{name} gets its payload twice: as a dict, and as {', '.join(map(str, words))}"
            self._mistakes.add(node, what, "pass the dict alone, or the keywords alone")

    def _check_options(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg == "options" and isinstance(keyword.value, ast.Dict):
                for key in keyword.value.keys:
                    if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value not in OPTION_NAMES:
                        near = nearest(key.value, OPTION_NAMES)
                        advice = f"did you mean {near}?" if near else f"the options are {', '.join(OPTION_NAMES)}"
                        self._mistakes.add(key, f"unknown option {key.value}", advice)


def _refuse_twice(node: ast.Call, mistakes: Mistakes) -> None:
    words = [keyword.arg for keyword in node.keywords]
    for word in {word for word in words if word is not None and words.count(word) > 1}:
        mistakes.add(node, f"the keyword {word} stands twice", "pass it once")


def _name_of(node: ast.expr) -> str | None:
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name
        case _:
            return None


def _span(shape: Shape) -> str:
    if shape.least == shape.most:
        return f"{shape.least} argument{'' if shape.least == 1 else 's'}"
    return f"{shape.least} to {shape.most} arguments"


def _usage(name: str, shape: DurableShape) -> str:
    words = list(shape.positional[: shape.required])
    words += [f"{word}=…" for word in (*shape.positional[shape.required :], *shape.keywords)]
    return f"write {name}({', '.join(words)})"
