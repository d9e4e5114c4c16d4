"""The grammar of flows: every construct, builtin and method that is allowed, and what to write instead of the others.

The tables are data, so that the checker, the compiler and the documentation agree.
"""

from __future__ import annotations

import ast

import msgspec

from holdfast.core.intent import ChildOptions
from holdfast.flows.instructions import LAZY_ITERABLES


class Shape(msgspec.Struct, frozen=True):
    """The arguments of a builtin or method: how many by position, and which by name."""

    least: int
    most: int
    keywords: tuple[str, ...] = ()
    says: str = ""
    """One line for the documentation."""


class DurableShape(msgspec.Struct, frozen=True):
    """The arguments of a durable call: those by position, those by name alone, and the number of required ones."""

    positional: tuple[str, ...]
    required: int
    keywords: tuple[str, ...] = ()
    takes_payload: bool = False
    """Further keywords are the payload."""
    takes_many: bool = False
    """It takes any number of positional arguments."""
    waits: bool = False
    """Without an await, a call of it as a statement has no effect."""
    says: str = ""


BUILTINS: dict[str, Shape] = {
    "len": Shape(1, 1, says="number of items or characters"),
    "min": Shape(1, 200, ("default",), says="smallest item of a list, or smallest argument"),
    "max": Shape(1, 200, ("default",), says="largest item of a list, or largest argument"),
    "sum": Shape(1, 2, ("start",), says="sum of numbers"),
    "sorted": Shape(1, 1, ("reverse",), says="sorted list of the items"),
    "abs": Shape(1, 1, says="absolute value"),
    "round": Shape(1, 2, ("ndigits",), says="rounded number"),
    "int": Shape(0, 2, says="integer of a number or text"),
    "float": Shape(0, 1, says="float of a number or text"),
    "str": Shape(0, 1, says="text of a value"),
    "bool": Shape(0, 1, says="truth of a value"),
    "list": Shape(0, 1, says="list of the items"),
    "dict": Shape(0, 1, says="dict of another dict, or of pairs"),
    "any": Shape(1, 1, says="true if one item is true"),
    "all": Shape(1, 1, says="true if every item is true"),
    "now": Shape(0, 0, says="seconds since 1970 (UTC) at the last fact of the run"),
    "uuid": Shape(0, 0, says="random UUID as text"),
    "random": Shape(0, 0, says="random number from 0 to 1"),
    "days": Shape(1, 1, says="a number of days in seconds"),
    "hours": Shape(1, 1, says="a number of hours in seconds"),
    "minutes": Shape(1, 1, says="a number of minutes in seconds"),
}

LAZY: dict[str, Shape] = {
    "range": Shape(1, 3, says="integers from start to stop"),
    "enumerate": Shape(1, 2, ("start",), says="pairs of number and item"),
    "zip": Shape(0, 20, says="one item of each, side by side"),
    "reversed": Shape(1, 1, says="items from last to first"),
}
"""Builtins and, below, methods whose result can only be iterated: it is not a JSON value."""

LAZY_METHODS = ("keys", "values", "items")
assert (*LAZY, *LAZY_METHODS) == LAZY_ITERABLES

ITERATING_BUILTINS = ("len", "list", "dict", "sorted", "sum", "min", "max", "any", "all")
"""Builtins whose first argument may be lazy."""

METHODS: dict[str, dict[str, Shape]] = {
    "str": {
        **{name: Shape(0, 0) for name in ("upper", "lower", "title", "capitalize", "swapcase", "casefold")},
        **{name: Shape(0, 0) for name in ("isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower")},
        **{name: Shape(0, 0) for name in ("isdecimal", "isnumeric", "splitlines")},
        **{name: Shape(0, 1) for name in ("strip", "lstrip", "rstrip")},
        **{name: Shape(0, 2) for name in ("split", "rsplit")},
        **{name: Shape(1, 1) for name in ("join", "removeprefix", "removesuffix", "zfill", "partition", "rpartition")},
        **{name: Shape(1, 2) for name in ("ljust", "rjust", "center")},
        **{name: Shape(1, 3) for name in ("startswith", "endswith", "find", "rfind", "index", "rindex", "count")},
        "replace": Shape(2, 3),
    },
    "list": {
        "append": Shape(1, 1),
        "extend": Shape(1, 1),
        "insert": Shape(2, 2),
        "pop": Shape(0, 1),
        "remove": Shape(1, 1),
        "index": Shape(1, 3),
        "count": Shape(1, 1),
        "sort": Shape(0, 0, ("reverse",)),
        "reverse": Shape(0, 0),
        "copy": Shape(0, 0),
        "clear": Shape(0, 0),
    },
    "dict": {
        "get": Shape(1, 2),
        "pop": Shape(1, 2),
        "setdefault": Shape(1, 2),
        "update": Shape(1, 1),
        "copy": Shape(0, 0),
        "clear": Shape(0, 0),
        **{name: Shape(0, 0) for name in LAZY_METHODS},
    },
}
"""The methods of each type of value."""

METHOD_NAMES = frozenset(name for methods in METHODS.values() for name in methods)

