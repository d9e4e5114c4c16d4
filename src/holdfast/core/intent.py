"""Starting: what a user may pass to start a run, as the checked fields of an intent.

Every mistake is found before anything is stored.
"""

from __future__ import annotations

import builtins
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, NamedTuple, NoReturn, Protocol, TypedDict, TypeGuard, TypeVar, cast, get_args

import msgspec
from msgspec import UNSET

from holdfast.core.clock import Micros, instant, micros
from holdfast.core.codec import ANY, VALUE_LIMIT_BYTES, ArgumentsCodec, Codec, decode_any, encode_any, name_of
from holdfast.core.errors import InvalidRequest, UnknownWorkflow, refuse_unknown
from holdfast.core.location import NAME_LIMIT, NOT_IN_TYPES_RANGE, check_name, refused_character
from holdfast.core.model import DEFAULT_OPTIONS, OnClose, Reuse, RunOptions, Undelivered

R_co = TypeVar("R_co", covariant=True)
Bind_co = TypeVar("Bind_co", covariant=True)


class Startable(Protocol[Bind_co]):
    """A workflow, a task, or a bound call: anything that `hf.start` takes besides the name of a type.

    In this reference `Startable[R]` is one that returns an `R`. In annotations, write `Startable[Callable[[*Ts],
    Call[R]]]`: type checkers then check the positional arguments and know the result.
    """

    @property
    def bind(self) -> Bind_co:
        """Give it arguments, by position or by name, to get a `Call`."""
        ...


