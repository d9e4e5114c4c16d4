"""The compiler: turns the text of a flow into a program."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

from msgspec import UNSET

from holdfast.flows import instructions as ops
from holdfast.flows.checker import check
from holdfast.flows.expression_compiler import Assembler, Constants, ExpressionCompiler, Label
from holdfast.flows.grammar import BINARY_NODES
from holdfast.flows.limits import INSTRUCTION_LIMIT
from holdfast.flows.program import FlowFunction, FlowParameter, Program
from holdfast.flows.scopes import Helper, ProgramNames
from holdfast.flows.source_text import Mistakes, parse, version_of


def compile_flow(source: str) -> Program:
    """Return the program of a flow. Raises `FlowRefused` with every mistake of the text."""
    tree = parse(source)
    mistakes = Mistakes(source)
    try:
        names = ProgramNames(tree)
        check(tree, names, mistakes)
        if not mistakes:
            return _compiled(tree, names)
    except RecursionError:
        mistakes.add_at(1, 1, "the program is nested too deeply", "use helper functions")
    except _TooLong:
        what = f"the program has more than {INSTRUCTION_LIMIT:,} instructions"
        mistakes.add_at(1, 1, what, "split it into several flows, and nest fewer finally blocks")
    raise mistakes.refusal()


class _TooLong(Exception):
    """The program exceeds the limit of instructions."""


def _compiled(tree: ast.Module, names: ProgramNames) -> Program:
    constants = Constants()
    functions: list[FlowFunction] = []
    total = 0
    for helper in names.helpers.values():
        function = FunctionCompiler(helper, names, constants, INSTRUCTION_LIMIT - total).compile()
        total += len(function.code) // 3
        functions.append(function)
    description = (ast.get_docstring(tree) or "").strip()
    return Program(
        version=version_of(tree),
        instruction_set=ops.INSTRUCTION_SET,
        description=next(iter(description.splitlines()), ""),
        parameters=_parameters(names.helpers["main"]),
        functions=tuple(functions),
        constants=tuple(constants.values),
    )


def _parameters(main: Helper) -> tuple[FlowParameter, ...]:
    return tuple(
        FlowParameter(
            argument.arg,
            None if argument.annotation is None else ast.unparse(argument.annotation),
            main.defaults.get(argument.arg, UNSET),
        )
        for argument in main.node.args.args
    )


class _Loop(NamedTuple):
    """A loop around the code being compiled: where break and continue go, and how many finally blocks are outside."""

    again: Label
    end: Label
    depth: int


class _Cleanup(NamedTuple):
    """Code that runs when a block is left: the body of a finally, or the end of a handler."""

    body: list[ast.stmt]
    slots: list[int]
    handler: Label | None
    errors: list[int]


class FunctionCompiler:
    """Compiles one function.

    Between two statements the operand stack is empty: cursors, errors and results that must survive are variables. So
    an error handler needs no stack depth, and a finally block is copied to each place where its block is left.
    """

    def __init__(self, helper: Helper, names: ProgramNames, constants: Constants, limit: int) -> None:
        self._helper = helper
        local = names.locals_of(helper.node)
        self._out = Assembler(constants, local)
        self._expressions = ExpressionCompiler(self._out, names, set(local))
        self._limit = limit
        self._loops: list[_Loop] = []
        self._cleanups: list[_Cleanup] = []
        self._errors: list[int] = []
        """The variables of the errors whose handlers are around the code."""

    def compile(self) -> FlowFunction:
        """Return the compiled function."""
        node = self._helper.node
        self._body(node.body)
        self._out.constant(None)
        self._out.emit(ops.RETURN)
        count = len(self._helper.parameters)
        return self._out.finish(node.name, is_async=self._helper.is_async, argument_count=count)

    def _body(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if len(self._out) > self._limit:
                raise _TooLong
            getattr(self, f"_{type(statement).__name__.lower()}")(statement)

    # Simple statements

    def _pass(self, node: ast.Pass) -> None: ...

    def _expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        self._expressions.value(node.value)
        self._out.emit(ops.POP)

    def _assign(self, node: ast.Assign) -> None:
        self._expressions.value(node.value)
        if len(node.targets) == 1:
            self._expressions.store(node.targets[0])
            return
        kept = self._out.new_slot("assigned")
        self._out.emit(ops.STORE_SLOT, kept)
        for target in node.targets:
            self._out.emit(ops.LOAD_SLOT, kept)
            self._expressions.store(target)
        self._out.emit(ops.CLEAR_SLOT, kept)

    def _augassign(self, node: ast.AugAssign) -> None:
        number = ops.BINARY_OPERATORS.index(BINARY_NODES[type(node.op)])
        target = node.target
        if isinstance(target, ast.Name):
            self._out.emit(ops.LOAD_SLOT, self._out.slot(target.id), at=target)
            self._expressions.value(node.value)
            self._out.emit(ops.IN_PLACE, number, at=node)
            self._out.emit(ops.STORE_SLOT, self._out.slot(target.id))
            return
        assert isinstance(target, ast.Subscript)
        container, key = self._out.new_slot("container"), self._out.new_slot("key")
        self._expressions.value(target.value)
        self._out.emit(ops.STORE_SLOT, container)
        self._expressions.value(target.slice)
        self._out.emit(ops.STORE_SLOT, key)
        self._out.emit(ops.LOAD_SLOT, container)
        self._out.emit(ops.LOAD_SLOT, key)
        self._out.emit(ops.INDEX, at=target)
        self._expressions.value(node.value)
        self._out.emit(ops.IN_PLACE, number, at=node)
        self._out.emit(ops.TAKE_SLOT, container)
        self._out.emit(ops.TAKE_SLOT, key)
        self._out.emit(ops.STORE_INDEX)

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            assert isinstance(target, ast.Subscript)
            self._expressions.value(target.value)
            self._expressions.value(target.slice)
            self._out.emit(ops.DELETE_INDEX, at=target)

    def _assert(self, node: ast.Assert) -> None:
        fine = Label()
        self._expressions.value(node.test)
        self._out.emit(ops.JUMP_IF_TRUE, fine, at=node)
        if node.msg is None:
            self._out.constant("")
        else:
            self._expressions.value(node.msg)
        self._out.emit(ops.ASSERT_FAILED, at=node)
        self._out.place(fine)

    def _raise(self, node: ast.Raise) -> None:
        if node.exc is None:
            self._out.emit(ops.RAISE_SLOT, self._errors[-1], at=node)
            return
        assert isinstance(node.exc, ast.Call)
        for argument in node.exc.args:
            self._expressions.value(argument)
        if len(node.exc.args) == 1:
            self._out.constant("")
        self._out.emit(ops.RAISE_ERROR, at=node)

    # Branches and loops

    def _if(self, node: ast.If) -> None:
        end = Label()
        branch: list[ast.stmt] = [node]
        while len(branch) == 1 and isinstance(branch[0], ast.If):  # a loop: a chain of elif may be long
            one = branch[0]
            otherwise = Label()
            self._expressions.jump_unless(one.test, otherwise)
            self._body(one.body)
            if one.orelse:
                self._out.emit(ops.JUMP, end)
            self._out.place(otherwise)
            branch = one.orelse
        self._body(branch)
        self._out.place(end)

    def _while(self, node: ast.While) -> None:
        again, otherwise, end = Label(), Label(), Label()
        self._out.place(again)
        self._expressions.jump_unless(node.test, otherwise)
        self._loop_body(node.body, _Loop(again, end, len(self._cleanups)))
        self._out.emit(ops.JUMP, again)
        self._out.place(otherwise)
        self._body(node.orelse)
        self._out.place(end)

    def _for(self, node: ast.For) -> None:
        again, otherwise, end = Label(), Label(), Label()
        cursor = self._expressions.cursor(node.iter)
        self._out.place(again)
        self._out.emit(ops.FOR_NEXT, cursor, otherwise, at=node.target)
        self._expressions.store(node.target)
        self._loop_body(node.body, _Loop(again, end, len(self._cleanups)))
        self._out.emit(ops.JUMP, again)
        self._out.place(otherwise)
        self._body(node.orelse)
        self._out.place(end)
        self._out.emit(ops.CLEAR_SLOT, cursor)  # after a break it still has its list

    def _loop_body(self, body: list[ast.stmt], loop: _Loop) -> None:
        self._loops.append(loop)
        self._body(body)
        self._loops.pop()

    def _break(self, node: ast.Break) -> None:
        self._leave(self._loops[-1].depth)
        self._out.emit(ops.JUMP, self._loops[-1].end, at=node)

    def _continue(self, node: ast.Continue) -> None:
        self._leave(self._loops[-1].depth)
        self._out.emit(ops.JUMP, self._loops[-1].again, at=node)

    def _return(self, node: ast.Return) -> None:
        if node.value is None:
            self._out.constant(None, at=node)
        else:
            self._expressions.value(node.value)
        if any(cleanup.body for cleanup in self._cleanups):
            result = self._out.new_slot("returned")
            self._out.emit(ops.STORE_SLOT, result)
            self._leave(0)
            self._out.emit(ops.TAKE_SLOT, result, at=node)
        self._out.emit(ops.RETURN, at=node)

    def _leave(self, depth: int) -> None:
        """Copy the code that runs when the blocks above a depth are left, innermost first."""
        inside, loops, errors = self._cleanups, self._loops, self._errors
        for place in range(len(inside) - 1, depth - 1, -1):
            cleanup = inside[place]
            self._cleanups, self._errors = inside[:place], cleanup.errors
            # A copy stands outside of its own block, and of the loops inside that block.
            self._loops = [loop for loop in loops if loop.depth <= place]
            with self._out.handled_by(cleanup.handler):
                for slot in cleanup.slots:
                    self._out.emit(ops.CLEAR_SLOT, slot)
                self._body(cleanup.body)
        self._cleanups, self._loops, self._errors = inside, loops, errors

    # Errors

    def _try(self, node: ast.Try) -> None:
        if node.finalbody:
            self._try_finally(node)
        else:
            self._try_except(node)

    def _try_finally(self, node: ast.Try) -> None:
        outer, failed, end = self._out.handler, Label(), Label()
        self._cleanups.append(_Cleanup(node.finalbody, [], outer, [*self._errors]))
        with self._out.handled_by(failed):
            if node.handlers:
                self._try_except(node)
            else:
                self._body(node.body)
        self._cleanups.pop()
        self._body(node.finalbody)
        self._out.emit(ops.JUMP, end)
        self._out.place(failed)
        error = self._out.new_slot("error")
        self._out.emit(ops.STORE_SLOT, error)
        self._body(node.finalbody)
        self._out.emit(ops.RAISE_SLOT, error)
        self._out.place(end)

    def _try_except(self, node: ast.Try) -> None:
        outer, failed, end = self._out.handler, Label(), Label()
        # A body that is left early stands under the handler of this statement no longer.
        self._cleanups.append(_Cleanup([], [], outer, [*self._errors]))
        with self._out.handled_by(failed):
            self._body(node.body)
        self._cleanups.pop()
        self._body(node.orelse)
        self._out.emit(ops.JUMP, end)
        self._out.place(failed)
        error = self._out.new_slot("error")
        self._out.emit(ops.STORE_SLOT, error)
        for handler in node.handlers:
            self._handler(handler, error, end)
        self._out.emit(ops.RAISE_SLOT, error)
        self._out.place(end)

    def _handler(self, handler: ast.ExceptHandler, error: int, end: Label) -> None:
        following = Label()
        kinds: list[Any] = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        names = [kind.id for kind in kinds]
        self._out.emit(ops.MATCH_ERROR, error, self._out.constants.number(names), at=handler)
        self._out.emit(ops.JUMP_IF_FALSE, following)
        bound = [] if handler.name is None else [self._out.slot(handler.name)]
        failed = Label()
        self._cleanups.append(_Cleanup([], [error, *bound], self._out.handler, [*self._errors]))
        self._errors.append(error)
        with self._out.handled_by(failed if bound else self._out.handler):
            if bound:
                self._out.emit(ops.BIND_ERROR, error)
                self._out.emit(ops.STORE_SLOT, bound[0])
            self._body(handler.body)
        self._errors.pop()
        self._cleanups.pop()
        for slot in (error, *bound):
            self._out.emit(ops.CLEAR_SLOT, slot)
        self._out.emit(ops.JUMP, end)
        if bound:  # Python removes the name when an error leaves the handler, too
            self._out.place(failed)
            again = self._out.new_slot("error")
            self._out.emit(ops.STORE_SLOT, again)
            self._out.emit(ops.CLEAR_SLOT, bound[0])
            self._out.emit(ops.RAISE_SLOT, again)
        self._out.place(following)
