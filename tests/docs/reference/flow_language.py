"""The page about the language of flows, made of the tables of `holdfast.flows` and a few sentences here.

Each table of sentences has the keys of a table of the language. A test compares them, so that a new builtin, statement,
error or limit has to be documented.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from textwrap import fill

from holdfast.flows import limits
from holdfast.flows.grammar import (
    ANNOTATIONS,
    BINARY_NODES,
    BUILTINS,
    COMPARE_NODES,
    DURABLE,
    LAZY,
    METHODS,
    OPTION_NAMES,
    REFUSED_EXPRESSIONS,
    REFUSED_FUNCTIONS,
    REFUSED_OPERATORS,
    REFUSED_STATEMENTS,
    UNARY_NODES,
    DurableShape,
    Shape,
)
from tests.docs.reference.declarations import declaration_of

FILE = "flows-reference.md"
WIDTH = 118

STATEMENTS = {
    "Assign": "`name = …`, `values[key] = …`, `a, b = …`, `a = b = …`",
    "AugAssign": "`name += …`, `values[key] -= …`, with every operator of arithmetic",
    "Delete": "`del values[key]`",
    "Expr": "a call for its effect: `log(…)`, `names.append(…)`",
    "If": "`if`, `elif`, `else`",
    "While": "`while`, with `else`",
    "For": "`for … in …`, with `else`, over lists, dicts, text, `range`, `enumerate`, `zip`, `reversed`",
    "Break": "`break`",
    "Continue": "`continue`",
    "Pass": "`pass`",
    "Return": "`return`, `return value`",
    "Try": "`try`, `except Name`, `except (A, B) as e`, `else`, `finally`",
    "Raise": '`raise Error("code", "message")`; `raise` alone inside `except`',
    "Assert": '`assert test`, `assert test, "message"`',
}
EXPRESSIONS = {
    "Constant": 'text, numbers, `True`, `False`, `None`: `"tea"`, `4.5`',
    "JoinedStr": 'f-strings: `f"{price:.2f} for {name!r}"`, with fixed formats',
    "List": "`[a, b]`",
    "Dict": '`{"key": value}`; keys are text',
    "Name": "variables, parameters and constants",
    "Subscript": "`values[key]`, `values[-1]`, `values[1:3]`",
    "BinOp": "arithmetic",
    "UnaryOp": "`-a`, `+a`, `not a`",
    "BoolOp": "`a and b`, `a or b`, with short circuit",
    "Compare": "`a < b <= c`, `key in values`, `a is None`",
    "IfExp": "`a if test else b`",
    "ListComp": "`[f(x) for x in values if x]`; only its first iterable may await",
    "DictComp": "`{key: value for key, value in pairs}`; likewise",
    "Call": "builtins, helpers, durable calls, and methods of values",
    "Await": "`await handle`, in every other place of an expression",
}
INSIDE = {"FormattedValue", "Attribute", "Slice"}
"""Parts of the expressions above, which have no line of their own."""

RESULTS = {
    "call": "the result of the child",
    "start": "the result of the child",
    "map": "the list of results, in the order of the items",
    "sleep": "`None`",
    "sleep_until": "`None`",
    "receive": "the payload; `[name, payload]` if `name` is a list or missing",
    "receive_batch": "a list of 1 to `count` messages, empty at the timeout",
    "wait_event": "the payload",
    "send": "`None` at once",
    "emit": "`None` at once",
    "join": "the results in a dict or list, as the branches",
    "race": "`[key, result]`, of a list `[index, result]`",
    "first_settled": "like `race`, or the error of the first branch",
    "set_value": "`None` at once",
    "log": "`None` at once",
    "cancel": "`None` at once",
    "continue_as_new": "never: the generation ends here",
}
ERRORS = {
    "ChildFailed": ("a child failed or was cancelled", "`run_id kind cause`; `kind` is `failed` or `cancelled`"),
    "WaitTimeout": ("a `receive` or `wait_event` reached its timeout", "`location`"),
    "JoinFailed": ("branches of a `join`, or children of a `map`, failed", "`results errors`, by key or index as text"),
    "RaceFailed": ("every branch of a `race` failed", "`errors`, by key"),
    "StepFailed": ("reserved: a task that fails is a child, and raises `ChildFailed`", ""),
    "TypeError": ("an operation does not fit the type of a value", ""),
    "KeyError": ("a dict does not have the key", ""),
    "IndexError": ("a list or text does not have the index", ""),
    "ValueError": ("a value is not allowed here, such as a negative count or a bad type name", ""),
    "ZeroDivisionError": ("a division by zero", ""),
    "AssertionError": ("an `assert` is false", ""),
    "OverflowError": ("a float is too large", ""),
    "Error": ('`raise Error("code", "message")`; an operation that was cancelled', "`code`"),
}
LIMIT_CONSTANTS = {
    "SOURCE_LIMIT_CHARACTERS",
    "NODE_LIMIT",
    "NESTING_LIMIT",
    "INSTRUCTION_LIMIT",
    "BLOCK_LIMIT",
    "CALL_ARGUMENT_LIMIT",
    "MISTAKE_LIMIT",
    "DEPTH_LIMIT",
}
SYNTAX = {
    ast.Import: "`import`",
    ast.ImportFrom: "`from … import`",
    ast.ClassDef: "`class`",
    ast.With: "`with`",
    ast.AsyncWith: "`async with`",
    ast.AsyncFor: "`async for`",
    ast.Global: "`global`",
    ast.Nonlocal: "`nonlocal`",
    ast.Match: "`match`",
    ast.AnnAssign: "`name: int = 1`",
    ast.TryStar: "`except*`",
    ast.Lambda: "`lambda`",
    ast.NamedExpr: "`:=`",
    ast.Set: "`{a, b}`",
    ast.SetComp: "`{… for …}`",
    ast.GeneratorExp: "`(… for …)`",
    ast.Yield: "`yield`",
    ast.YieldFrom: "`yield from`",
    ast.Starred: "`*values`",
}
OTHERS = (
    ("decorators, `*args`, `**kwargs`", "name each parameter"),
    ("a function inside a function", "define it outside, and pass what it needs as parameters"),
    ("`value.name`", '`value["name"]`'),
    ("`del name`, `values[1:3] = …`", "assign `None`; build a new list"),
    ("tuples as values", "lists; `a, b = …` and `for a, b in …` work"),
    ("names that begin with `__`", "choose another name"),
    ("`except:`, `except Exception`", "name the errors"),
    ("`raise … from …`, other errors than `Error`", '`raise Error("code", "message")`'),
    ("`await` in a `def`", "`async def`"),
    ("`sleep(5)` as a statement of its own", "`await sleep(5)`, or keep the handle"),
    ("bitwise operators, `@`, `dict | dict`", REFUSED_OPERATORS),
)


def flow_language() -> str:
    """Return the text of the page."""
    return "\n\n".join(map(_wrapped, _sections())) + "\n"


def _sections() -> Iterator[str]:
    yield "# The language of flows"
    yield "<!-- Made by `make reference` from the tables of `holdfast.flows`. -->"
    yield (
        "Everything that a [flow](flows.md) may contain. The grammar is a part of Python's, and means the same. What\n"
        "is not on this page is refused, with line, column and what to write instead. `ruff format` works on flows."
    )
    yield "## A program"
    annotations = ", ".join(f"`{one}`" for one in ANNOTATIONS)
    yield (
        "A text in the first line (the description), constants (`NAME = literal`), and functions at the top level: "
        "`async def main(…)`, whose parameters are the payload, and helpers. A `def` is pure. An `async def` may "
        "await and begin durable calls; called without `await`, it runs side by side and gives a handle. A literal "
        "is a text, a number, `True`, `False` or `None`, and so is the default of a parameter. "
        f"Annotations of main are checked: {annotations}, or several with `|`."
    )
    yield "## Values"
    yield (
        "Exactly JSON: `None`, `bool`, `int`, `float`, `str`, `list`, `dict` with text as keys. Integers stay\n"
        "integers. A handle is a value, too: it can be kept in variables, lists and dicts, and passed to helpers. It\n"
        "cannot leave the flow: payloads, messages and results have no handles."
    )
    yield "## Statements"
    yield _listed(STATEMENTS.values())
    yield "## Expressions"
    yield _listed(EXPRESSIONS.values())
    operators = " ".join(f"`{one}`" for one in (*BINARY_NODES.values(), *COMPARE_NODES.values(), "and", "or"))
    yield f"Operators: {operators}; before a value {' '.join(f'`{one}`' for one in UNARY_NODES.values())}."
    yield "## Builtins"
    yield _table(("call", "gives"), ((_call(name, shape), shape.says) for name, shape in {**BUILTINS, **LAZY}.items()))
    yield (
        f"{_and(LAZY)}, and the dict methods `keys`, `values` and `items`, can only be iterated: in `for`, in a\n"
        "comprehension, or in a builtin such as `list(…)`. `now()`, `uuid()` and `random()` need no care: a flow is\n"
        "not replayed."
    )
    yield "## Methods"
    yield "\n".join(f"- of a `{kind}`: {_methods(methods)}" for kind, methods in METHODS.items())
    yield "They mean the same as in Python."
    yield "## Durable calls"
    yield "Each begins at once and gives a handle. `await` waits for the handle."
    rows = ((_durable(name, shape), shape.says, RESULTS[name]) for name, shape in DURABLE.items())
    yield _table(("call", "does", "awaited, it gives"), rows)
    yield (
        '- In `call` and `start`, the other keywords are the payload: `call("mail.send.v1", to=name)`. A type with a\n'
        '  parameter called `type`, `payload` or `options` takes one dict: `call("x.v1", {"options": 1})`.\n'
        "- `items` of `map` are such dicts. `limit` is the number of children that run at once.\n"
        f"- `options` is a dict with {_and(OPTION_NAMES)}, as in [`ctx.call`](reference/options.md#childoptions).\n"
        "- Lengths of time are seconds: `timeout=days(2)`. An instant is seconds since 1970, or ISO text.\n"
        "- `name` of a message is a text, a list of texts, or missing for any message.\n"
        "- `send` takes the id of a run, or the handle of a child.\n"
        "- `join(…, fail_fast=True)` ends with the first failure. Losers of a decided group are cancelled; a child of\n"
        "  `start` continues.\n"
        "- `continue_as_new` takes the arguments of main. Unread messages stay."
    )
    yield "## Errors"
    yield (
        "`except … as e` gives a dict with `type`, `message` and the fields of the error. An error that leaves main\n"
        "fails the run, and its message has line, column and the source line."
    )
    yield _table(("error", "raised when", "fields"), ((f"`{name}`", *ERRORS[name]) for name in ERRORS))
    yield (
        "Two more cannot be caught: `LimitExceeded`, and the cancel of a path, which runs its `finally` blocks.\n"
        "`InvalidRequest` fails a run at once whose payload does not fit main."
    )
    yield "## Not allowed, and what to write instead"
    refused = {**REFUSED_STATEMENTS, **REFUSED_EXPRESSIONS}
    yield _table(("not allowed", "instead"), [*((SYNTAX[kind], refused[kind][1]) for kind in SYNTAX), *OTHERS])
    yield _table(
        ("function of Python", "instead"), ((f"`{name}`", advice) for name, advice in REFUSED_FUNCTIONS.items())
    )
    yield "## Limits"
    yield (
        "Of a text: more is a mistake, and the flow is refused. Of a run: more is the error `LimitExceeded`, which\n"
        "names the limit; `instructions_per_slice`, `instructions_per_turn` and `requests_per_checkpoint` are pauses."
    )
    yield _table(("of a text", "", ""), ((f"`{name}`", _number(value), _line(doc)) for name, value, doc in constants()))
    yield _table(("of a run", "", ""), ((f"`{name}`", _number(value), _line(doc)) for name, value, doc in run_limits()))


def _wrapped(section: str) -> str:
    """Return a paragraph or list in lines that fit. Tables, headings and comments stay."""
    if section.startswith(("|", "#", "<")):
        return section
    parts = re.split(r"\n(?=- )", section) if section.startswith("- ") else [section]
    indents = ["  " if part.startswith("- ") else "" for part in parts]
    return "\n".join(
        fill(re.sub(r"\s+", " ", part), WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        for part, indent in zip(parts, indents, strict=True)
    )


def constants() -> Iterator[tuple[str, int, str]]:
    """Yield the limits of texts: name, value and docstring."""
    body = ast.parse(Path(limits.__file__).read_text(encoding="utf-8")).body
    for statement, following in pairwise(body):
        match statement, following:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(doc))):
                yield name, getattr(limits, name), doc
            case _:
                pass


def run_limits() -> Iterator[tuple[str, int, str]]:
    """Yield the limits of runs: name, value and docstring."""
    for member in declaration_of(limits.FlowLimits).members:
        yield member.name, getattr(limits.DEFAULT_FLOW_LIMITS, member.name), member.doc


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _listed(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _and(names: Iterable[str]) -> str:
    *most, last = (f"`{name}`" for name in names)
    return f"{', '.join(most)} and {last}"


def _call(name: str, shape: Shape) -> str:
    words = [*(["…"] if shape.most else []), *(f"{word}=…" for word in shape.keywords)]
    count = "" if shape.most < 2 else f", {_count(shape)}"
    return f"`{name}({', '.join(words)})`{count}"


def _count(shape: Shape) -> str:
    if shape.most >= 20:
        return "any number of arguments"
    if shape.least == shape.most:
        return f"{shape.least} arguments"
    return f"{shape.least} to {shape.most} arguments"


def _methods(methods: Mapping[str, Shape]) -> str:
    return " ".join(f"`{name}`" for name in methods)


def _durable(name: str, shape: DurableShape) -> str:
    words = list(shape.positional[: shape.required])
    words += [f"{word}=…" for word in shape.positional[shape.required :]]
    words += ["…"] if shape.takes_payload else []
    words += [f"{word}=…" for word in shape.keywords]
    return f"`{name}({', '.join(words)})`"


def _number(value: int) -> str:
    return f"{value:,}"


def _line(doc: str) -> str:
    return re.sub(r"\s+", " ", doc).strip()
