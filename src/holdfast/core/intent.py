"""Checks of everything that makes up an intent, so that every mistake is found before anything is stored."""

from __future__ import annotations

import builtins
import inspect
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, NoReturn, Protocol, TypeGuard, TypeVar, cast

from holdfast.core.clock import Micros, micros
from holdfast.core.codec import ANY, Codec, decode_any, encode_any, name_of
from holdfast.core.errors import InvalidRequest, UnknownWorkflow
from holdfast.core.location import NAME_LIMIT, check_name
from holdfast.core.signature import Signature
from holdfast.core.startable import Call
from holdfast.core.suggestion import refuse_unknown
from holdfast.core.text import NOT_IN_TYPES_RANGE, refused_character

ACTOR_LIMIT = 200
KEY_LIMIT = 500
T = TypeVar("T")
_NOT_IN_TYPES = re.compile(f"[{NOT_IN_TYPES_RANGE}]")


class Described(Protocol):
    """A decorated function. It knows its type and how its arguments become a payload."""

    type: str
    signature: Signature


def described(workflow: object, args: tuple[Any, ...]) -> tuple[str, str, Codec[Any]]:
    """Return type, payload and result codec of a start. `workflow` is a decorated function, a call, or a type name."""
    if isinstance(workflow, str):
        return check_type(workflow), encode_any(_payload(workflow, args), f"payload of {workflow!r}"), ANY
    kwargs: Mapping[str, Any] | None = None
    if isinstance(workflow, Call):
        args, kwargs, workflow = unbound(workflow, args), workflow.kwargs, workflow.target
    if not isinstance(getattr(workflow, "signature", None), Signature):
        raise UnknownWorkflow(_not_startable(workflow))
    known = cast("Described", workflow)
    payload = known.signature.encode(args, f"payload of {known.type!r}", kwargs=kwargs)
    return known.type, payload, known.signature.result


def _not_startable(workflow: object) -> str:
    if inspect.iscoroutine(workflow):
        workflow.close()  # or Python warns that it was never awaited
        return f"{workflow!r} is a call of a function; pass the function and its arguments, or function.bind(…)"
    return f"{workflow!r} is not a workflow or task; decorate it with @hf.workflow or @hf.task"


