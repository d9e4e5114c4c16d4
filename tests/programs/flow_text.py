"""The text of a flow program and its expected outcome. The two are written side by side, node by node.

A program is `{"parts": [[node, …], …]}`, a part for each generation of its run. A node is the name of an operation and
its arguments, as plain JSON. Each node adds one value to `found`, which is the result of the flow. Numbers make names
unique.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

FlowNode = list[Any]
FlowProgram = dict[str, Any]

FAR = "days(4000)"
"""A timeout that is never reached."""

TASK, MIXED, FRAGILE = "flow.task", "flow.mixed", "flow.fragile"
FRIEND, ECHO, ENDLESS, LEAF = "flow.friend", "flow.echo", "flow.endless", "flow.leaf"

LEAF_TEXT = """
async def main(n):
    found = await call("flow.task", n=n)
    await sleep(1)
    return [found]
"""
"""The flow that a Python workflow calls."""


@dataclass
class FlowExpectation:
    """What has to come of a started flow program.

    `values` are published, by type and name. `children` counts the runs of each type and number below it. `doomed` are
    numbers of children that it cancels.
    """

    result: Any = None
    texts: dict[str, str] = field(default_factory=dict)
    values: dict[tuple[str, str], int] = field(default_factory=dict)
    mail: Counter[int] = field(default_factory=Counter)
    news: Counter[int] = field(default_factory=Counter)
    children: Counter[tuple[str, int]] = field(default_factory=Counter)
    doomed: set[int] = field(default_factory=set)
    seconds: float = 0.0


def expectation_of(program: FlowProgram, type: str) -> FlowExpectation:
    """Return the texts of a program and of the flows below it, by type, and what has to come of it."""
    expected = FlowExpectation()
    expected.result = _FlowWriter(type, expected).write(program)
    return expected


class _FlowWriter:
    """Writes the text of one type. `times` is how often the current node is executed."""

    def __init__(self, type: str, expected: FlowExpectation, times: int = 1) -> None:
        self._type = type
        self._expected = expected
        self._times = times
        self._lines: list[str] = []
        self._helpers: list[str] = []
        self._indent = 1
        self._helper_count = 0

    def write(self, program: FlowProgram, *, failure: int = 0) -> list[Any]:
        """Write a whole program. One with a `failure` raises it in the end."""
        found: list[Any] = []
        last = len(program["parts"]) - 1
        for number, part in enumerate(program["parts"]):
            self._add(f"if part == {number}:")
            with_part = [*self._sequence(part)]
            found += with_part
            self._indent += 1
            self._add(f"return await continue_as_new({number + 1}, found)" if number < last else "pass")
            self._indent -= 1
        self._add(f'raise Error("no", "no {failure}")' if failure else "return found")
        main = "\n".join(["async def main(part=0, found=None):", "    found = found or []", *self._lines])
        self._expected.texts[self._type] = "\n\n".join([*self._helpers, main]) + "\n"
        return found

    def _add(self, line: str) -> None:
        self._lines.append("    " * self._indent + line)

    def _sequence(self, nodes: Sequence[FlowNode]) -> Iterator[Any]:
        self._indent += 1
        for kind, *arguments in nodes:
            work: Callable[..., Any] = getattr(self, f"_{kind}")
            yield work(*arguments)
        self._indent -= 1

    def _found(self, expression: str) -> None:
        self._add(f"found.append({expression})")

    def _calls(self, type: str, number: int) -> None:
        self._expected.children[type, number] += self._times

    def _takes(self, seconds: float) -> None:
        self._expected.seconds += seconds * self._times

    # Leaves

    def _task(self, number: int, delay: float) -> int:
        self._calls(TASK, number)
        self._takes(delay)
        options = f', options={{"delay": {delay}}}' if delay else ""
        self._found(f'await call("{TASK}", n={number}{options})')
        return number

    def _same(self, number: int) -> bool:
        """A random value that a child gets must be the one that the flow has afterwards."""
        self._calls(TASK, number)
        self._add("x = random()")
        self._found(f'await call("{TASK}", n={number}, value=x) == x')
        return True

    def _broken(self, number: int) -> str:
        self._calls(MIXED, 2 * number + 1)
        self._try(f'await call("{MIXED}", n={2 * number + 1})', "ChildFailed", 'e["cause"]["message"]')
        return f"never {2 * number + 1}"

    def _fragile(self, number: int, how: str) -> Any:
        """A task that fails until a person repairs it. Then the flow is recovered.

        In the turn that fails, the flow may start a child, which the recovered flow takes again.
        """
        self._calls(FRAGILE, number)
        call = f'await call("{FRAGILE}", n={number})'
        if how == "plain":
            self._found(call)
            return number
        self._calls(TASK, number)
        self._add("try:")
        self._add(f"    got = {call}")
        self._add("finally:")
        self._add(f'    left = start("{TASK}", n={number})')
        self._found("[got, await left]")
        return [number, number]

    def _try(self, expression: str, error: str, value: str) -> None:
        self._add("try:")
        self._add(f"    found.append({expression})")
        self._add(f"except {error} as e:")
        self._add(f"    found.append({value})")

    def _friend(self, number: int) -> list[Any]:
        """A workflow in Python, which calls a flow."""
        for type in (FRIEND, LEAF, TASK):
            self._calls(type, number)
        self._expected.texts[LEAF] = LEAF_TEXT
        self._takes(3)
        self._found(f'await call("{FRIEND}", n={number})')
        return [number, [number]]

    def _sleep(self, seconds: float) -> bool:
        self._takes(seconds)
        self._add("t = now()")
        self._add(f"await sleep({seconds})")
        self._found(f"now() - t > {seconds} - 0.001")
        return True

    def _receive(self, number: int, how: str) -> Any:
        self._expected.mail[number] += 1
        name = f'["left{number}", "mail{number}"]' if how == "either" else f'"mail{number}"'
        timeout = f", timeout={FAR}" if how == "timeout" else ""
        self._found(f"await receive({name}{timeout})")
        return [f"mail{number}", [number, 1]] if how == "either" else [number, 1]

    def _batch(self, number: int, count: int) -> list[Any]:
        self._expected.mail[number] += count
        self._add("got = []")
        self._add(f"while len(got) < {count}:")
        self._add(f'    got += await receive_batch("mail{number}", 2)')
        self._found("got")
        return [[number, each + 1] for each in range(count)]

    def _late(self, number: int, seconds: float, what: str) -> str:
        self._takes(seconds)
        self._try(f'await {what}("late{number}", timeout={seconds})', "WaitTimeout", 'e["type"]')
        return "WaitTimeout"

    def _news(self, number: int) -> list[int]:
        self._expected.news[number] += 1
        self._found(f'await wait_event("news{number}")')
        return [number, 1]

    def _echo(self, number: int) -> int:
        self._calls(ECHO, number)
        self._add(f'echo = start("{ECHO}", n={number})')
        self._add(f'send(echo, "say", {number})')
        self._found("await echo")
        return number

    def _forget(self, number: int) -> str:
        self._calls(TASK, number)
        self._add(f'start("{TASK}", n={number})')
        self._found('"gone"')
        return "gone"

    def _doomed(self, number: int, how: str) -> Any:
        """A child that never ends by itself: it is cancelled, or loses a race."""
        self._calls(ENDLESS, number)
        self._takes(2)
        self._expected.doomed.add(number)
        child = f'call("{ENDLESS}", n={number})'
        if how == "race":
            self._found(f'await race({{"child": {child}, "time": sleep(2)}})')
            return ["time", None]
        self._add(f"doomed = {child}")
        self._add("await sleep(2)")
        self._add("cancel(doomed)")
        self._try("await doomed", "ChildFailed", 'e["kind"]')
        return "cancelled"

    def _value(self, number: int) -> int:
        self._expected.values[self._type, f"v{number}"] = number
        self._add(f'set_value("v{number}", {number})')
        self._add(f'emit("flow.bell", {number})')
        self._found(str(number))
        return number

    def _compute(self, count: int) -> int:
        self._add("total = 0")
        self._add(f"for i in range({count}):")
        self._add("    total += i * 2")
        self._found("total")
        return count * (count - 1)

    def _map(self, number: int, count: int, limit: int) -> list[int]:
        numbers = [number * 1_000 + each for each in range(count)]
        for each in numbers:
            self._calls(TASK, each)
        limited = f", limit={limit}" if limit else ""
        self._found(f'await map("{TASK}", [{{"n": {number * 1_000} + i}} for i in range({count})]{limited})')
        return numbers

    def _partial(self, number: int, count: int) -> list[Any]:
        """A map of which every second child fails."""
        numbers = [number * 1_000 + each for each in range(count)]
        for each in numbers:
            self._calls(MIXED, each)
        work = f'await map("{MIXED}", [{{"n": {number * 1_000} + i}} for i in range({count})], limit=2)'
        self._try(work, "JoinFailed", '[e["results"], sorted(list(e["errors"]))]')
        results = {str(each): numbers[each] for each in range(count) if each % 2 == 0}
        return [results, [str(each) for each in range(count) if each % 2]]

    # Branches

    def _helper(self, nodes: Sequence[FlowNode]) -> tuple[str, list[Any]]:
        """Write an async helper. Return its call and its result."""
        self._helper_count += 1
        name = f"helper{self._helper_count}"
        lines, indent, self._lines, self._indent = self._lines, self._indent, [], 0
        self._add(f"async def {name}():")
        self._add("    found = []")
        found = [*self._sequence(nodes)]
        self._add("    return found")
        self._helpers.append("\n".join(self._lines))
        self._lines, self._indent = lines, indent
        return f"{name}()", found

    def _early(self, number: int, nodes: Sequence[FlowNode]) -> list[Any]:
        """A child that is started early and awaited late. The nodes in between give values, too."""
        self._calls(TASK, number)
        call, found = self._helper(nodes)
        self._add(f'early{number} = call("{TASK}", n={number})')
        self._add(f"side = await {call}")
        self._found(f"[await early{number}, side]")
        return [number, found]

    def _beside(self, number: int, nodes: Sequence[FlowNode], others: Sequence[FlowNode]) -> list[Any]:
        """A helper that runs side by side with another one."""
        first, found = self._helper(nodes)
        second, more = self._helper(others)
        self._add(f"side{number} = {first}")
        self._add(f"more = await {second}")
        self._found(f"[more, await side{number}]")
        return [more, found]

    def _join(self, branches: dict[str, Sequence[FlowNode]]) -> dict[str, Any]:
        calls = {key: self._helper(nodes) for key, nodes in branches.items()}
        inside = ", ".join(f'"{key}": {call}' for key, (call, _) in calls.items())
        self._found(f"await join({{{inside}}})")
        return {key: found for key, (_, found) in calls.items()}

    def _race(self, number: int, nodes: Sequence[FlowNode], what: str) -> list[Any]:
        """A branch that wins, because the others never end."""
        call, found = self._helper(nodes)
        self._found(f'await {what}({{"never": receive("never{number}"), "branch": {call}, "far": sleep({FAR})}})')
        return ["branch", found]

    def _caught(self, number: int, nodes: Sequence[FlowNode]) -> str:
        call, _ = self._helper([*nodes, ["raise", number]])
        self._try(f"await {call}", "Error", 'e["message"]')
        return f"no {number}"

    def _raise(self, number: int) -> None:
        self._add(f'raise Error("no", "no {number}")')

    def _loop(self, count: int, nodes: Sequence[FlowNode]) -> list[Any]:
        self._times *= count
        call, found = self._helper(nodes)
        self._times //= count
        self._add("rounds = []")
        self._add(f"for i in range({count}):")
        self._add(f"    rounds += await {call}")
        self._found("rounds")
        return found * count

    def _inner(self, number: int, program: FlowProgram, fails: int) -> Any:
        """Another flow as a child."""
        type = f"{self._type}.{number}"
        self._calls(type, 0)
        found = _FlowWriter(type, self._expected, self._times).write(program, failure=number if fails else 0)
        if not fails:
            self._found(f'await call("{type}")')
            return found
        self._try(f'await call("{type}")', "ChildFailed", '[e["kind"], e["cause"]["type"]]')
        return ["failed", "Error"]