class Call(Generic[R_co]):
    """A workflow, task or step together with its arguments: `checkout.bind(order="A-1")`.

    Pass it to `hf.start`, `hf.start_in`, `hf.start_many`, `hf.execute`, `ctx.start`, `ctx.call` or `ctx.step`, without
    further arguments. `target` is what is called, `args` and `kwargs` are the arguments.
    """

    __slots__ = ("args", "kwargs", "target")

    def __init__(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.target = target
        self.args = args
        self.kwargs = kwargs

    def bind(self) -> Call[R_co]:
        """Return the call itself. It takes no further arguments."""
        return self

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"<call of {self.target!r} with ({', '.join(given)})>"


class Signature:
    """The parameters of a function as one JSON object, by name. Build it once per function.

    The first `skip` parameters, such as the context, belong to holdfast and are not part of the object.
    """

    __slots__ = (
        "_arguments",
        "_codec",
        "_is_positional",
        "_keywords",
        "_leading",
        "_positional",
        "_required",
        "name",
        "names",
        "result",
    )

    def __init__(self, function: Callable[..., Any], *, skip: int = 0) -> None:
        self.name = name_of(function)
        parameters = _own_parameters(function, self.name, skip)
        hints = hints_of(function)
        self.names = tuple(each.name for each in parameters)
        self.result: Codec[Any] = result_codec(function)
        self._positional = {each.name: each.default for each in parameters if each.kind is not each.KEYWORD_ONLY}
        self._keywords = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        self._required = [each.name for each in parameters if each.default is each.empty]
        self._leading = sum(name in self._positional for name in self._required)
        self._is_positional = self._leading == len(self._required)
        # UNSET is neither encoded nor decoded. It marks an argument that is left to its default. A struct needs fields
        # without a default first. Positional parameters keep their order, because Python has the same rule.
        hinted = {each.name: self._hint(each, hints) for each in parameters}
        fields: list[Any] = [(name, hint) for name, hint in hinted.items() if name in self._required]
        fields += [(name, hint, UNSET) for name, hint in hinted.items() if name not in self._required]
        self._arguments = msgspec.defstruct(self.name, fields, forbid_unknown_fields=True)
        self._codec: Codec[Any] = ArgumentsCodec(self._arguments, f"{self.name}({', '.join(self.names)})")

    def encode(
        self,
        args: tuple[Any, ...],
        what: str = "payload",
        limit: int = VALUE_LIMIT_BYTES,
        *,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the arguments as a JSON object. Arguments left to their defaults are omitted."""
        if not kwargs and self._is_positional and self._leading <= len(args) <= len(self._positional):
            return self._codec.encode(self._arguments(*args), what, limit)
        kwargs = kwargs or {}
        self.check(args, kwargs)
        return self._codec.encode(
            self._arguments(**dict(zip(self._positional, args, strict=False)), **kwargs), what, limit
        )

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse arguments whose number or names do not fit the function."""
        if not kwargs.keys() <= set(self.names):
            refuse_unknown("parameter", kwargs, self.names, of=self.name)
        if len(args) > len(self._positional):
            raise InvalidRequest(self._too_many(len(args)))
        by_position = list(self._positional)[: len(args)]
        if twice := [name for name in by_position if name in kwargs]:
            raise InvalidRequest(f"{self.name} gets {', '.join(twice)} twice: by position and by name")
        if missing := [name for name in self._required if name not in kwargs and name not in by_position]:
            raise InvalidRequest(self._missing(missing))

    def decode(self, text: str, what: str = "payload") -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments in a JSON object: all positional ones, and the keyword-only ones that are given."""
        arguments = self._codec.decode(text, what)
        args = [
            default if (given := getattr(arguments, name)) is UNSET else given
            for name, default in self._positional.items()
        ]
        kwargs = {name: given for name in self._keywords if (given := getattr(arguments, name)) is not UNSET}
        return tuple(args), kwargs

    def _hint(self, parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:
        hint = hints.get(parameter.name, Any)
        if parameter.default is None:  # `x: int = None` is common, so None must be accepted
            hint = typing.Union[hint, None]  # noqa: UP007 - `|` does not take every hint, such as a forward reference
        try:
            Codec(hint)
        except InvalidRequest as error:
            raise InvalidRequest(f"parameter {parameter.name!r} of {self.name}: {error}") from error
        return hint

    def _missing(self, missing: list[str]) -> str:
        text = f"{self.name} is missing arguments: {', '.join(missing)}"
        by_name = [name for name in missing if name in self._keywords]
        return f"{text}; pass {', '.join(by_name)} by name, with bind({by_name[0]}=…)" if by_name else text

    def _too_many(self, given: int) -> str:
        names = list(self._positional)
        text = f"{self.name} takes {len(names)} arguments ({', '.join(names)}), but {given} were given"
        return f"{text}; pass {', '.join(self._keywords)} by name, with bind(…)" if self._keywords else text


def result_codec(function: Callable[..., Any]) -> Codec[Any]:
    """Return the codec for the result of `function`, by its annotation."""
    try:
        return Codec(hints_of(function).get("return", Any))
    except InvalidRequest as error:
        raise InvalidRequest(f"the result of {name_of(function)}: {error}") from error


def hints_of(function: Any) -> dict[str, Any]:
    """Return the annotations of a function, each resolved on its own. Those that cannot be resolved are omitted."""
    if isinstance(function, type):
        return {**hints_of(vars(function).get("__init__")), "return": function}
    while isinstance(function := inspect.unwrap(function), partial):
        function = function.func
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    local = {}
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=True):
        try:
            local[name] = cell.cell_contents
        except ValueError:  # not assigned yet, such as the function's own name while it is decorated
            continue
    hints: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        alone: Any = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= typing.get_type_hints(alone, function.__globals__, local, include_extras=True)
        except Exception:  # noqa: BLE001, S112 - any text can be an annotation, such as a name only mypy imports
            continue
    return hints


def _own_parameters(function: Callable[..., Any], name: str, skip: int) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the parameters of {name} cannot be determined: {error}") from error
    for each in parameters:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            stars = "*" if each.kind is each.VAR_POSITIONAL else "**"
            raise InvalidRequest(
                f"{name} takes {stars}{each.name}, but its payload is a JSON object of named parameters; "
                f"name each of them, or take one list or dict"
            )
    if any(each.kind is each.KEYWORD_ONLY for each in parameters[:skip]) or len(parameters) < skip:
        raise InvalidRequest(f"{name} must first take {skip} positional parameter(s) for holdfast, such as ctx")
    return parameters[skip:]


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


ATTEMPTS_LIMIT = 1_000_000


class EveryRunOptions(TypedDict, total=False):
    """The options that every producer of runs has."""

    tags: Mapping[str, str] | None
    """Names and values to search for, and to limit by: `{"tenant": "acme"}`."""
    max_run: float | timedelta | None
    """Seconds or a timedelta after which a worker cancels the run, counted from when it may begin. Default: no limit.

    A paused run, and a run without a worker for its type, is cancelled when a worker has it again.
    """
    max_suspend: float | timedelta | None
    """Seconds or a timedelta after which one suspension of the run cancels it. Default: no limit."""
    undelivered: Undelivered
    """Policy for messages that the run never received: `discard` (default), or `dead_letter`."""
    max_attempts: int | None
    """Number of attempts of a task in total, instead of the number in its `Retry`.

    A start refuses it for a workflow that it knows, and other workflows ignore it.
    """
    by: str
    """The name of the user or service that asked for the run. Its audit shows it with `created`."""


class StoredRunOptions(EveryRunOptions, total=False):
    """The options that every producer of runs in a store has."""

    priority: int
    """0 to 255, lower first. Default: 100."""
    retention: float | timedelta | None
    """Seconds or a timedelta for which the run is kept after its end.

    Default: the retention of its type, else that of the worker.
    """


class StartOptions(StoredRunOptions, total=False):
    """The options of a run: keywords of `hf.start`, `hf.start_many`, `hf.start_in` and `hf.execute`."""

    key: str | None
    """Makes the start safe to repeat. A second start with the same key and payload returns the first run.

    With another type or payload it raises `KeyConflict`.
    """
    reuse: Reuse
    """Rule for a new run with the key of an old one: `never` (default), `after_failure` or `after_end`.

    A cancelled run counts as failed.
    """
    delay: float | timedelta
    """Seconds or a timedelta to wait before the run begins."""
    ready_at: datetime | None
    """The moment before which the run does not begin, instead of `delay`. UTC unless it has a zone."""
    id: str | None
    """An id of your own for the run. Default: a new UUID."""
    parent_id: str | None
    """The id of a run that this run is listed under: `hf.list(parent_id=…)`. The parent need not exist.

    Neither run waits for the other, or is cancelled with it. Workers claim the run in the rank of children.
    """


class ChildOptions(StoredRunOptions, total=False):
    """The options of a child run: keywords of `ctx.start`, `ctx.call` and `ctx.map`. The parent's are not inherited."""

    name: str
    """The name of the child in the parent's history. Default: its type."""
    delay: float | timedelta
    """Seconds or a timedelta to wait before the child begins."""
    on_close: OnClose
    """Close policy of the child when its parent ends: `cancel`, or `abandon`, which lets it continue.

    The default of `ctx.call` and `ctx.map` is `cancel`, that of `ctx.start` is `abandon`.
    """


class StartOption(NamedTuple):
    """How an option is checked, what the command line says about it, and the field of the intent if it differs."""

    check: Callable[[Any], Any]
    help: str
    field: str = ""
    may_be_none: bool = True


def _length(name: str, help: str) -> StartOption:
    return StartOption(lambda length: check_length(length, name), help)


def _choice(name: str, choices: object, help: str) -> StartOption:
    return StartOption(lambda value: check_choice(name, value, get_args(choices)), help, may_be_none=False)


def _check_attempts(count: object) -> int:
    if not is_count(count) or count > ATTEMPTS_LIMIT:
        raise InvalidRequest(f"max_attempts={count!r}: expected a whole number from 1 to {ATTEMPTS_LIMIT:,}")
    return count


OPTIONS = {
    "key": StartOption(check_key, "Idempotency key: the same key and payload return the same run."),
    "reuse": _choice("reuse", Reuse, "When the key of an ended run may start a new one.  [default: never]"),
    "priority": StartOption(check_priority, "0 to 255, lower first.  [default: 100]", may_be_none=False),
    "delay": StartOption(check_delay, "Start after this time, such as 30s or 2h.", may_be_none=False),
    "ready_at": StartOption(
        lambda when: instant(when, "ready_at"),
        "Start at this moment, such as 2030-01-31T09:00 (local time) or …Z.",
        field="start_at",
    ),
    "tags": StartOption(check_tags, "A tag for searches; may be repeated."),
    "id": StartOption(check_id, "An id for the run.  [default: a new one]"),
    "parent_id": StartOption(check_id, "List the run under this run. Neither waits for the other."),
    "on_close": _choice("on_close", OnClose, "What happens to a child when its parent ends."),
    "retention": _length("retention", "Keep the run for this long after its end, such as 7d."),
    "max_run": _length("max_run", "Cancel the run after this time, counted from its start time."),
    "max_suspend": _length("max_suspend", "Cancel the run if one suspension takes longer than this time."),
    "undelivered": _choice(
        "undelivered", Undelivered, "What happens to messages that the run never received.  [default: discard]"
    ),
    "max_attempts": StartOption(_check_attempts, "Number of attempts of a task, instead of the number in its code."),
    "by": StartOption(
        check_actor, "Who asked for the run, for its audit.  [default: cli: and your login]", may_be_none=False
    ),
}
"""The options by name. A producer may have more of its own, which are not fields of an intent, such as `name`."""


def check_names(given: Mapping[str, Any], producer: type, workflow: object, *, of: str) -> None:
    """Refuse options that a producer does not have. `producer` is its `TypedDict`."""
    if given.keys() - producer.__annotations__.keys():
        target = workflow.target if isinstance(workflow, Call) else workflow
        if producer is ChildOptions:
            refuse_parent(given)
        refuse_options(given, producer.__annotations__, target, of=of)


def refuse_parent(given: Mapping[str, Any]) -> None:
    """Refuse `parent_id` among the options of a child."""
    if "parent_id" in given:
        raise InvalidRequest(
            f"parent_id={given['parent_id']!r:.80}: the parent of a child is the run that starts it; leave it out"
        )


def intent_fields(given: Mapping[str, Any], workflow: object = None) -> dict[str, Any]:
    """Return the fields of an intent that options set. Raises `InvalidRequest` if one is not valid.

    `workflow` is the decorated function or the bound call, if it is known here, for options that only tasks have.
    """
    fields: dict[str, Any] = {}
    lasting: dict[str, Any] = {}
    for name, value in given.items():
        option = OPTIONS.get(name)
        if option is None or (value is None and option.may_be_none):
            continue
        checked = option.check(value)
        if name not in _LASTING:
            fields[option.field or name] = checked
        elif checked != getattr(DEFAULT_OPTIONS, name):
            lasting[name] = checked
    if lasting:
        if "max_attempts" in lasting:
            _refuse_attempts(workflow)
        fields["options"] = RunOptions(**lasting)
    if "start_at" in fields and fields.get("delay"):
        raise InvalidRequest("delay= and ready_at= both set the start of the run; pass only one of them")
    return fields


_LASTING = frozenset(RunOptions.__struct_fields__)


def _refuse_attempts(workflow: object) -> None:
    """Refuse `max_attempts` for a workflow. A worker ignores it for one that was not known at the start."""
    target = workflow.target if isinstance(workflow, Call) else workflow
    if getattr(target, "is_task", None) is False:
        raise InvalidRequest(
            f"max_attempts=…: {getattr(target, 'type', target)!r} is a workflow, and only tasks have it; "
            "set the attempts of its steps with retry=Retry(max_attempts=…)"
        )
