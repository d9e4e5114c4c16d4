"""Private names of asyncio are used in one file, which reports a new Python that lacks one."""

from __future__ import annotations

import _asyncio
import ast
import asyncio
import importlib
import re
from asyncio import (
    base_events,
    base_futures,
    coroutines,
    events,
    futures,
    locks,
    queues,
    runners,
    taskgroups,
    tasks,
    timeouts,
)
from collections.abc import Iterator
from inspect import getsource
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).parent
THE_FILE = SOURCE / "runner" / "asyncio_private.py"

MODULES = (
    base_events,
    base_futures,
    coroutines,
    events,
    futures,
    locks,
    queues,
    runners,
    taskgroups,
    tasks,
    timeouts,
)
TYPES = (_asyncio.Future, _asyncio.Task, asyncio.SelectorEventLoop)

# Attributes of our own classes whose names asyncio uses, too.
OWN = {("testing/simulation/world.py", "self.store._state")}
# A file without any of these is not worth parsing.
SUSPECT = re.compile(r"asyncio|attr\(|attrgetter|methodcaller|(?<!self)(?<!cls)\._[a-zA-Z]")
SUBCLASS = re.compile(r"^class \w+\(.*(asyncio|Future|Handle|Loop|Task)", re.MULTILINE)
ACCESSORS = {"getattr", "setattr", "hasattr", "delattr", "attrgetter", "methodcaller"}


def test_no_other_file_uses_a_private_name_of_asyncio() -> None:
    private = _private_names()

    found = [
        f"{path.relative_to(SOURCE)}:{line} uses {text}"
        for path in SOURCE.rglob("*.py")
        if path != THE_FILE and SUSPECT.search(code := path.read_text(encoding="utf-8"))
        for line, text in _uses(ast.parse(code), private)
        if (str(path.relative_to(SOURCE)), text) not in OWN
    ]

    assert not found, "\n".join(["move these to runner/asyncio_private.py, with the reason for each:", *found])


def test_every_way_to_use_a_private_name_is_detected() -> None:
    code = """
import _asyncio
import asyncio._private
from asyncio.tasks import current_task, _enter_task
from asyncio._private import anything
from _asyncio import Task
asyncio.tasks._leave_task(loop, task)
task._fut_waiter
self.loop._ready
getattr(task, "_fut_waiter", None)
self.loop._write_to_self()
hasattr(future, "_children")
asyncio.tasks._GatheringFuture
self._ready, cls._ready, self._turn, context._turn, getattr(context, "_turn"), task.get_loop()
"""

    found = [text for _, text in sorted(_uses(ast.parse(code), _private_names()))]

    assert found == [
        "_asyncio",
        "asyncio._private",
        "asyncio.tasks._enter_task",
        "asyncio._private.anything",
        "_asyncio.Task",
        "asyncio.tasks._leave_task",
        "task._fut_waiter",
        "self.loop._ready",
        "getattr(task, '_fut_waiter', None)",
        "self.loop._write_to_self",
        "hasattr(future, '_children')",
        "asyncio.tasks._GatheringFuture",
    ]


def test_no_class_of_ours_replaces_a_private_method_of_asyncio() -> None:
    replaced = {
        f"{kind.__module__}.{kind.__name__}.{name} replaces that of {base.__name__}"
        for kind in _classes()
        for base in kind.__mro__[1:]
        if base.__module__.partition(".")[0] in {"asyncio", "_asyncio"}
        for name in vars(kind).keys() & vars(base).keys()
        if _is_private(name)
    }

    assert replaced == {"holdfast.runner.asyncio_private.RoundLoop._run_once replaces that of BaseEventLoop"}


def _private_names() -> set[str]:
    written = {name for module in MODULES for name in re.findall(r"\b_\w+", getsource(module))}
    return {name for name in written.union(dir(_asyncio), *map(dir, TYPES)) if _is_private(name)}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def _uses(tree: ast.Module, private: set[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Attribute | ast.Call):
            for text in _used(node, private):
                yield node.lineno, text


def _used(node: ast.AST, private: set[str]) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names if _is_private_of_asyncio(alias.name))
        case ast.ImportFrom(module=str(module), names=names):
            yield from (name for alias in names if _is_private_of_asyncio(name := f"{module}.{alias.name}"))
        case ast.Attribute(value=ast.Name(id="self" | "cls" | "os")):  # asyncio has an `_exit`, too
            return
        case ast.Attribute(attr=name) if name in private:
            yield ast.unparse(node)
        case ast.Call(func=ast.Name(id=function), args=arguments) if function in ACCESSORS:
            if any(isinstance(argument, ast.Constant) and argument.value in private for argument in arguments):
                yield ast.unparse(node)


def _is_private_of_asyncio(dotted: str) -> bool:
    package, *parts = dotted.split(".")
    return package == "_asyncio" or (package == "asyncio" and any(map(_is_private, parts)))


def _classes() -> Iterator[type]:
    for path in SOURCE.rglob("*.py"):
        if SUBCLASS.search(path.read_text(encoding="utf-8")):
            module = importlib.import_module(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts))
            yield from (value for value in vars(module).values() if isinstance(value, type))