DURABLE: dict[str, DurableShape] = {
    "call": DurableShape(
        ("type", "payload"), 1, ("options",), takes_payload=True, says="start a child, which ends with its flow"
    ),
    "start": DurableShape(
        ("type", "payload"), 1, ("options",), takes_payload=True, says="start a child, which continues without its flow"
    ),
    "map": DurableShape(("type", "items"), 2, ("limit", "options"), says="start one child for each item"),
    "sleep": DurableShape(("length",), 1, waits=True, says="wait for seconds"),
    "sleep_until": DurableShape(
        ("when",), 1, waits=True, says="wait until an instant: seconds since 1970, or ISO text"
    ),
    "receive": DurableShape(("name",), 0, ("timeout",), waits=True, says="wait for a message"),
    "receive_batch": DurableShape(("name", "count", "timeout"), 2, waits=True, says="wait for messages"),
    "wait_event": DurableShape(("topic",), 1, ("timeout",), waits=True, says="wait for an event"),
    "send": DurableShape(("run_id", "name", "payload"), 2, says="send a message to a run or a child's handle"),
    "emit": DurableShape(("topic", "payload"), 1, says="publish an event"),
    "join": DurableShape(("branches",), 1, ("fail_fast",), waits=True, says="wait for all handles of a dict or list"),
    "race": DurableShape(("branches",), 1, waits=True, says="wait for the first handle that succeeds"),
    "first_settled": DurableShape(("branches",), 1, waits=True, says="wait for the first handle that ends"),
    "set_value": DurableShape(("name", "value"), 2, says="publish a named value of the run"),
    "log": DurableShape(("text",), 1, says="write a line to the log"),
    "cancel": DurableShape(("handle",), 1, says="cancel what a handle stands for"),
    "continue_as_new": DurableShape(
        (), 0, takes_payload=True, takes_many=True, says="begin the run again with these arguments"
    ),
}
"""The vocabulary of the context. Each call begins at once and returns a handle."""

OPTION_NAMES = tuple(ChildOptions.__annotations__)
"""The keys of the dict `options={…}` of call, start and map: the same names as the options of a child in Python."""

ANNOTATIONS = ("str", "int", "float", "bool", "list", "dict", "None")

FORMAT_SPECIFICATION = r"(?:[ *0_.-]?[<>^])?[+ ]?0?\d{0,3}[,_]?(?:\.\d{1,2})?[bcdeEfFgGnoxXs%]?"
"""A regular expression of the format specifications that f-strings may use."""

REFUSED_STATEMENTS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Import: ("a flow cannot import", "call a task for what needs a library: await call('my.task.v1', …)"),
    ast.ImportFrom: ("a flow cannot import", "call a task for what needs a library: await call('my.task.v1', …)"),
    ast.ClassDef: ("a flow has no classes", "use a dict, and helper functions that take it"),
    ast.With: ("a flow has no `with`", "use try/finally"),
    ast.AsyncWith: ("a flow has no `with`", "use try/finally"),
    ast.AsyncFor: ("a flow has no `async for`", "await the list first, then use `for`"),
    ast.Global: ("a helper cannot write globals", "pass the value as a parameter, and return it"),
    ast.Nonlocal: ("a helper cannot write outer variables", "pass the value as a parameter, and return it"),
    ast.Match: ("a flow has no `match`", "use if/elif/else"),
    ast.AnnAssign: ("a variable cannot be annotated", "write `name = value`"),
    ast.TryStar: ("a flow has no `except*`", "use `except`, and read `errors` of JoinFailed"),
}
REFUSED_EXPRESSIONS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lambda: ("a flow has no lambdas", "write a helper with `def`"),
    ast.NamedExpr: ("a flow has no `:=`", "assign in a statement of its own"),
    ast.Set: ("sets are not JSON values", "use a list, or a dict with true values"),
    ast.SetComp: ("sets are not JSON values", "use a list comprehension"),
    ast.GeneratorExp: ("a flow has no generators", "use a list comprehension: [… for … in …]"),
    ast.Yield: ("a flow has no `yield`", "return a list"),
    ast.YieldFrom: ("a flow has no `yield`", "return a list"),
    ast.Starred: ("a flow has no `*`", "write out each argument or item"),
}
REFUSED_FUNCTIONS: dict[str, str] = {
    "print": "use log(…)",
    "isinstance": "test the value itself",
    "type": "test the value itself",
    "set": "use a list, or a dict with true values",
    "tuple": "use list(…)",
    "open": "call a task for files and networks",
    "filter": "use a list comprehension with `if`",
    "next": "use an index",
    "iter": "use a for statement",
    "repr": 'use an f-string: f"{value!r}"',
    "format": 'use an f-string: f"{value:.2f}"',
    "divmod": "use // and %",
    "pow": "use **",
    "eval": "write the expression itself",
    "exec": "write the statements themselves",
    "getattr": 'use an item: value["name"]',
}
"""Builtins of Python that a flow does not have, and what to write instead."""

BINARY_NODES: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}
REFUSED_OPERATORS = "use arithmetic; to merge dicts, copy one and update it"
COMPARE_NODES: dict[type[ast.AST], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
UNARY_NODES: dict[type[ast.AST], str] = {ast.USub: "-", ast.UAdd: "+", ast.Not: "not"}
