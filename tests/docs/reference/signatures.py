"""Signatures, as a reader wants them: how a member is called, with types, and what comes back.

They are the source text with three changes, which the index page explains. `await` stands in front of what is awaited,
in place of `Coroutine[…]`. What only type checkers need is left out. A name that only the source knows, such as
`Reuse`, is replaced by what it stands for.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from tests.docs.reference.declarations import Function, Member, Source, source_of

WIDTH = 100

_STARTABLE = re.compile(r"Startable\[Callable\[(?:\[\*Ts\]|\.\.\.), Call\[R\]\]\]")
_AWAITED = re.compile(r"(?:Coroutine\[Any, Any, (.+)\]|Awaitable\[(.+)\])")
_NAME = re.compile(r"(?<![\w.\"])[A-Za-z_]\w*(?![\w\"])")
_NOTHING_TO_WAIT_FOR = {"Done": "None", "Version": "int"}


def signatures(member: Member, receiver: str) -> list[str]:
    """How a method is called, or a property read, on what users call `receiver`."""
    if member.kind != "method":
        annotation = readable(member.annotation, member.source)
        return [f"{receiver}{member.name}: {annotation}" if annotation else f"{receiver}{member.name}"]
    return [
        signature(function, member.source, f"{receiver}{member.name}", member.made_by) for function in member.functions
    ]


def signature(function: Function, source: Source, name: str, made_by: str = "{}") -> str:
    """How one function is called."""
    returned, is_awaited = returns(function, source)
    if made_by != "{}":
        returned = re.sub(r"^AsyncList\[(.+)\]$", r"\1", returned)
        returned, is_awaited = made_by.format(returned), False
    arrow = f" -> {returned}" if returned != "None" else ""
    return laid_out(f"{'await ' if is_awaited else ''}{name}", list(parameters(function, source)), arrow)


def returns(function: Function, source: Source) -> tuple[str, bool]:
    """What a call gives, and whether that has to be awaited."""
    text = source.segment(function.returns) if function.returns is not None else "None"
    is_awaited = isinstance(function, ast.AsyncFunctionDef)
    if found := _AWAITED.fullmatch(text):
        text, is_awaited = found[1] or found[2], True
    return readable(_NOTHING_TO_WAIT_FOR.get(text, text), source), is_awaited


def parameters(function: Function, source: Source) -> Iterator[str]:
    """The parameters of a function, without `self`."""
    named = function.args
    positional = [*named.posonlyargs, *named.args]
    defaults = [None] * (len(positional) - len(named.defaults)) + list(named.defaults)
    for place, (parameter, default) in enumerate(zip(positional, defaults, strict=True)):
        if place or parameter.arg not in ("self", "cls"):
            yield _parameter(parameter, default, source)
        if named.posonlyargs and place == len(named.posonlyargs) - 1 and place:
            yield "/"
    if named.vararg is not None:
        kind = source.segment(named.vararg.annotation) if named.vararg.annotation else ""
        yield f"*{named.vararg.arg}: {kind}" if kind.isidentifier() and kind != "Any" else f"*{named.vararg.arg}"
    elif named.kwonlyargs:
        yield "*"
    for parameter, default in zip(named.kwonlyargs, named.kw_defaults, strict=True):
        yield _parameter(parameter, default, source)
    if named.kwarg is not None:
        options = readable(source.segment(named.kwarg.annotation), source) if named.kwarg.annotation else ""
        yield (
            f"**{named.kwarg.arg}: {options}" if options.isidentifier() and options != "Any" else f"**{named.kwarg.arg}"
        )


def _parameter(parameter: ast.arg, default: ast.expr | None, source: Source) -> str:
    text = parameter.arg
    if parameter.annotation is not None:
        text += f": {readable(source.segment(parameter.annotation), source)}"
    return text if default is None else f"{text} = {default_text(default, source)}"


def default_text(default: ast.expr, source: Source) -> str:
    """A default as its value, if that is a number or a text; else as it is written."""
    text = source.segment(default)
    value = source.value(text) if text.isidentifier() else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value)
    return "..." if text.isupper() else text  # a constant, which the docstring explains


def readable(annotation: str, source: Source) -> str:
    """A type, without what only type checkers need."""
    text = _STARTABLE.sub("Startable[R]", annotation)
    text = re.sub(r"Unpack\[(\w+)\]", r"\1", text)
    text = text.replace("[[*Ts], ", "[..., ").replace(" | UnsetType", "").replace(" | Collection[Never]", "")
    text = text.replace("tuple[*Ts]", "tuple")
    return _NAME.sub(_expansion(source), text)


def _expansion(source: Source) -> Callable[[re.Match[str]], str]:
    def expanded(found: re.Match[str]) -> str:
        alias = _alias(found[0], source)
        return found[0] if alias is None else alias

    return expanded


def _alias(name: str, source: Source) -> str | None:
    """What a name stands for that is given to a type, if it is one."""
    for node in source.tree.body:
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("holdfast."):
                if any(one.name == name for one in names):
                    return _alias(name, source_of(module))
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name and _is_type(value):
                return _literal(value) or readable(source.segment(value), source)
    return None


def _is_type(value: ast.expr) -> bool:
    return isinstance(value, ast.Subscript) or (isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr))


def _literal(value: ast.expr) -> str | None:
    if isinstance(value, ast.Subscript) and ast.unparse(value.value) == "Literal":
        choices = value.slice.elts if isinstance(value.slice, ast.Tuple) else [value.slice]
        return " | ".join(f'"{choice.value!s}"' for choice in choices if isinstance(choice, ast.Constant))
    return None


def laid_out(start: str, arguments: list[str], end: str = "") -> str:
    """A call, over several lines if it is long."""
    line = f"{start}({', '.join(arguments)}){end}"
    if len(line) <= WIDTH:
        return line
    lines = [f"{start}("]
    current = "   "
    for argument in arguments:
        if len(current) + len(argument) + 2 > WIDTH and current.strip():
            lines.append(current)
            current = "   "
        current += f" {argument},"
    return "\n".join([*lines, current, f"){end}"])
