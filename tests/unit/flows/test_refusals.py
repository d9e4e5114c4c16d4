"""Every construct that flows do not have is refused, with what to write instead."""

from __future__ import annotations

import pytest

from holdfast.core.errors import FlowRefused, InvalidRequest
from holdfast.flows.compiler import compile_flow
from tests.rows import each_row
from tests.unit.flows.actor import body

REFUSED = {
    "import": (body("import os"), "cannot import", "call a task"),
    "from import": ("from os import path\n" + body("pass"), "cannot import", "call a task"),
    "class": (body("class A: pass"), "no classes", "dict"),
    "lambda": (body("f = lambda x: x"), "no lambdas", "def"),
    "with": (body("with a: pass", "a"), "no `with`", "try/finally"),
    "async with": (body("async with a: pass", "a"), "no `with`", "try/finally"),
    "async for": (body("async for x in a: pass", "a"), "no `async for`", "await the list"),
    "yield": (body("yield 1"), "no `yield`", "return a list"),
    "global": (body("global x"), "cannot write globals", "parameter"),
    "nonlocal in a module": (body("match 1:\n    case _: pass"), "no `match`", "if/elif"),
    "walrus": (body("if (x := 1): pass"), "no `:=`", "statement"),
    "set": (body("return {1, 2}"), "sets are not JSON", "list"),
    "generator": (body("return sum(x for x in [1])"), "no generators", "list comprehension"),
    "tuple": (body("x = (1, 2)"), "tuples are not JSON", "[a, b]"),
    "returned tuple": (body("return 1, 2"), "tuples are not JSON", "[a, b]"),
    "star argument": (body("log(*[1])"), "no `*`", "each argument"),
    "double star argument": (body("call('x', **{})"), "cannot have `**`", "each argument"),
    "dict unpacking": (body("return {**{}}"), "cannot have `**`", "update the copy"),
    "attribute": (body("return a.b", "a"), "no attribute b", 'value["b"]'),
    "dunder attribute": (body("return ''.__class__"), "no attribute __class__", "item"),
    "dunder name": (body("return __builtins__"), "begin with __", "remove"),
    "dunder method": (body("return ''.__class__()"), "no method __class__", "the methods are"),
    "unknown method": (body("return 'a'.uper()"), "no method uper", "upper"),
    "format": (body("return '{}'.format(1)"), "no method format", "f-string"),
    "assigned attribute": (body("a.b = 1", "a"), "no attribute b", 'value["b"]'),
    "deleted name": (body("x = 1\ndel x"), "only an item can be deleted", "del values[key]"),
    "decorator": ("@cache\n" + body("pass"), "no decorators", "remove"),
    "inner function": (body("def f(): pass"), "inside a function", "outside"),
    "unknown name": (body("user = 1\nreturn usr"), "unknown name usr", "did you mean user"),
    "unknown function": (body("return lenn([])"), "unknown function lenn", "did you mean len"),
    "print": (body("print(1)"), "unknown function print", "log"),
    "eval": (body("eval('1')"), "unknown function eval", "itself"),
    "function as value": (body("x = len"), "len is a function", "call it"),
    "called variable": (body("x = 1\nx()"), "x is a variable here", "rename"),
    "called call": (body("len([])()"), "only functions", "by name"),
    "few arguments": (body("return len()"), "takes 1 argument, not 0", "pass 1"),
    "many arguments": (body("return abs(1, 2)"), "takes 1 argument, not 2", "pass 1"),
    "unknown keyword": (body("return sorted([], key=1)"), "no keyword key", "pairs"),
    "missing argument": ("def f(a, b): pass\n" + body("f(1)"), "f is missing b", "pass each"),
    "too many for a helper": ("def f(a): pass\n" + body("f(1, 2)"), "f takes 1 arguments", "at most 1"),
    "twice": ("def f(a): pass\n" + body("f(1, a=2)"), "gets a twice", "once"),
    "wrong keyword": ("def f(amount): pass\n" + body("f(amont=1)"), "no parameter amont", "did you mean amount"),
    "await in a pure function": ("def f(): await sleep(1)\n" + body("pass"), "pure function", "async def f"),
    "durable in a pure function": ("def f(): start('x')\n" + body("pass"), "pure function", "async def f"),
    "async in a pure function": (
        "async def g(): pass\ndef f(): g()\n" + body("pass"),
        "cannot call the async g",
        "async def f",
    ),
    "await in a comprehension": (body("return [await sleep(i) for i in [1]]"), "first iterable", "join"),
    "sleep without await": (body("sleep(1)"), "nothing waits for this sleep", "await sleep"),
    "bare except": (body("try: pass\nexcept: pass"), "without a name", "name StepFailed"),
    "unknown error": (body("try: pass\nexcept KeyErr: pass"), "does not know KeyErr", "did you mean KeyError"),
    "base exception": (body("try: pass\nexcept BaseException: pass"), "does not know BaseException", "errors are"),
    "raise builtin": (body("raise ValueError('x')"), "raises only Error", "raise Error"),
    "raise from": (body("raise Error('x') from None"), "no `raise … from`", "leave"),
    "raise outside": (body("raise"), "outside of except", "raise Error"),
    "break outside": (body("break"), "outside of a loop", "remove"),
    "continue outside": (body("continue"), "outside of a loop", "remove"),
    "range value": (body("x = range(3)"), "can only be iterated", "list(range"),
    "keys value": (body("x = {}.keys()"), "can only be iterated", "list("),
    "is": (body("return 1 is 1"), "None, True or False", "=="),
    "bits": (body("return 1 | 2"), "no operator BitOr", "arithmetic"),
    "percent": (body("return '%s' % 1"), "no operator %", "f-string"),
    "bytes": (body("return b'x'"), "bytes are not", "text"),
    "ellipsis": (body("return ..."), "not a JSON value", "number"),
    "complex": (body("return 1j"), "not a JSON value", "number"),
    "infinity": (body("return 1e999"), "too large", "smaller"),
    "number as key": (body("return {1: 2}"), "keys of a dict are text", '"1"'),
    "surrogate": (body("return '\\ud800'"), "lone surrogate", "whole character"),
    "star target": (body("a, *b = [1, 2]"), "cannot have `*`", "slices"),
    "slice target": (body("a[1:2] = []", "a"), "a slice cannot be changed", "new list"),
    "varargs": (body("pass", "*args"), "any number of arguments", "name each"),
    "keyword only": (body("pass", "*, a"), "behind `*`", "remove"),
    "mutable default": (body("pass", "a=[]"), "default is not a literal", "None"),
    "annotation": (body("pass", "a: Order"), "not a type of a flow", "str, int"),
    "annotated variable": (body("a: int = 1"), "cannot be annotated", "name = value"),
    "dynamic format": (body("return f'{1:{2}}'"), "fixed text", "numbers"),
    "odd format": (body("return f'{1:99999d}'"), "unknown format", ".2f"),
    "no main": ("def f(): pass\n", "no main", "async def main"),
    "sync main": ("def main(): pass\n", "must be async", "async def main"),
    "twice defined": ("def f(): pass\ndef f(): pass\n" + body("pass"), "defined twice", "rename"),
    "statement outside": ("log('x')\n" + body("pass"), "outside of functions", "main"),
    "list as constant": ("A = []\n" + body("pass"), "not a literal", "text, number"),
    "unknown option": (body("call('x', options={'prio': 1})"), "unknown option prio", "did you mean priority"),
    "payload twice": (body("call('x', {}, a=1)"), "payload twice", "alone"),
    "missing durable argument": (body("emit()"), "emit is missing topic", "write emit(topic"),
    "unknown durable keyword": (body("emit('x', kind=1)"), "emit has no keyword kind", "write emit(topic"),
    "error as name": (body("KeyError = 1"), "name of an error", "choose another"),
}


