"""The checker: finds every mistake in the syntax tree of a flow before anything is compiled."""

from __future__ import annotations

import ast

from holdfast.flows.expression_checker import ExpressionChecker
from holdfast.flows.faults import CATCHABLE
from holdfast.flows.grammar import ANNOTATIONS, BINARY_NODES, DURABLE, REFUSED_OPERATORS, REFUSED_STATEMENTS
from holdfast.flows.limits import BLOCK_LIMIT, CALL_ARGUMENT_LIMIT
from holdfast.flows.scopes import FunctionNode, FunctionScope, ProgramNames, is_literal, pattern_names
from holdfast.flows.source_text import Mistakes, advice_for


def check(tree: ast.Module, names: ProgramNames, mistakes: Mistakes) -> None:
    """Add every mistake of a program to `mistakes`."""
    _check_module(tree, names, mistakes)
    for statement in tree.body:
        if isinstance(statement, FunctionNode):
            FunctionChecker(statement, names, mistakes).check()


def _check_module(tree: ast.Module, names: ProgramNames, mistakes: Mistakes) -> None:
    seen: dict[str, int] = {}
    for place, statement in enumerate(tree.body):
        if isinstance(statement, FunctionNode):
            if statement.name in seen:
                where = f"line {seen[statement.name]}"
                mistakes.add(statement, f"{statement.name} is defined twice, first in {where}", "rename one of them")
            seen.setdefault(statement.name, statement.lineno)
        elif type(statement) in REFUSED_STATEMENTS:
            mistakes.add(statement, *REFUSED_STATEMENTS[type(statement)])
        elif isinstance(statement, ast.Assign):
            _check_constant(statement, seen, mistakes)
        elif place or ast.get_docstring(tree, clean=False) is None:
            mistakes.add(
                statement,
                "outside of functions, a flow has only a description, constants and functions",
                "move it into main",
            )
    main = names.helpers.get("main")
    if main is None:
        mistakes.add_at(1, 1, "the flow has no main", "write `async def main(…):`")
    elif not main.is_async:
        mistakes.add(main.node, "main must be async", "write `async def main(…):`")


def _check_constant(statement: ast.Assign, seen: dict[str, int], mistakes: Mistakes) -> None:
    if len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Name):
        mistakes.add(statement, "a constant has one name", "write `NAME = value`")
        return
    name = statement.targets[0].id
    if not is_literal(statement.value):
        advice = "write a text, number, True, False or None, or build the value in a function"
        mistakes.add(statement.value, f"the constant {name} is not a literal", advice)
    ExpressionChecker.check_name(statement.targets[0], name, mistakes)
    if name in seen:
        mistakes.add(statement, f"{name} is defined twice, first in line {seen[name]}", "rename one of them")
    seen.setdefault(name, statement.lineno)


