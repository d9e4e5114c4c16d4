"""The compiler of expressions: turns a checked expression into instructions that leave its value on the stack.

The assembler collects the instructions of a function, with their positions and error handlers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.flows import instructions as ops
from holdfast.flows.grammar import BINARY_NODES, BUILTINS, COMPARE_NODES, DURABLE, LAZY, LAZY_METHODS, UNARY_NODES
from holdfast.flows.program import FlowFunction
from holdfast.flows.scopes import Helper, ProgramNames, is_literal, literal, target_names

Node = ast.expr | ast.stmt | ast.ExceptHandler
UNPLACED = -2


class Label:
    """A place in the code that jumps refer to before it is known."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = UNPLACED


class Constants:
    """The constants of a program, each once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, value: Any) -> int:
        """Return the number of a constant."""
        key = type(value).__name__, repr(value)  # `1`, `1.0` and `True` are equal, and `-0.0` equals `0.0`
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]


class Assembler:
    """The instructions of one function while it is compiled."""

    def __init__(self, constants: Constants, slots: list[str]) -> None:
        self.constants = constants
        self._slots = list(slots)
        self._numbers = {name: number for number, name in enumerate(slots)}
        self._code: list[tuple[int, int | Label, int | Label]] = []
        self._positions: list[int] = []
        self._handlers: list[Label | None] = []
        self._handler: Label | None = None
        self._position = (1, 1)

    def __len__(self) -> int:
        return len(self._code)

    def emit(self, op: int, a: int | Label = 0, b: int | Label = 0, *, at: Node | None = None) -> None:
        """Add an instruction. It and those that follow it belong to the position of the node `at`."""
        if at is not None:
            self._position = at.lineno, at.col_offset + 1
        self._code.append((op, a, b))
        self._positions += self._position
        self._handlers.append(self._handler)

    def constant(self, value: Any, *, at: Node | None = None) -> None:
        """Add the instruction that loads a constant."""
        self.emit(ops.LOAD_CONST, self.constants.number(value), at=at)

    def place(self, label: Label) -> None:
        """Let a label stand for the next instruction."""
        label.at = len(self._code)

    @property
    def handler(self) -> Label | None:
        """The label of the code that handles errors of the instructions being added."""
        return self._handler

    @contextmanager
    def handled_by(self, handler: Label | None) -> Iterator[None]:
        """Let errors of the instructions inside go to a handler."""
        before, self._handler = self._handler, handler
        try:
            yield
        finally:
            self._handler = before

    def slot(self, name: str) -> int:
        """Return the number of a variable."""
        return self._numbers[name]

    def new_slot(self, purpose: str) -> int:
        """Return the number of a new variable that the program cannot name."""
        self._slots.append(f".{purpose}")
        return len(self._slots) - 1

    def finish(self, name: str, *, is_async: bool, argument_count: int) -> FlowFunction:
        """Return the finished function."""
        code: list[int] = []
        for op, a, b in self._code:
            code += (op, a.at if isinstance(a, Label) else a, b.at if isinstance(b, Label) else b)
        return FlowFunction(
            name=name,
            is_async=is_async,
            argument_count=argument_count,
            slots=tuple(self._slots),
            code=tuple(code),
            positions=tuple(self._positions),
            handlers=tuple(-1 if handler is None else handler.at for handler in self._handlers),
        )


class ExpressionCompiler:
    """Compiles the expressions of one function."""

    def __init__(self, assembler: Assembler, names: ProgramNames, local_names: set[str]) -> None:
        self._out = assembler
        self._names = names
        self._locals = local_names
        self._inner: list[dict[str, int]] = []

    def value(self, node: ast.expr) -> None:
        """Leave the value of an expression on the stack."""
        if is_literal(node):
            self._out.constant(literal(node), at=node)
            return
        getattr(self, f"_{type(node).__name__.lower()}")(node)

    def iterable(self, node: ast.expr) -> None:
        """Leave something on the stack that can be iterated: a value, or a cursor of a lazy call."""
        match node:
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords) if self._is_lazy(name):
                for argument in arguments:
                    if name == "range":
                        self.value(argument)
                    else:
                        self.iterable(argument)
                for keyword in keywords:
                    self.value(keyword.value)
                self._out.emit(ops.LAZY, ops.LAZY_ITERABLES.index(name), len(arguments) + len(keywords), at=node)
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in LAZY_METHODS:
                self.value(value)
                self._out.emit(ops.LAZY, ops.LAZY_ITERABLES.index(name), 1, at=node)
            case _:
                self.value(node)

    def cursor(self, node: ast.expr) -> int:
        """Return the variable of a new cursor over an expression."""
        self.iterable(node)
        self._out.emit(ops.MAKE_CURSOR, at=node)
        cursor = self._out.new_slot("cursor")
        self._out.emit(ops.STORE_SLOT, cursor)
        return cursor

    def store(self, target: ast.expr) -> None:
        """Take the value on the stack and assign it."""
        match target:
            case ast.Name(id=name):
                self._out.emit(ops.STORE_SLOT, self._slot(name), at=target)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                self._out.emit(ops.UNPACK, len(parts), at=target)
                for part in parts:
                    self.store(part)
            case ast.Subscript(value=value, slice=key):
                self.value(value)
                self.value(key)
                self._out.emit(ops.STORE_INDEX, at=target)
            case _:
                raise AssertionError(target)  # the checker allows no other target

    def jump_unless(self, test: ast.expr, label: Label) -> None:
        """Jump to a label if a test is false."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self.value(test.operand)
            self._out.emit(ops.JUMP_IF_TRUE, label)
            return
        self.value(test)
        self._out.emit(ops.JUMP_IF_FALSE, label, at=test)

    def call_in_place(self, node: ast.Await) -> Helper | None:
        """Return the async helper that an await calls directly, so that it runs in the same path."""
        match node.value:
            case ast.Call(func=ast.Name(id=name)) if name in self._names.helpers and not self._is_variable(name):
                helper = self._names.helpers[name]
                return helper if helper.is_async else None
        return None

    # ProgramNames

    def _is_variable(self, name: str) -> bool:
        return name in self._locals or any(name in bound for bound in self._inner)

    def _is_lazy(self, name: str) -> bool:
        return name in LAZY and not self._is_variable(name) and name not in self._names.helpers

    def _slot(self, name: str) -> int:
        for bound in reversed(self._inner):
            if name in bound:
                return bound[name]
        return self._out.slot(name)

    def _name(self, node: ast.Name) -> None:
        if self._is_variable(node.id):
            self._out.emit(ops.LOAD_SLOT, self._slot(node.id), at=node)
        else:
            self._out.constant(self._names.constants[node.id], at=node)

    # Operators

    def _binop(self, node: ast.BinOp) -> None:
        self.value(node.left)
        self.value(node.right)
        self._out.emit(ops.BINARY, ops.BINARY_OPERATORS.index(BINARY_NODES[type(node.op)]), at=node)

    def _unaryop(self, node: ast.UnaryOp) -> None:
        self.value(node.operand)
        self._out.emit(ops.UNARY, ops.UNARY_OPERATORS.index(UNARY_NODES[type(node.op)]), at=node)

    def _boolop(self, node: ast.BoolOp) -> None:
        end = Label()
        op = ops.JUMP_IF_FALSE_OR_POP if isinstance(node.op, ast.And) else ops.JUMP_IF_TRUE_OR_POP
        for operand in node.values[:-1]:
            self.value(operand)
            self._out.emit(op, end)
        self.value(node.values[-1])
        self._out.place(end)

    def _ifexp(self, node: ast.IfExp) -> None:
        otherwise, end = Label(), Label()
        self.jump_unless(node.test, otherwise)
        self.value(node.body)
        self._out.emit(ops.JUMP, end)
        self._out.place(otherwise)
        self.value(node.orelse)
        self._out.place(end)

    def _compare(self, node: ast.Compare) -> None:
        self.value(node.left)
        end = Label()
        last = len(node.ops) - 1
        for place, (op, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            if isinstance(op, ast.In | ast.NotIn):
                self.iterable(right)
            else:
                self.value(right)
            number = ops.COMPARISONS.index(COMPARE_NODES[type(op)])
            if place == last:
                self._out.emit(ops.COMPARE, number, at=node)
                break
            middle = self._out.new_slot("middle")
            self._out.emit(ops.STORE_SLOT, middle, at=node)
            self._out.emit(ops.LOAD_SLOT, middle)
            self._out.emit(ops.COMPARE, number)
            self._out.emit(ops.JUMP_IF_FALSE_OR_POP, end)
            self._out.emit(ops.TAKE_SLOT, middle)
        self._out.place(end)

    # Values

    def _list(self, node: ast.List | ast.Tuple) -> None:
        for item in node.elts:
            self.value(item)
        self._out.emit(ops.BUILD_LIST, len(node.elts), at=node)

    _tuple = _list  # the checker allows tuples only where they are unpacked or iterated

    def _dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            assert key is not None
            self.value(key)
            self.value(value)
        self._out.emit(ops.BUILD_DICT, len(node.keys), at=node)

    def _joinedstr(self, node: ast.JoinedStr) -> None:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.value(part.value)
                spec = part.format_spec
                texts = spec.values if isinstance(spec, ast.JoinedStr) else []
                text = "".join(str(one.value) for one in texts if isinstance(one, ast.Constant))
                conversion = chr(part.conversion) if part.conversion > 0 else ""
                self._out.emit(ops.FORMAT, self._out.constants.number([conversion, text]), at=part.value)
            else:
                self.value(part)
        self._out.emit(ops.BUILD_STRING, len(node.values), at=node)

    def _subscript(self, node: ast.Subscript) -> None:
        self.value(node.value)
        if isinstance(node.slice, ast.Slice):
            for part in (node.slice.lower, node.slice.upper, node.slice.step):
                if part is None:
                    self._out.constant(None)
                else:
                    self.value(part)
            self._out.emit(ops.SLICE, at=node)
            return
        self.value(node.slice)
        self._out.emit(ops.INDEX, at=node)

    # Comprehensions

    def _listcomp(self, node: ast.ListComp) -> None:
        self._comprehension(node, [node.elt], ops.BUILD_LIST, ops.LIST_APPEND)

    def _dictcomp(self, node: ast.DictComp) -> None:
        self._comprehension(node, [node.key, node.value], ops.BUILD_DICT, ops.DICT_SET)

    def _comprehension(self, node: ast.ListComp | ast.DictComp, parts: list[ast.expr], build: int, add: int) -> None:
        self.iterable(node.generators[0].iter)
        self._out.emit(ops.MAKE_CURSOR, at=node)
        bound = [name for part in node.generators for name in target_names(part.target)]
        self._inner.append({name: self._out.new_slot(name) for name in dict.fromkeys(bound)})
        cursor = self._out.new_slot("cursor")
        self._out.emit(ops.STORE_SLOT, cursor)
        result = self._out.new_slot("result")
        self._out.emit(build, 0)
        self._out.emit(ops.STORE_SLOT, result)
        loops: list[tuple[Label, Label]] = []
        for place, part in enumerate(node.generators):
            if place:
                cursor = self.cursor(part.iter)
            again, end = Label(), Label()
            self._out.place(again)
            self._out.emit(ops.FOR_NEXT, cursor, end, at=part.target)
            self.store(part.target)
            for test in part.ifs:
                self.jump_unless(test, again)
            loops.append((again, end))
        for element in parts:
            self.value(element)
        self._out.emit(add, result, at=parts[0])
        for again, end in reversed(loops):
            self._out.emit(ops.JUMP, again)
            self._out.place(end)
        for slot in self._inner.pop().values():
            self._out.emit(ops.CLEAR_SLOT, slot)
        self._out.emit(ops.TAKE_SLOT, result)

    # Calls

    def _await(self, node: ast.Await) -> None:
        helper = self.call_in_place(node)
        if helper is not None:
            assert isinstance(node.value, ast.Call)
            self._call_helper(node.value, helper, ops.CALL_HELPER)
            return
        self.value(node.value)
        self._out.emit(ops.AWAIT, at=node)

    def _call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            self._call_method(node, node.func)
            return
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if name in self._names.helpers:
            helper = self._names.helpers[name]
            self._call_helper(node, helper, ops.SPAWN if helper.is_async else ops.CALL_HELPER)
        elif name in BUILTINS:
            self._call_builtin(node, name)
        else:
            self._call_durable(node, name)

    def _call_method(self, node: ast.Call, method: ast.Attribute) -> None:
        self.value(method.value)
        if not all(is_literal(argument) for argument in node.args):  # Python looks the method up before the arguments
            self._out.emit(ops.FIND_METHOD, self._out.constants.number(method.attr), at=node)
        for argument in node.args:
            if method.attr in ("join", "extend", "update"):
                self.iterable(argument)
            else:
                self.value(argument)
        self._named_call(ops.CALL_METHOD, method.attr, node)

    def _call_builtin(self, node: ast.Call, name: str) -> None:
        is_single = len(node.args) == 1 or name not in ("min", "max")
        for place, argument in enumerate(node.args):
            if place == 0 and is_single:
                self.iterable(argument)
            else:
                self.value(argument)
        self._named_call(ops.CALL_BUILTIN, name, node)

    def _named_call(self, op: int, name: str, node: ast.Call) -> None:
        """Add the call of a name, after the values of its keywords. The other arguments are on the stack."""
        for keyword in node.keywords:
            self.value(keyword.value)
        number = self._out.constants.number([name, [keyword.arg for keyword in node.keywords]])
        self._out.emit(op, number, len(node.args) + len(node.keywords), at=node)

    def _call_durable(self, node: ast.Call, name: str) -> None:
        shape = DURABLE[name]
        words: list[Any] = list(shape.positional[: len(node.args)])
        words += [f"#{place}" for place in range(len(words), len(node.args))]
        for argument in node.args:
            self.value(argument)
        for keyword in node.keywords:
            self.value(keyword.value)
            is_parameter = keyword.arg in shape.keywords or (
                keyword.arg in shape.positional and not shape.takes_payload
            )
            words.append(keyword.arg if is_parameter else f"={keyword.arg}")
        self._out.emit(ops.DURABLE, self._out.constants.number([name, words]), len(words), at=node)

    def _call_helper(self, node: ast.Call, helper: Helper, op: int) -> None:
        given = helper.parameters[: len(node.args)] + [str(keyword.arg) for keyword in node.keywords]
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        in_order = given == helper.parameters[: len(given)]
        for value in values:
            self.value(value)
        slots: dict[str, int] = {}
        if not in_order:  # Python evaluates arguments in the order in which they are written
            for name in reversed(given):
                slots[name] = self._out.new_slot("argument")
                self._out.emit(ops.STORE_SLOT, slots[name], at=node)
        for name in helper.parameters[len(given) :] if in_order else helper.parameters:
            if name in slots:
                self._out.emit(ops.TAKE_SLOT, slots[name])
            else:
                self._out.constant(helper.defaults[name], at=node)
        self._out.emit(op, helper.number, len(helper.parameters), at=node)
