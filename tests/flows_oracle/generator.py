"""Random programs of the language of flows. Most are valid, and many raise errors of every kind."""

from __future__ import annotations

from random import Random

NAMES = ("a", "b", "c", "d")
VALUES = (*NAMES, "xs", "m")
KEYS = ('"x"', '"y"', '"z"')
AS_DICT = "#AS_DICT"
"""A line that only the reference executes: there, `e` is an exception, and in a flow it is a dict."""


class Generator:
    """Writes one program from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._lines: list[str] = []
        self._depth = 0
        self._loops = 0
        self._in_async = True
        self._no_await = 0
        self._handlers = 0
        self._inner: list[str] = []
        self._fuel = 40

    def program(self) -> str:
        """Return the text of the program."""
        self._in_async = False
        self._function("def helper(a, b=2, c=None):", 4)
        self._in_async = True
        self._function("async def worker(a, b=1):", 4)
        self._function("async def main(a, b, c=7):", 12)
        return "\n".join(self._lines) + "\n"

    def _chance(self, percent: int) -> bool:
        return self._random.randrange(100) < percent

    def _pick(self, *choices: str) -> str:
        return self._random.choice(choices)

    def _add(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    def _function(self, head: str, size: int) -> None:
        self._add(head)
        self._depth += 1
        self._fuel = 60
        self._add(f"d = {self._pick('[]', '{}', '0', '[1, 2, 3]')}")
        self._add("xs = [3, 1, 2]")
        self._add(f"m = {self._dict(1) if self._chance(50) else '{}'}")
        self._add(f"t = {self._pick('xs', 'm', '[xs, m]')}")
        for name in ("c",) if "worker" in head else ():
            self._add(f"{name} = {self._expression(1)}")
        self._body(self._random.randint(2, size))
        if self._chance(80):
            self._add(f"return {self._pick('[a, b, c, d, xs, m, t]', '[d, t, xs]', self._expression(2))}")
        self._depth -= 1

    def _body(self, count: int) -> None:
        for _ in range(count):
            if self._depth == 1 and self._chance(70):
                self._guarded()
            else:
                self._statement()

    def _guarded(self) -> None:
        """Write a statement whose errors are caught, so that the program goes on."""
        self._add("try:")
        self._depth += 1
        self._statement()
        self._depth -= 1
        self._add(
            "except (TypeError, KeyError, IndexError, ValueError, ZeroDivisionError, Error, AssertionError) as e:"
        )
        self._depth += 1
        self._add(AS_DICT)
        self._add("t = [t, e['type']]")
        self._depth -= 1

    def _block(self, head: str) -> None:
        self._add(head)
        self._depth += 1
        self._body(self._random.randint(1, 3))
        self._depth -= 1

    def _statement(self) -> None:
        self._fuel -= 1
        is_flat = self._fuel < 0 or self._depth > 5
        choice = self._random.randrange(12 if is_flat else 22)
        if choice < 5:
            self._add(f"{self._target()} = {self._expression(3)}")
        elif choice < 7:
            op = self._pick("+=", "-=", "*=", "//=")
            self._add(f"{self._pick(*NAMES, *(self._item() for _ in range(2)))} {op} {self._expression(2)}")
        elif choice == 7:
            self._add(self._mutation())
        elif choice == 8:
            self._add(f"{self._pick('a, b', 'c, d', '[a, (b, c)]')} = {self._pair()}")
        elif choice == 9:
            self._jump()
        elif choice == 10:
            self._effect()
        elif choice == 11:
            self._add(self._pick(f"assert {self._expression(1)}, 'no'", f"del {self._item()}", "pass"))
        elif choice < 15:
            self._if()
        elif choice < 18:
            self._loop()
        else:
            self._try()

    def _if(self) -> None:
        self._block(f"if {self._expression(2)}:")
        if self._chance(30):
            self._block(f"elif {self._expression(2)}:")
        if self._chance(50):
            self._block("else:")

    def _loop(self) -> None:
        self._loops += 1
        if self._chance(30):
            counter = f"n{self._loops}_{len(self._lines)}"
            self._add(f"{counter} = 0")
            self._add(f"while {counter} < {self._random.randint(1, 4)}:")
            self._depth += 1
            self._add(f"{counter} += 1")
            self._body(self._random.randint(1, 3))
            self._depth -= 1
        else:
            target, iterable = self._iteration()
            self._block(f"for {target} in {iterable}:")
        self._loops -= 1
        if self._chance(30):
            self._block("else:")

    def _iteration(self) -> tuple[str, str]:
        source = self._expression(1)
        return self._random.choice(
            [
                (self._pick(*NAMES), f"range({self._random.randint(0, 4)})"),
                (
                    self._pick(*NAMES),
                    f"range({self._random.randint(-3, 4)}, {self._random.randint(0, 5)}, {self._pick('1', '2', '-1')})",
                ),
                (self._pick(*NAMES), source),
                ("a, b", f"enumerate({source})"),
                ("a, b", f"zip({source}, {self._expression(1)})"),
                ("a, (b, c)", f"enumerate(zip({source}, [1, 2, 3]), 2)"),
                ("b", f"reversed({source})"),
                ("a, b", f"{self._pick('m', 'm', 'd', self._dict(1))}.items()"),
                ("a", f"{self._pick('m', 'm', 'd', self._dict(1))}.{self._pick('keys', 'values')}()"),
                ("c", self._list(1)),
            ]
        )

    def _try(self) -> None:
        self._add("try:")
        self._depth += 1
        self._body(self._random.randint(1, 3))
        self._depth -= 1
        has_finally = self._chance(50)
        handlers = self._random.randint(0 if has_finally else 1, 2)
        for _ in range(handlers):
            self._handler()
        if handlers and self._chance(30):
            self._block("else:")
        if has_finally:
            self._block("finally:")

    def _handler(self) -> None:
        kinds = ["TypeError", "KeyError", "IndexError", "ValueError", "ZeroDivisionError", "Error", "ChildFailed"]
        self._random.shuffle(kinds)
        kind = kinds[0] if self._chance(50) else f"({', '.join(kinds[:5])})"
        is_bound = self._chance(50)
        self._add(f"except {kind}{' as e' if is_bound else ''}:")
        self._depth += 1
        self._handlers += 1
        if is_bound:
            self._add(AS_DICT)
            self._add(f"{self._pick(*NAMES)} = e['type']")
        self._body(self._random.randint(1, 2))
        if self._chance(15):
            self._add("raise")
        self._handlers -= 1
        self._depth -= 1

    def _jump(self) -> None:
        choices = [f"raise Error('code', {self._pick(*NAMES)})" if self._chance(30) else "pass"]
        if self._loops:
            choices += ["break", "continue"]
        if self._chance(40):
            choices.append(f"return {self._expression(1)}")
        if self._chance(60):
            self._add(f"if {self._expression(1)}:")
            self._lines.append("    " * (self._depth + 1) + self._pick(*choices))
        else:
            self._add(self._pick(*choices))

    def _effect(self) -> None:
        if not self._in_async:
            self._add(f"{self._pick(*NAMES)} = {self._expression(2)}")
            return
        choice = self._random.randrange(6)
        name = self._pick(*NAMES)
        if choice < 2:
            self._add(f"{name} = await call('t{choice}', p={self._expression(1)})")
        elif choice == 2:
            self._add(f"h = start('s', p={self._expression(1)})")
            self._add(f"{name} = await h")
        elif choice == 3:
            self._add(f"{name} = await join([call('j', p=i) for i in range({self._random.randint(0, 3)})])")
        elif choice == 4:
            self._add(f"{name} = await join({{'k': call('j', p={self._expression(1)}), 'w': start('j', p=1)}})")
        else:
            self._add(f"{name} = await worker({self._expression(1)})")

    def _target(self) -> str:
        return self._pick(*NAMES, *NAMES, self._item())

    def _item(self) -> str:
        # Keys of dicts are text in a flow, and anything in CPython. So a number is never assigned as a key.
        if self._chance(50):
            return f"{self._pick('m', 'm', 'd')}[{self._pick(*KEYS)}]"
        return f"xs[{self._pick('0', '1', '-1', *KEYS)}]"

    def _pair(self) -> str:
        return self._pick("b, a", "[1, [2, 3]]", "[c, d]", f"{self._expression(1)}, {self._expression(1)}", "'xy'", "a")

    def _mutation(self) -> str:
        name = self._pick("xs", "xs", "m", "d")
        listed, mapped = (name, name) if name == "d" and self._chance(10) else ("xs", "m")
        name = listed
        return self._pick(
            f"{name}.append({self._expression(1)})",
            f"{name}.extend({self._list(1)})",
            f"{name}.insert({self._pick('0', '-1', 'a')}, {self._expression(1)})",
            f"{name}.pop()",
            f"{mapped}.pop('x', {self._expression(1)})",
            f"{mapped}.update({self._dict(1)})",
            f"{mapped}.setdefault('y', {self._expression(1)})",
            f"{name}.sort(reverse={self._pick('True', 'False', 'a')})",
            f"{name}.reverse()",
            f"{name}.remove({self._expression(1)})",
            f"{name}.clear()",
        )

    # Expressions

    def _expression(self, depth: int) -> str:  # noqa: C901, PLR0912 - one branch for each kind of expression
        if depth <= 0 or self._chance(25):
            return self._atom()
        choice = self._random.randrange(20)
        e = self._expression
        below = depth - 1
        if choice < 5:
            return f"({e(below)} {self._pick('+', '-', '*', '/', '//', '+', '*')} {e(below)})"
        if choice == 5:
            return self._pick(
                f"({e(below)} ** {self._pick('2', '0', '3', '-1')})", f"({self._pick('7', '-7', '7.5')} % {e(below)})"
            )
        if choice < 8:
            op = self._pick("<", "<=", ">", ">=", "==", "!=")
            more = f" {self._pick('<', '==', '>=')} {e(0)}" if self._chance(20) else ""
            return f"({e(below)} {op} {e(below)}{more})"
        if choice == 8:
            return f"({e(below)} {self._pick('and', 'or')} {e(below)})"
        if choice == 9:
            return f"({self._pick('not ', '-', '+')}{e(below)})"
        if choice == 10:
            return f"({e(below)} if {e(below)} else {e(below)})"
        if choice == 11:
            return f"({e(below)} {self._pick('in', 'not in')} {e(below)})"
        if choice == 12:
            return f"{self._value(below)}[{self._pick('0', '-1', '1:', ':2', '::-1', '::2', '-2:', *KEYS, 'a')}]"
        if choice == 13:
            return self._method(below)
        if choice == 14:
            return self._builtin(below)
        if choice == 15:
            return self._list(below)
        if choice == 16:
            return self._dict(below)
        if choice == 17:
            return self._comprehension(below)
        if choice == 18:
            return self._text(below)
        return self._call(below)

    def _call(self, depth: int) -> str:
        if self._in_async and not self._no_await and self._chance(40):
            return f"(await call('x', p={self._expression(depth)}))"
        given = self._expression(depth)
        return (
            self._pick(f"helper({given})", f"helper({given}, c={self._expression(0)})", f"helper(c=1, a={given})")
            if self._in_async
            else f"str({given})"
        )

    def _atom(self) -> str:
        if self._inner and self._chance(40):
            return self._pick(*self._inner)
        return self._pick(
            *NAMES,
            *VALUES,
            str(self._random.randint(-5, 12)),
            self._pick("0", "1", "2.5", "-0.5", "1e3"),
            self._pick("'ab'", "'hello'", "''", "'B c'"),
            self._pick("True", "False", "None"),
        )

    def _value(self, depth: int) -> str:
        return self._pick(
            "xs", "m", "c", "'hello'", f"({self._expression(depth)})", self._list(depth), self._dict(depth)
        )

    def _list(self, depth: int) -> str:
        return f"[{', '.join(self._expression(depth - 1) for _ in range(self._random.randint(0, 3)))}]"

    def _dict(self, depth: int) -> str:
        count = self._random.randint(0, 3)
        return "{" + ", ".join(f"{self._pick(*KEYS)}: {self._expression(depth - 1)}" for _ in range(count)) + "}"

    def _text(self, depth: int) -> str:
        scalar = self._pick("a", "b", "1.5", "'t'", str(self._random.randint(-9, 999)))
        spec = self._pick("", "", ":>6", ":<4", ":^5", ":.2f", ":05d", ":,", "!r", ":s", ":x", ":%")
        return f'f"v={{{scalar}{spec}}} {{{self._atom_in_text()}}}"'

    def _atom_in_text(self) -> str:
        return self._pick("c", "d", "a + b", "len(d)")

    def _method(self, depth: int) -> str:
        value = self._value(depth)
        text = self._pick("'hello'", "'B c'", "str(a)", "str(c)", "b" if self._chance(10) else "str(b)")
        items, mapping = self._pick(self._list(depth), "list('hello')", "[1, 2, 1]"), self._dict(depth)
        if self._chance(10):
            items = mapping = value
        return self._pick(
            f"{text}.{self._pick('upper', 'lower', 'title', 'strip', 'isdigit', 'isalpha', 'splitlines')}()",
            f"{text}.{self._pick('split', 'find', 'count', 'startswith', 'endswith', 'index', 'strip')}('l')",
            f"{text}.replace('l', {self._pick(repr('xx'), 'b')})",
            f"{text}.{self._pick('zfill', 'ljust', 'rjust', 'center')}({self._pick('7', '2', 'a')})",
            f"{text}.partition('l')[0]",
            f"'-'.join({self._pick(self._list(depth), text, '[str(i) for i in range(3)]')})",
            f"{mapping}.get({self._pick(*KEYS)}, {self._expression(0)})",
            f"{items}.{self._pick('index', 'count')}({self._expression(0)})",
            f"{self._pick(items, mapping)}.copy()",
        )

    def _builtin(self, depth: int) -> str:
        value = self._expression(depth)
        return self._pick(
            f"{self._pick('len', 'min', 'max', 'sum', 'sorted', 'list', 'any', 'all')}({value})",
            f"{self._pick('abs', 'round', 'int', 'float', 'str', 'bool', 'dict')}({value})",
            f"{self._pick('min', 'max')}({value}, {self._expression(depth)})",
            f"sorted({value}, reverse=True)",
            f"round({value}, {self._pick('1', '-1', '0', 'a')})",
            f"sum({self._list(depth)}, {self._expression(0)})",
            f"list(range({self._random.randint(0, 5)}))",
            f"max({value}, default=0)",
            f"int({self._pick(repr('12'), repr('x'), repr('0x1f'))}, {self._pick('10', '16', '0')})",
            f"len(range({self._random.randint(-2, 5)}))",
            f"({value} in range(5))",
        )

    def _comprehension(self, depth: int) -> str:
        source = self._pick(f"range({self._random.randint(0, 4)})", self._list(depth), "c", "d", "reversed([1, 2])")
        self._no_await += 1
        self._inner.append("i")
        test = f" if {self._expression(depth)}" if self._chance(40) else ""
        more = f" for j in {self._pick('[1, 2]', 'range(i)', 'c')}" if self._chance(20) else ""
        element = self._expression(depth)
        key = f"f'{{i}}': {element}"
        self._inner.pop()
        self._no_await -= 1
        clause = f"for i in {source}{test}{more}"
        return f"{{{key} {clause}}}" if self._chance(30) else f"[{element} {clause}]"