class FunctionChecker:
    """Checks the statements of one function."""

    def __init__(self, node: FunctionNode, names: ProgramNames, mistakes: Mistakes) -> None:
        self._node = node
        self._mistakes = mistakes
        self._scope = FunctionScope(node, names)
        self._expressions = ExpressionChecker(self._scope, mistakes)
        self._loops = 0
        self._handlers = 0
        self._blocks = 0

    def check(self) -> None:
        """Add the mistakes of the function."""
        node = self._node
        for decorator in node.decorator_list:
            self._mistakes.add(decorator, "a flow has no decorators", "remove it")
        if getattr(node, "type_params", None):
            self._mistakes.add(node, "a flow has no type parameters", "remove them")
        self._expressions.check_name(node, node.name, self._mistakes)
        self._check_parameters(node.args)
        self._check_annotation(node.returns)
        self._check_body(node.body)

    def _check_parameters(self, arguments: ast.arguments) -> None:
        for extra in (arguments.vararg, arguments.kwarg):
            if extra is not None:
                self._mistakes.add(extra, f"{extra.arg} takes any number of arguments", "name each parameter")
        for other in (*arguments.posonlyargs, *arguments.kwonlyargs):
            self._mistakes.add(other, f"the parameter {other.arg} stands behind `*` or before `/`", "remove the mark")
        if len(arguments.args) > CALL_ARGUMENT_LIMIT:
            self._mistakes.add(self._node, f"more than {CALL_ARGUMENT_LIMIT} parameters", "take one dict")
        for argument in arguments.args:
            self._expressions.check_name(argument, argument.arg, self._mistakes)
            self._check_annotation(argument.annotation)
        for default in arguments.defaults:
            if not is_literal(default):
                advice = "write a text, number, True, False or None; for a list or dict, write None and test for it"
                self._mistakes.add(default, "the default is not a literal", advice)
            else:
                self._expressions.check(default)

    def _check_annotation(self, annotation: ast.expr | None) -> None:
        if annotation is None:
            return
        pending = [annotation]
        while pending:
            part = pending.pop()
            match part:
                case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                    pending += [left, right]
                case ast.Subscript(value=ast.Name(id="list" | "dict")) | ast.Constant(value=None):
                    pass  # the types of items are not checked
                case ast.Name(id=name) if name in ANNOTATIONS:
                    pass
                case _:
                    shown = ast.unparse(part)[:40]
                    advice = f"write one of {', '.join(ANNOTATIONS)}, or two of them with |"
                    self._mistakes.add(part, f"{shown} is not a type of a flow", advice)

    # Statements

    def _check_body(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._check_statement(statement)

    def _check_statement(self, node: ast.stmt) -> None:
        if type(node) in REFUSED_STATEMENTS:
            self._mistakes.add(node, *REFUSED_STATEMENTS[type(node)])
            self._check_inside(node)
            return
        if isinstance(node, FunctionNode):
            advice = "define it outside, and pass what it needs as parameters"
            self._mistakes.add(node, "a function cannot be defined inside a function", advice)
            return
        check = getattr(self, f"_check_{type(node).__name__.lower()}", None)
        if check is None:
            self._mistakes.add(node, f"a flow has no `{type(node).__name__}` statement", "remove it")
        else:
            check(node)

    def _check_pass(self, node: ast.Pass) -> None: ...

    def _check_break(self, node: ast.Break | ast.Continue) -> None:
        if not self._loops:
            self._mistakes.add(node, f"{type(node).__name__.lower()} stands outside of a loop", "remove it")

    _check_continue = _check_break

    def _check_return(self, node: ast.Return) -> None:
        if node.value is not None:
            self._expressions.check(node.value)

    def _check_expr(self, node: ast.Expr) -> None:
        self._expressions.check(node.value)
        match node.value:
            case ast.Call(func=ast.Name(id=name)) if name in DURABLE and DURABLE[name].waits:
                if name not in self._scope.locals:
                    advice = f"write `await {name}(…)`, or keep the handle: `h = {name}(…)`"
                    self._mistakes.add(node, f"nothing waits for this {name}", advice)

    def _check_assign(self, node: ast.Assign) -> None:
        is_unpacking = all(isinstance(target, ast.Tuple | ast.List) for target in node.targets)
        self._expressions.check(node.value, allows_tuple=is_unpacking)
        for target in node.targets:
            self._expressions.check_target(target)

    def _check_augassign(self, node: ast.AugAssign) -> None:
        if type(node.op) not in BINARY_NODES:
            self._mistakes.add(node, "a flow has no such operator", REFUSED_OPERATORS)
        if isinstance(node.target, ast.Name | ast.Subscript):
            self._expressions.check_target(node.target)
        else:
            self._mistakes.add(node.target, "only a variable or an item can be changed in place", "assign it with =")
        self._expressions.check(node.value)

    def _check_delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Slice):
                self._expressions.check_target(target)
            else:
                self._mistakes.add(target, "only an item can be deleted", "write `del values[key]`, or assign None")

    def _check_if(self, node: ast.If) -> None:
        branch: list[ast.stmt] = [node]
        while len(branch) == 1 and isinstance(branch[0], ast.If):  # a loop: a chain of elif may be long
            self._expressions.check(branch[0].test)
            self._check_body(branch[0].body)
            branch = branch[0].orelse
        self._check_body(branch)

    def _check_while(self, node: ast.While) -> None:
        self._expressions.check(node.test)
        self._check_loop(node)

    def _check_for(self, node: ast.For) -> None:
        self._expressions.check_iterable(node.iter)
        self._expressions.check_target(node.target)
        self._check_loop(node)

    def _check_inside(self, refused: ast.stmt) -> None:
        """Check the parts of a refused statement that stay when its author corrects it."""
        match refused:
            case ast.With() | ast.AsyncWith():
                for item in refused.items:
                    self._expressions.check(item.context_expr)
                self._check_body(refused.body)
            case ast.AsyncFor():
                self._expressions.check(refused.iter)
                self._check_loop(refused)
            case ast.Match():
                self._scope.locals.update(pattern_names(refused))
                self._expressions.check(refused.subject)
                for case in refused.cases:
                    self._check_body(case.body)
            case ast.TryStar():
                self._check_try(refused)
            case ast.AnnAssign(value=ast.expr() as value):
                self._expressions.check(value)
            case _:
                pass

    def _check_loop(self, node: ast.While | ast.For | ast.AsyncFor) -> None:
        self._loops += 1
        self._check_body(node.body)
        self._loops -= 1
        self._check_body(node.orelse)

    def _check_assert(self, node: ast.Assert) -> None:
        self._expressions.check(node.test)
        if node.msg is not None:
            self._expressions.check(node.msg)

    def _check_raise(self, node: ast.Raise) -> None:
        if node.cause is not None:
            self._mistakes.add(node.cause, "a flow has no `raise … from`", "leave the cause out")
        if node.exc is None:
            if not self._handlers:
                self._mistakes.add(node, "raise without an error stands outside of except", 'write raise Error("code")')
            return
        match node.exc:
            case ast.Call(func=ast.Name(id="Error"), args=arguments, keywords=[]) if 1 <= len(arguments) <= 2:
                for argument in arguments:
                    self._expressions.check(argument)
            case _:
                advice = 'write raise Error("code", "message"); inside except, `raise` alone raises the error again'
                self._mistakes.add(node.exc, "a flow raises only Error with a code and a message", advice)

    def _check_try(self, node: ast.Try | ast.TryStar) -> None:
        self._blocks += 1
        if self._blocks == BLOCK_LIMIT + 1:
            self._mistakes.add(
                node, f"more than {BLOCK_LIMIT} try statements inside each other", "use helper functions"
            )
        self._check_body(node.body)
        for handler in node.handlers:
            self._check_handler(handler)
        self._check_body(node.orelse)
        self._check_body(node.finalbody)
        self._blocks -= 1

    def _check_handler(self, handler: ast.ExceptHandler) -> None:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        for kind in kinds:
            if kind is None:
                named = ", ".join(CATCHABLE)
                self._mistakes.add(
                    handler, "except without a name catches mistakes of the program, too", f"name {named}"
                )
            elif not isinstance(kind, ast.Name) or kind.id not in CATCHABLE:
                shown = ast.unparse(kind)[:40]
                advice = advice_for(shown, CATCHABLE, f"the errors are {', '.join(CATCHABLE)}")
                self._mistakes.add(kind, f"except does not know {shown}", advice)
        if handler.name:
            self._expressions.check_name(handler, handler.name, self._mistakes)
        self._handlers += 1
        self._check_body(handler.body)
        self._handlers -= 1
