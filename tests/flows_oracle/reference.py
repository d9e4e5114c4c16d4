"""The reference: executes the text of a flow with CPython, with stubs for durable calls."""

from __future__ import annotations

import json
import warnings
from collections.abc import Generator
from typing import Any

from tests.flows_oracle.generator import AS_DICT

LIMIT = 20_000
"""Number of lines after which the reference gives up on a program."""


class GaveUp(BaseException):
    """The program takes too long, or leaves what a flow can express."""


class Error(Exception):
    """The error that programs raise."""

    def __init__(self, code: Any, message: Any = "") -> None:
        super().__init__(message or code)


class ChildFailed(Exception):
    """The error of a stub."""


def stubbed(number: int, type: str, payload: Any) -> tuple[bool, Any]:
    """Return whether the call with a number succeeds, and its value."""
    if number % 7 == 6:
        return False, f"call {number} of {type} failed"
    values = [payload.get("p"), [1, number], {"x": number, "y": [0]}, "text", number, None, 2.5]
    return True, json.loads(json.dumps(values[(number * 5 + len(type)) % 7]))


class Stub:
    """A handle that has ended already."""

    def __init__(self, is_done: bool, value: Any) -> None:
        self.is_done = is_done
        self.value = value

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.is_done:
            raise ChildFailed(self.value)
        yield from ()
        return self.value


class JoinFailed(Exception):
    """The error of a join."""


class Reference:
    """One execution of a program by CPython."""

    def __init__(self, source: str) -> None:
        self.calls: list[tuple[str, str]] = []
        self._lines = 0
        text = source.replace(AS_DICT, "e = as_dict(e)")
        self._names: dict[str, Any] = {
            "call": self._call,
            "start": self._call,
            "join": self._join,
            "as_dict": lambda error: {"type": type(error).__name__},
            "Error": Error,
            "ChildFailed": ChildFailed,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler warns of many operations that raise
            code = compile(text, "<flow>", "exec")
        exec(code, self._names)  # noqa: S102 - a program of our own generator

    def _call(self, type: str, **payload: Any) -> Stub:
        text = json.dumps(payload, allow_nan=False)
        if len(text) > 100_000:
            raise GaveUp
        self.calls.append((type, text))
        return Stub(*stubbed(len(self.calls), type, json.loads(text)))

    async def _join(self, branches: Any) -> Any:
        stubs = list(branches.values()) if isinstance(branches, dict) else branches
        if not all(stub.is_done for stub in stubs):
            raise JoinFailed
        values = [stub.value for stub in stubs]
        return dict(zip(branches, values, strict=True)) if isinstance(branches, dict) else values

    def run(self, arguments: dict[str, Any]) -> tuple[str, Any]:
        """Return `("returned", value)` or `("raised", name of the error)`."""
        import sys

        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            coroutine = self._names["main"](**arguments)
            coroutine.send(None)
        except StopIteration as end:
            return "returned", json.loads(json.dumps(end.value, allow_nan=False))
        except Exception as error:  # noqa: BLE001 - the kind of the error is the result
            name = type(error).__name__
            # The scope of a comprehension is its own up to Python 3.11.
            return "raised", "UnboundLocalError" if name == "NameError" else name
        finally:
            sys.settrace(before)
        raise AssertionError("a stub waited")

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        self._lines += 1
        if self._lines > LIMIT:
            raise GaveUp
        return self._trace
