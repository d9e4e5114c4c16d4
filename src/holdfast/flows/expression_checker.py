"""The checker of expressions: which of Python's expressions a flow may use and where, and what its calls pass."""

from __future__ import annotations

import ast
import math
import re

from holdfast.flows.faults import CATCHABLE
from holdfast.flows.grammar import (
    BINARY_NODES,
    BUILTINS,
    COMPARE_NODES,
    DURABLE,
    FORMAT_SPECIFICATION,
    ITERATING_BUILTINS,
    LAZY,
    LAZY_METHODS,
    METHOD_NAMES,
    METHODS,
    OPTION_NAMES,
    REFUSED_EXPRESSIONS,
    REFUSED_FUNCTIONS,
    REFUSED_OPERATORS,
    UNARY_NODES,
    DurableShape,
    Shape,
)
from holdfast.flows.limits import CALL_ARGUMENT_LIMIT
from holdfast.flows.scopes import FunctionScope, Helper, target_names
from holdfast.flows.source_text import Mistakes, advice_for

INTEGER_DIGITS = 4_000
"""Maximum number of digits of an integer in a program."""
_FORMAT = re.compile(FORMAT_SPECIFICATION)


class ExpressionChecker:
    """Checks the expressions of one function."""

    def __init__(self, scope: FunctionScope, mistakes: Mistakes) -> None:
        self._scope = scope
        self._mistakes = mistakes
        self._no_await = 0

    def check(self, node: ast.expr, *, allows_tuple: bool = False) -> None:
        """Add the mistakes of an expression whose value is used."""
        if type(node) in REFUSED_EXPRESSIONS:
            self._mistakes.add(node, *REFUSED_EXPRESSIONS[type(node)])
            return
        if isinstance(node, ast.Tuple):
            if not allows_tuple:
                self._mistakes.add(node, "tuples are not JSON values", "write a list: [a, b]")
            self._check_all(node.elts)
            return
        check = getattr(self, f"_check_{type(node).__name__.lower()}", None)
        if check is None:
            self._mistakes.add(node, f"a flow has no `{type(node).__name__}` expression", "write it in another way")
        else:
            check(node)

    def check_iterable(self, node: ast.expr) -> None:
        """Add the mistakes of an expression that is iterated, where tuples and lazy iterables are allowed."""
        if _is_lazy(node):
            self._check_lazy(node)
        else:
            self.check(node, allows_tuple=True)

    def check_target(self, node: ast.expr) -> None:
        """Add the mistakes of something that is assigned to."""
        match node:
            case ast.Name(id=name):
                self.check_name(node, name, self._mistakes)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                if not parts or len(parts) > CALL_ARGUMENT_LIMIT:
                    self._mistakes.add(node, "a target has one to 200 names", "name each part")
                for part in parts:
                    self.check_target(part)
            case ast.Subscript(slice=ast.Slice()):
                self._mistakes.add(node, "a slice cannot be changed", "build a new list: values[:1] + new + values[2:]")
            case ast.Subscript(value=value, slice=key):
                self.check(value)
                self.check(key)
            case ast.Starred():
                self._mistakes.add(node, "a target cannot have `*`", "assign the list, and take slices of it")
            case ast.Attribute(attr=name):
                self._mistakes.add(node, f"values have no attribute {name} to assign", f'use an item: value["{name}"]')
            case _:
                self._mistakes.add(node, "this cannot be assigned to", "assign to a name or an item")

    @staticmethod
    def check_name(node: ast.AST, name: str, mistakes: Mistakes) -> None:
        """Add a mistake if a name must not be defined."""
        if name.startswith("__"):
            mistakes.add(node, f"names that begin with __ belong to Python: {name}", "choose another name")
        elif name in CATCHABLE:
            mistakes.add(node, f"{name} is the name of an error", "choose another name")

    def _check_all(self, nodes: list[ast.expr]) -> None:
        for node in nodes:
            self.check(node)

    def _check_constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, str):
            if not _is_text(value):
                self._mistakes.add(node, "the text has a lone surrogate", "write the whole character")
        elif isinstance(value, bytes):
            self._mistakes.add(node, "bytes are not a JSON value", "use text")
        elif isinstance(value, complex) or value is ...:
            self._mistakes.add(node, f"{value!r} is not a JSON value", "use a number or None")
        elif isinstance(value, float) and not math.isfinite(value):
            self._mistakes.add(node, "the number is too large for a float", "write a smaller number")
        elif isinstance(value, int) and value.bit_length() > INTEGER_DIGITS * 3:
            self._mistakes.add(node, f"the integer has more than {INTEGER_DIGITS:,} digits", "write a smaller number")

    def _check_name(self, node: ast.Name) -> None:
        name = node.id
        if self._scope.is_variable(name) or self._scope.is_constant(name):
            return
        if name in BUILTINS or name in LAZY or name in DURABLE or name in self._scope.names.helpers:
            self._mistakes.add(node, f"{name} is a function, not a value", f"call it: {name}(…)")
        elif name.startswith("__"):
            self._mistakes.add(node, f"names that begin with __ belong to Python: {name}", "remove it")
        else:
            advice = advice_for(name, self._scope.known(), "assign it first, or take it as a parameter")
            self._mistakes.add(node, f"unknown name {name}", advice)

    def _check_joinedstr(self, node: ast.JoinedStr) -> None:
        for part in node.values:
            if not isinstance(part, ast.FormattedValue):
                self.check(part)
                continue
            self.check(part.value)
            if part.conversion == ord("a"):
                self._mistakes.add(part.value, "f-strings have no !a", "use !r")
            if part.format_spec is not None:
                self._check_specification(part.format_spec, part.value)

    def _check_specification(self, spec: ast.expr, place: ast.expr) -> None:
        parts = spec.values if isinstance(spec, ast.JoinedStr) else [spec]
        texts = [part.value for part in parts if isinstance(part, ast.Constant)]
        if len(texts) != len(parts):
            self._mistakes.add(place, "a format is fixed text", "write the width and precision as numbers")
        elif _FORMAT.fullmatch("".join(map(str, texts))) is None:
            shown = "".join(map(str, texts))[:40]
            self._mistakes.add(place, f"unknown format {shown!r}", "write a format such as .2f, >10, 05d or ,")

    def _check_formattedvalue(self, node: ast.FormattedValue) -> None:
        self.check(node.value)

    def _check_binop(self, node: ast.BinOp) -> None:
        if type(node.op) not in BINARY_NODES:
            self._mistakes.add(node, f"a flow has no operator {type(node.op).__name__}", REFUSED_OPERATORS)
        is_text = isinstance(node.left, ast.JoinedStr) or (
            isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        )
        if isinstance(node.op, ast.Mod) and is_text:
            self._mistakes.add(node, "text has no operator %", 'use an f-string: f"{value}"')
        self._check_all([node.left, node.right])

    def _check_boolop(self, node: ast.BoolOp) -> None:
        self._check_all(node.values)

    def _check_unaryop(self, node: ast.UnaryOp) -> None:
        if type(node.op) not in UNARY_NODES:
            self._mistakes.add(node, "a flow has no operator ~", "use arithmetic")
        self.check(node.operand)

    def _check_ifexp(self, node: ast.IfExp) -> None:
        self._check_all([node.test, node.body, node.orelse])

    def _check_compare(self, node: ast.Compare) -> None:
        self.check(node.left)
        for op, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn):
                self.check_iterable(right)
            else:
                self.check(right)
            is_singleton = isinstance(right, ast.Constant) and (right.value is None or isinstance(right.value, bool))
            if isinstance(op, ast.Is | ast.IsNot) and not is_singleton:
                self._mistakes.add(right, "`is` compares with None, True or False only", "use ==")
            if type(op) not in COMPARE_NODES:
                self._mistakes.add(node, "a flow has no such comparison", "use ==")

    def _check_list(self, node: ast.List) -> None:
        self._check_all(node.elts)

    def _check_dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                self._mistakes.add(value, "a dict cannot have `**`", "copy the dict, and update the copy")
            elif isinstance(key, ast.Constant) and not isinstance(key.value, str):
                self._mistakes.add(key, "keys of a dict are text", f'write "{key.value!r}"')
            else:
                self.check(key)
            self.check(value)

    def _check_subscript(self, node: ast.Subscript) -> None:
        self.check(node.value)
        if isinstance(node.slice, ast.Slice):
            self._check_all([part for part in (node.slice.lower, node.slice.upper, node.slice.step) if part])
        elif isinstance(node.slice, ast.Tuple):
            self._mistakes.add(node.slice, "an index is one value", "index twice: values[a][b]")
        else:
            self.check(node.slice)

    def _check_slice(self, node: ast.Slice) -> None:
        self._mistakes.add(node, "a slice stands only inside an index", "write values[start:stop]")

    def _check_attribute(self, node: ast.Attribute) -> None:
        self.check(node.value)
        self._mistakes.add(node, f"values have no attribute {node.attr}", f'use an item: value["{node.attr}"]')

    def _check_call(self, node: ast.Call) -> None:
        is_hidden = isinstance(node.func, ast.Name) and self._scope.is_variable(node.func.id)
        if _is_lazy(node) and not is_hidden:
            name = node.func.id if isinstance(node.func, ast.Name) else f"{node.func.attr}"  # type: ignore[attr-defined]
            advice = f"write list({'' if isinstance(node.func, ast.Name) else '….'}{name}(…))"
            self._mistakes.add(node, f"{name}() can only be iterated: it is not a JSON value", advice)
            self._check_lazy(node)
        else:
            self._check_plain_call(node)

    def _check_await(self, node: ast.Await) -> None:
        if not self._scope.is_async:
            name = self._scope.function
            self._mistakes.add(node, f"{name} is a pure function and cannot await", f"write `async def {name}`")
        if self._no_await:
            advice = "start the calls in the comprehension, then await join(…) of the list"
            self._mistakes.add(node, "inside a comprehension, only the first iterable may await", advice)
        self.check(node.value)

    def _check_listcomp(self, node: ast.ListComp) -> None:
        self._check_comprehension(node, [node.elt])

    def _check_dictcomp(self, node: ast.DictComp) -> None:
        self._check_comprehension(node, [node.key, node.value])

    def _check_comprehension(self, node: ast.ListComp | ast.DictComp, elements: list[ast.expr]) -> None:
        bound = {name for part in node.generators for name in target_names(part.target)}
        self.check_iterable(node.generators[0].iter)
        self._no_await += 1
        with self._scope.comprehension(bound):
            for place, part in enumerate(node.generators):
                if part.is_async:
                    self._mistakes.add(part.target, "a flow has no `async for`", "await the list first")
                if place:
                    self.check_iterable(part.iter)
                self._check_comprehension_target(part.target)
                self._check_all(part.ifs)
            self._check_all(elements)
        self._no_await -= 1

    def _check_comprehension_target(self, target: ast.expr) -> None:
        if any(isinstance(part, ast.Subscript) for part in ast.walk(target)):
            self._mistakes.add(target, "a comprehension assigns to names only", "use a for statement")
        else:
            self.check_target(target)

    # Calls

    def _check_lazy(self, node: ast.expr) -> None:
        """Add the mistakes of a lazy call, in a place where it is iterated."""
        assert isinstance(node, ast.Call)
        if isinstance(node.func, ast.Attribute):
            self._check_method(node, node.func)
            return
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if self._scope.is_variable(name):
            self._check_plain_call(node)
            return
        shape = LAZY[name]
        self._check_count(node, name, shape)
        self._check_keywords(node, name, shape.keywords)
        if name == "reversed" and any(_name_of(argument) in ("enumerate", "zip", "reversed") for argument in node.args):
            self._mistakes.add(node, "only a list, text, dict or range can be reversed", "write reversed(list(…))")
        for argument in node.args:
            if name == "range":
                self.check(argument)
            else:
                self.check_iterable(argument)

    def _check_plain_call(self, node: ast.Call) -> None:
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
        advice = REFUSED_FUNCTIONS.get(name) or advice_for(name, known, "define it with `def`")
        if name == "Error":
            advice = 'write raise Error("code", "message")'
        self._mistakes.add(node.func, f"unknown function {name}", advice)

    def _check_arguments(self, node: ast.Call) -> None:
        for value in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.check(value)

    def _check_builtin(self, node: ast.Call, name: str) -> None:
        shape = BUILTINS[name]
        self._check_count(node, name, shape)
        self._check_keywords(node, name, shape.keywords)
        is_single = len(node.args) == 1 or name not in ("min", "max")
        for place, argument in enumerate(node.args):
            if place == 0 and is_single and name in ITERATING_BUILTINS:
                self.check_iterable(argument)
            else:
                self.check(argument)
        if name == "len" and any(_name_of(argument) in ("enumerate", "zip", "reversed") for argument in node.args):
            self._mistakes.add(node, "this has no length", "write len(list(…))")
        for keyword in node.keywords:
            self.check(keyword.value)

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
        words = [keyword.arg for keyword in node.keywords]
        for word in {word for word in words if word is not None and words.count(word) > 1}:
            self._mistakes.add(node, f"the keyword {word} stands twice", "pass it once")

    def _check_method(self, node: ast.Call, method: ast.Attribute) -> None:
        name = method.attr
        self.check(method.value)
        if name not in METHOD_NAMES:
            advice = advice_for(name, METHOD_NAMES, f"the methods are {', '.join(sorted(METHOD_NAMES))}")
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
                self.check_iterable(argument)
            else:
                self.check(argument)
        for keyword in node.keywords:
            self.check(keyword.value)

    def _check_helper(self, node: ast.Call, helper: Helper) -> None:
        given = helper.parameters[: len(node.args)]
        if len(node.args) > len(helper.parameters):
            advice = f"pass at most {len(helper.parameters)}"
            self._mistakes.add(node, f"{helper.name} takes {len(helper.parameters)} arguments", advice)
        for keyword in node.keywords:
            if keyword.arg is None:
                continue
            if keyword.arg not in helper.parameters:
                known = f"its parameters are {', '.join(helper.parameters) or 'none'}"
                advice = advice_for(keyword.arg, helper.parameters, known)
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
                        advice = advice_for(key.value, OPTION_NAMES, f"the options are {', '.join(OPTION_NAMES)}")
                        self._mistakes.add(key, f"unknown option {key.value}", advice)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_lazy(node: ast.expr) -> bool:
    """True if a call gives something that can only be iterated."""
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name in LAZY
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in LAZY_METHODS
        case _:
            return False


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
