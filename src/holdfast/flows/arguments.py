"""The arguments of main: a JSON object by name, as every start of a run encodes it."""

from __future__ import annotations

from typing import Any

from holdfast.core.errors import InvalidRequest, Unreadable
from holdfast.core.suggestion import refuse_unknown
from holdfast.flows.faults import FlowFault
from holdfast.flows.json_values import from_json
from holdfast.flows.limits import FlowLimits
from holdfast.flows.program import FlowParameter, Program

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
    except FlowFault as fault:
        raise InvalidRequest(str(fault)) from fault
    except Unreadable as error:
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
    names = [_outer(part) for part in _alternatives(parameter.annotation)]
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


def _outer(annotation: str) -> str:
    return annotation.partition("[")[0].strip()


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a bool", int: "an int", float: "a float", str: "text", list: "a list"}
    return names.get(type(value), "a dict")
