"""The text of a flow: parsed into a syntax tree of bounded size, or refused with all its mistakes at once."""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Iterable

from holdfast.core.errors import FlowRefused, Mistake, nearest
from holdfast.flows.limits import MISTAKE_LIMIT, NESTING_LIMIT, NODE_LIMIT, SOURCE_LIMIT_CHARACTERS
from holdfast.flows.scopes import child_nodes


class Mistakes:
    """Collects the mistakes of one text, in the order of their places."""

    def __init__(self, source: str) -> None:
        self._lines = source.split("\n")
        self._found: dict[tuple[int, int, str], Mistake] = {}

    def add(self, node: ast.AST, message: str, advice: str) -> None:
        """Add a mistake at a node of the syntax tree."""
        line = getattr(node, "lineno", 1)
        text = self._lines[line - 1] if 0 < line <= len(self._lines) else ""
        # The tree counts bytes of UTF-8, and people count characters.
        before = text.encode(errors="replace")[: getattr(node, "col_offset", 0)]
        self.add_at(line, len(before.decode(errors="ignore")) + 1, message, advice)

    def add_at(self, line: int, column: int, message: str, advice: str) -> None:
        """Add a mistake at a line and column, both counted from 1."""
        text = self._lines[line - 1] if 0 < line <= len(self._lines) else ""
        shown = text.strip()[:200].encode(errors="backslashreplace").decode()
        self._found.setdefault((line, column, message), Mistake(line, column, shown, message, advice))

    def __bool__(self) -> bool:
        return bool(self._found)

    def refusal(self) -> FlowRefused:
        """Return the error that names every mistake."""
        ordered = [self._found[place] for place in sorted(self._found)]
        return FlowRefused(tuple(ordered[:MISTAKE_LIMIT]), total=len(ordered))


def advice_for(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return what to write instead of an unknown name: the nearest known one, if there is one."""
    near = nearest(name, known)
    return f"did you mean {near}?" if near else otherwise


def parse(source: str) -> ast.Module:
    """Return the syntax tree of a text. Raises `FlowRefused` if it is not Python, or too large."""
    if not isinstance(source, str):
        raise _refusal("", 1, 1, f"a flow is text, not {type(source).__name__}", "pass a str")
    if len(source) > SOURCE_LIMIT_CHARACTERS:
        what = f"the text has {len(source):,} characters; the limit is {SOURCE_LIMIT_CHARACTERS:,}"
        raise _refusal("", 1, 1, what, "split it into several flows")
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise _refusal("", 1, 1, f"the text is not valid Unicode: {error.reason}", "save it as UTF-8") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as an invalid escape sequence, which Python still accepts
            tree = ast.parse(source)
    except SyntaxError as error:
        line, column = error.lineno or 1, max(error.offset or 1, 1)
        raise _refusal(source, line, column, f"this is not Python: {error.msg}", "correct the syntax") from None
    except ValueError as error:  # NUL characters
        raise _refusal(source, 1, 1, f"this is not Python: {error}", "remove the character") from None
    except (RecursionError, MemoryError, OverflowError):
        raise _refusal(source, 1, 1, "the text is nested too deeply", "use helper functions") from None
    _check_size(tree, source)
    return tree


def _refusal(source: str, line: int, column: int, message: str, advice: str) -> FlowRefused:
    mistakes = Mistakes(source)
    mistakes.add_at(line, column, message, advice)
    return mistakes.refusal()


def _check_size(tree: ast.Module, source: str) -> None:
    """Refuse a tree that is too large or too deep, without recursion, so that later passes may recurse."""
    count = 0
    pending: list[tuple[ast.AST, int]] = [(tree, 0)]
    while pending:
        node, depth = pending.pop()
        count += 1
        if count > NODE_LIMIT or depth > NESTING_LIMIT:
            what = f"more than {NODE_LIMIT:,} nodes" if count > NODE_LIMIT else f"more than {NESTING_LIMIT} levels"
            place = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
            advice = "split the program into several flows" if count > NODE_LIMIT else "use helper functions"
            raise _refusal(source, *place, f"the program has {what}", advice)
        for child in child_nodes(node):
            is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
            pending.append((child, depth if is_elif else depth + 1))


def version_of(tree: ast.Module) -> str:
    """Return the SHA-256 of a syntax tree without positions and comments, the same in every version of Python."""
    return hashlib.sha256(_dump(tree).encode()).hexdigest()


_IGNORED_FIELDS = {"ctx", "kind", "type_comment", "type_ignores", "type_params"}


def _dump(node: object) -> str:
    if isinstance(node, ast.Constant):
        return f"Constant({type(node.value).__name__}:{node.value!r})"
    if isinstance(node, ast.AST):
        fields: list[str] = []
        for name in node._fields:
            value = None if name in _IGNORED_FIELDS else getattr(node, name, None)
            if value is not None and value != []:
                fields.append(f"{name}={_dump(value)}")
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        return f"[{','.join(_dump(item) for item in node)}]"
    return repr(node)
