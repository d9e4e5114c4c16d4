"""The program: a flow in compiled form, which a store keeps and every worker executes.

Its arguments are those of main: a JSON object by name, as every start of a run encodes it.
"""

from __future__ import annotations

import zlib
from functools import cached_property
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.core.errors import InvalidRequest, Unreadable, refuse_unknown
from holdfast.flows import instructions as ops
from holdfast.flows.faults import FlowFault
from holdfast.flows.limits import FlowLimits
from holdfast.flows.meter import from_json

Linked = list[tuple[int, Any, Any]]
"""The instructions of a function with their constants in place."""


class FlowParameter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A parameter of `main`."""

    name: str
    annotation: str | None = None
    default: Any = UNSET
    """A JSON value. Without one, the parameter is required."""

    @property
    def is_required(self) -> bool:
        return isinstance(self.default, UnsetType)


class FlowFunction(msgspec.Struct, frozen=True):
    """A function of a program: three integers per instruction, and two per position (line and column)."""

    name: str
    is_async: bool
    argument_count: int
    slots: tuple[str, ...]
    """The names of its variables. Names that begin with a dot belong to the compiler."""
    code: tuple[int, ...]
    positions: tuple[int, ...]
    handlers: tuple[int, ...]
    """For each instruction, the instruction that handles its errors; -1 for none."""


class Program(msgspec.Struct, frozen=True, dict=True):
    """A compiled flow. `version` changes with its meaning, not with its formatting or comments."""

    version: str
    instruction_set: int
    description: str
    parameters: tuple[FlowParameter, ...]
    functions: tuple[FlowFunction, ...]
    """The first one is `main`."""
    constants: tuple[Any, ...]

    def encode(self) -> str:
        """Return the program as JSON text."""
        body = msgspec.json.encode(self)
        return f'{{"check":{zlib.crc32(body)},"program":{body.decode()}}}'

    @classmethod
    def decode(cls, text: str) -> Program:
        """Return the program in a JSON text. Raises `Unreadable` if it is none, or one of a newer instruction set."""
        try:
            envelope = _decode_envelope(text)
            body = bytes(envelope.program)
            if zlib.crc32(body) != envelope.check:
                raise Unreadable("this program of a flow was changed after it was compiled; register the flow again")
            number = _decode_number(body).instruction_set
            if number != ops.INSTRUCTION_SET:
                raise Unreadable(
                    f"this program of a flow needs instruction set {number}, and this version of holdfast executes "
                    f"{ops.INSTRUCTION_SET}; upgrade holdfast"
                )
            program = _decode_program(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
            if isinstance(error, Unreadable):
                raise
            raise Unreadable(f"this is not a program of a flow: {error}") from error
        if (flaw := _flaw(program)) is not None:
            raise Unreadable(f"this program of a flow is damaged: {flaw}; register the flow again")
        return program

    @cached_property
    def linked(self) -> tuple[Linked, ...]:
        """The instructions of each function with their constants in place."""
        return tuple(_linked(function, self.constants) for function in self.functions)


class _Envelope(msgspec.Struct):
    check: int
    program: msgspec.Raw


class _Numbered(msgspec.Struct):
    instruction_set: int


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_number = msgspec.json.Decoder(_Numbered).decode
_decode_program = msgspec.json.Decoder(Program).decode

_FIRST_IS_CONSTANT = frozenset(
    (ops.LOAD_CONST, ops.CALL_BUILTIN, ops.CALL_METHOD, ops.DURABLE, ops.FORMAT, ops.FIND_METHOD)
)
_SLOT = frozenset(
    (
        ops.LOAD_SLOT,
        ops.STORE_SLOT,
        ops.FOR_NEXT,
        ops.LIST_APPEND,
        ops.TAKE_SLOT,
        ops.CLEAR_SLOT,
        ops.DICT_SET,
        ops.RAISE_SLOT,
        ops.MATCH_ERROR,
        ops.BIND_ERROR,
    )
)


def _linked(function: FlowFunction, constants: tuple[Any, ...]) -> Linked:
    code = function.code
    linked: Linked = []
    for at in range(0, len(code), 3):
        op, a, b = code[at : at + 3]
        first: Any = _frozen(constants[a]) if op in _FIRST_IS_CONSTANT else a
        second: Any = _frozen(constants[b]) if op == ops.MATCH_ERROR else b
        linked.append((op, first, second))
    return linked


def _frozen(constant: Any) -> Any:
    """Return a constant with tuples for lists. Programs have only scalar constants; lists belong to instructions."""
    return tuple(map(_frozen, constant)) if isinstance(constant, list | tuple) else constant


def _flaw(program: Program) -> str | None:
    """Return the reason why the machine cannot execute a program; None if it can."""
    if not program.functions or program.functions[0].name != "main":
        return "it has no main"
    for function in program.functions:
        count = len(function.code) // 3
        if len(function.code) != 3 * count or len(function.positions) != 2 * count or len(function.handlers) != count:
            return f"the tables of {function.name} differ in length"
        if not count or function.code[-3] not in (ops.RETURN, ops.JUMP, ops.RAISE_SLOT, ops.RAISE_ERROR):
            return f"{function.name} has no end"
        if not all(-1 <= handler < count for handler in function.handlers):
            return f"a handler of {function.name} is outside it"
        for at in range(0, len(function.code), 3):
            if not _is_valid(program, function, *function.code[at : at + 3]):
                return f"instruction {at // 3} of {function.name} is unknown"
    return None


def _is_valid(program: Program, function: FlowFunction, op: int, a: int, b: int) -> bool:
    count = len(function.code) // 3
    if op not in _KNOWN or a < 0 or b < 0:
        return False
    if op in ops.JUMPS:
        return a < count
    if op in _SLOT:
        limit = {ops.FOR_NEXT: count, ops.MATCH_ERROR: len(program.constants)}.get(op, 1)
        return a < len(function.slots) and b < limit
    if op in _FIRST_IS_CONSTANT:
        return a < len(program.constants)
    if op in (ops.CALL_HELPER, ops.SPAWN):
        return a < len(program.functions) and b == program.functions[a].argument_count
    return True


_KNOWN = frozenset(ops.OPCODES.values())


# Arguments

_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "list": (list,),
    "dict": (dict,),
    "None": (type(None),),
}


def bind_payload(program: Program, payload: str, limits: FlowLimits) -> list[Any]:
    """Return the arguments of main in a payload. Raises `InvalidRequest`, which names the wrong parameter."""
    try:
        given = from_json(payload, "payload", limits)
    except (FlowFault, Unreadable) as error:
        raise InvalidRequest(str(error)) from error
    if not isinstance(given, dict):
        raise InvalidRequest(f"the payload of a flow is a JSON object of its parameters by name, not {_kind(given)}")
    names = [parameter.name for parameter in program.parameters]
    if not given.keys() <= set(names):
        refuse_unknown("parameter", given, names, of="main")
    missing = [one.name for one in program.parameters if one.is_required and one.name not in given]
    if missing:
        raise InvalidRequest(f"main is missing arguments: {', '.join(missing)}")
    return [_fitting(one, given[one.name]) if one.name in given else one.default for one in program.parameters]


def _fitting(parameter: FlowParameter, value: Any) -> Any:
    if parameter.annotation is None:
        return value
    names = [part.partition("[")[0].strip() for part in _alternatives(parameter.annotation)]
    if value is None and parameter.default is None:
        return value  # `x: int = None` is common, so None must be accepted
    kinds = {kind for name in names for kind in _TYPES.get(name, ())}
    if type(value) not in kinds:
        raise InvalidRequest(
            f"the parameter {parameter.name} of main is {parameter.annotation}, and the payload has {_kind(value)}"
        )
    return float(value) if type(value) is int and "float" in names and "int" not in names else value


def _alternatives(annotation: str) -> list[str]:
    """Return the parts of an annotation between `|`, without those inside brackets."""
    parts, depth = [""], 0
    for character in annotation:
        depth += (character == "[") - (character == "]")
        if character == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a bool", int: "an int", float: "a float", str: "text", list: "a list"}
    return names.get(type(value), "a dict")