def unbound(call: Call[Any], further: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the positional arguments of a bound call. Raises `InvalidRequest` if `further` has any."""
    if further:
        raise InvalidRequest(
            f"{call!r} has its arguments already, but {', '.join(map(repr, further))} "
            f"{'was' if len(further) == 1 else 'were'} given too; pass every argument to bind()"
        )
    return call.args


def _payload(type: str, args: tuple[Any, ...]) -> dict[str, Any]:
    """Return the payload of a start by type name."""
    match args:
        case () | (None,):
            return {}
        case (Mapping() as payload,):
            return dict(payload)
        case (other,):
            given = f"a {name_of(builtins.type(other))}"
        case _:
            given = f"{len(args)} arguments"
    raise InvalidRequest(f"starting {type!r} by name takes one payload, a dict of its parameters by name, not {given}")


def refuse_options(given: Iterable[str], known: Iterable[str], workflow: object, *, of: str) -> NoReturn:
    """Raise `InvalidRequest` for unknown keywords. For a parameter of the function, the message suggests `bind`."""
    options = list(known)
    signature = getattr(workflow, "signature", None)
    names, function = (signature.names, signature.name) if isinstance(signature, Signature) else ((), "")
    unknown = [name for name in given if name not in options]
    if meant := [name for name in unknown if name in names]:
        call = f"{function.rpartition('.')[2]}.bind({', '.join(f'{name}=…' for name in meant)})"
        raise InvalidRequest(
            f"unknown option {', '.join(unknown)} of {of}; keywords are options, and {', '.join(meant)} "
            f"{'is a parameter' if len(meant) == 1 else 'are parameters'} of {function}: "
            f"pass {'it' if len(meant) == 1 else 'them'} by position, or by name as {call}"
        )
    if isinstance(workflow, str):
        how = f"a start by name takes a payload, as {workflow!r}, {{{unknown[0]!r}: …}}"
    else:
        how = "arguments of the function are positional, or passed by name with bind(…)"
    refuse_unknown("option", unknown, options, of=of, advice=f"{how}; the options of {of} are {', '.join(options)}")


def check_type(type: str) -> str:
    """Return a type name if it is valid: like an operation's name, but without spaces, commas, quotes and stars."""
    check_name(type, "type name")
    if _NOT_IN_TYPES.search(type) is not None:
        raise InvalidRequest(f"a type name must not contain spaces, commas, quotes or stars: {type!r}")
    return type


def matches_type(type: str, pattern: str) -> bool:
    """True if a pattern matches a type: exactly, or by a dotted prefix such as `billing.*`."""
    return type == pattern or (pattern.endswith(".*") and type.startswith(pattern[:-1]))


def check_priority(priority: object) -> int:
    """Return a priority if it is valid: 0 to 255, lower first."""
    if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority <= 255:
        raise InvalidRequest(f"a priority is a whole number from 0 (first) to 255 (last), not {priority!r}")
    return priority


def check_delay(delay: float | timedelta) -> Micros:
    """Return a delay in microseconds if it is not negative."""
    length = micros(delay, "delay")
    if length < 0:
        raise InvalidRequest(f"delay={delay!r}: a run cannot start in the past")
    return length


def check_length(length: float | timedelta | None, what: str) -> Micros | None:
    """Return a length of time in microseconds if it is positive, or None for None."""
    found = None if length is None else micros(length, what)
    if found is not None and found <= 0:
        raise InvalidRequest(f"{what}={length!r}: expected a length of time greater than zero, or None")
    return found


def check_choice(what: str, value: T, choices: tuple[str, ...]) -> T:
    """Return a value if it is one of several strings."""
    if value not in choices:
        first = ", ".join(map(repr, choices[:-1]))
        raise InvalidRequest(f"{what}={value!r}: expected {first} or {choices[-1]!r}")
    return value


def is_count(value: object) -> TypeGuard[int]:
    """True if a value is an integer of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_reason(reason: str) -> str:
    """Return a reason, if it is a string that every store can keep."""
    return _check_note("reason", reason)


def check_actor(by: str) -> str:
    """Return the name of an actor, if it is a string that every store can keep. An empty string means no name."""
    actor = _check_note("by", by)
    if len(actor) > ACTOR_LIMIT:
        raise InvalidRequest(f"by= has {len(actor)} characters; the name of an actor has at most {ACTOR_LIMIT}")
    return actor


def _check_note(name: str, text: str) -> str:
    if not isinstance(text, str):
        raise InvalidRequest(f"{name}={text!r}: expected a string, for the readers of the run's audit")
    if "\0" in text:
        raise InvalidRequest(f"{name}= contains a NUL character, which stores cannot keep: {text[:80]!r}")
    kept: str = decode_any(encode_any(text, name))
    return kept


def check_text(text: object, what: str, limit: int = NAME_LIMIT) -> str:
    """Return a short string if every store can keep it and it has no invisible characters."""
    if not isinstance(text, str) or not 1 <= len(text) <= limit:
        raise InvalidRequest(f"a {what} is a string of 1 to {limit} characters, not {text!r:.80}")
    if (found := refused_character(text)) is not None:
        raise InvalidRequest(f"a {what} must not contain {found}: {text!r:.80}")
    return text


def check_string(value: Any, what: str) -> str:
    """Return a search value if it is a string. Any string is allowed: it may simply match nothing."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{what}={value!r}: expected a string, not {name_of(type(value))}")
    return value


def check_topic(topic: str) -> str:
    """Return a topic if it is valid."""
    return check_text(topic, "topic")


def check_key(key: str) -> str:
    """Return an idempotency key if it is valid."""
    return check_text(key, "key", KEY_LIMIT)


def check_id(run_id: str) -> str:
    """Return a run id that a caller made, if it is valid."""
    return check_text(run_id, "run id")


def check_tags(tags: Mapping[str, str] | None) -> dict[str, str]:
    """Return tags, none by default, if they map short strings to short strings."""
    if tags is None:
        return {}
    if not isinstance(tags, Mapping):
        raise InvalidRequest(f"tags={tags!r}: expected a dict of strings, such as {{'shop': 'berlin'}}")
    return {check_text(name, "tag's name"): check_text(value, f"value of tag {name!r}") for name, value in tags.items()}