@each_row("name", REFUSED)
def test_construct_is_refused_with_advice(name: str) -> None:
    source, message, advice = REFUSED[name]

    with pytest.raises(FlowRefused) as refused:
        compile_flow(source)

    assert any(message in one.message and advice in one.advice for one in refused.value.mistakes), str(refused.value)
    assert isinstance(refused.value, InvalidRequest)


def test_all_mistakes_are_reported_at_once_with_their_places() -> None:
    source = "async def main(a):\n    import os\n    x = lambda: 1\n    return usr\n"

    with pytest.raises(FlowRefused, match="3 mistakes") as refused:
        compile_flow(source)

    places = [(one.line, one.column, one.source_line) for one in refused.value.mistakes]
    assert places == [(2, 5, "import os"), (3, 9, "x = lambda: 1"), (4, 12, "return usr")]
    assert "line 4, column 12: unknown name usr" in str(refused.value)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "async def main(:",
        "async def main():\n    return '\0'",
        "\ud800",
        "async def main():\n  x = " + "(" * 150 + ")" * 150,
        "async def main():\n  return " + "1+" * 20_000 + "1",
        "async def main():\n  return " + "-" * 5_000 + "1",
        "async def main():\n  return " + "[" * 95 + "]" * 95,
        "x = 1\n" * 40_000,
        "a" * 300_000,
        "async def main():\n  return " + "9" * 5_000,
        "async def main():\n" + "".join(" " * (depth + 1) + "if 1:\n" for depth in range(95)) + " " * 96 + "pass",
        "\tasync def main():\n  pass",
    ],
    ids=range(13),
)
def test_text_that_is_no_program_is_refused(source: str) -> None:
    with pytest.raises(FlowRefused):
        compile_flow(source)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(FlowRefused, match="a flow is text, not bytes"):
        compile_flow(b"async def main(): pass")  # type: ignore[arg-type]


def test_nested_finally_blocks_cannot_multiply_without_bound() -> None:
    inner = "try:\n    return 1\nfinally:\n    return 2"
    for _ in range(9):
        indented = "\n".join(f"    {line}" for line in inner.split("\n"))
        inner = f"try:\n    return 1\nfinally:\n{indented}\n{indented}"

    with pytest.raises(FlowRefused, match=r"instructions|inside each other|nodes|characters"):
        compile_flow(body(inner))


INSIDE = {
    "with": ("with open(1) as f:\n    log([f, usr])", ["no `with`", "unknown function open", "unknown name usr"]),
    "async with": ("async with sleep(1):\n    log(usr)", ["no `with`", "unknown name usr"]),
    "async for": ("async for x in usr:\n    log(x)\n    break", ["no `async for`", "unknown name usr"]),
    "match": ("match 1:\n    case {'a': x, **y} if x:\n        log([x, y, usr])", ["no `match`", "unknown name usr"]),
    "except*": ("try:\n    log(usr)\nexcept* Error:\n    log(age)", ["no `except*`", "name usr", "name age"]),
    "annotation": ("x: int = usr\nlog(x)", ["cannot be annotated", "unknown name usr"]),
}


@pytest.mark.parametrize("name", INSIDE)
def test_mistakes_inside_a_refused_statement_are_reported_too(name: str) -> None:
    """Otherwise its author would learn of them only after a correction."""
    text, expected = INSIDE[name]

    with pytest.raises(FlowRefused) as refused:
        compile_flow(body(text))

    found = [mistake.message for mistake in refused.value.mistakes]
    assert len(found) == len(expected), found
    assert all(words in message for words, message in zip(expected, found, strict=True)), found
