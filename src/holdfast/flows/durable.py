"""Durable calls: the vocabulary of the context, as a flow calls it. Each begins at once and returns a handle."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from holdfast.core.clock import Micros, instant, micros
from holdfast.core.errors import InvalidRequest, refuse_unknown
from holdfast.core.intent import check_id, check_topic, check_type, intent_fields, is_count, refuse_parent
from holdfast.core.location import check_name
from holdfast.flows.builtins import text_of
from holdfast.flows.faults import exceeded, fault
from holdfast.flows.grammar import DURABLE, OPTION_NAMES
from holdfast.flows.handles import Handles
from holdfast.flows.meter import Meter, each_to_json, to_json
from holdfast.flows.operations import FIRST, JOIN, NO_HANDLE, PRIMITIVE, RACE, Handle
from holdfast.flows.requests import (
    CallChild,
    ChildVerb,
    EmitEvent,
    MapChildren,
    ReceiveBatch,
    ReceiveMessage,
    SendMessage,
    SetValue,
    SleepUntil,
    WaitEvent,
    WriteLog,
)

BATCH_LIMIT = 1_000
"""Maximum number of messages in one batch, as in a workflow in Python."""
CALL_COST = 25
"""Number of instructions that a durable call costs, and each child of a map."""
BRANCH_COST = 10
"""Number of instructions that each branch of a join or race costs."""
BYTES_PER_BRANCH = 16
"""What a branch of a join or race adds to the state at most."""
Arguments = dict[str, Any]


class Continuation(Exception):
    """Raised by `continue_as_new` with its arguments. The machine ends the run's generation."""

    def __init__(self, positional: list[Any], by_name: dict[str, Any]) -> None:
        super().__init__("continue_as_new")
        self.positional = positional
        self.by_name = by_name


class DurableCalls:
    """Turns the durable calls of a program into requests."""

    def __init__(self, handles: Handles, meter: Meter) -> None:
        self._handles = handles
        self._meter = meter
        self.now: Micros = 0
        self.line = 0

    def perform(self, name: str, words: tuple[str, ...], values: list[Any]) -> Handle:
        """Perform a call, and return its handle. Raises an error of the program for wrong arguments."""
        self._meter.cost += CALL_COST
        try:
            return _CALLS[name](self, dict(zip(words, values, strict=True)))
        except InvalidRequest as error:
            raise fault("ValueError", str(error)) from error

    def _json(self, value: Any, what: str) -> str:
        return to_json(value, what, self._meter)

    @property
    def _next(self) -> int:
        return self._handles.next_number

    # Children

    def _child(self, verb: ChildVerb, given: Arguments) -> Handle:
        type = check_type(given["type"])
        words = {name[1:]: value for name, value in given.items() if name.startswith("=")}
        payload = given.get("payload")
        if payload is None:
            payload = words
        elif not isinstance(payload, dict):
            raise fault("TypeError", f"the payload of {type!r} is a dict of its parameters by name")
        text = self._json(payload, f"payload of {type!r}")
        options = self._options(given.get("options"))
        return self._handles.ask(
            CallChild(handle=self._next, line=self.line, type=type, payload=text, options=options, is_awaited_kind=verb)
        )

    def _options(self, options: Any) -> dict[str, Any]:
        if options is not None:
            self._json(options, "options")  # no handles, and not too large
        return _checked_options(options)

    def call(self, given: Arguments) -> Handle:
        return self._child("call", given)

    def start(self, given: Arguments) -> Handle:
        return self._child("start", given)

    def map(self, given: Arguments) -> Handle:
        type, items, limit = check_type(given["type"]), given["items"], given.get("limit")
        if not isinstance(items, list):
            raise fault("TypeError", "the items of a map are a list of dicts")
        if len(items) > self._meter.limits.map_items:
            raise exceeded("map_items", self._meter.limits.map_items, f"the map has {len(items):,} children")
        if limit is not None and not is_count(limit):
            raise InvalidRequest(
                f"limit={limit!r}: expected the number of children that run at once, at least 1, or None"
            )
        for place, item in enumerate(items):
            if item is not None and not isinstance(item, dict):
                raise fault("TypeError", f"item {place} of a map is a dict of parameters by name")
        options = self._options(given.get("options"))
        self._meter.cost += CALL_COST * len(items)
        if not items:
            return self._handles.group(JOIN, [])
        given_items = [{} if item is None else item for item in items]
        texts = each_to_json(given_items, f"the payloads of {type!r}", self._meter)
        line, count = self.line, len(texts)
        request = MapChildren(
            handle=self._next, line=line, type=type, payloads=texts, count=count, limit=limit, options=options
        )
        return self._handles.ask(request)

    # Waiting

    def sleep(self, given: Arguments) -> Handle:
        deadline = self.now + micros(given["length"])
        return self._handles.ask(SleepUntil(handle=self._next, line=self.line, deadline=deadline))

    def sleep_until(self, given: Arguments) -> Handle:
        when = given["when"]
        if isinstance(when, str):
            try:
                deadline = instant(datetime.fromisoformat(when))
            except ValueError as error:
                raise InvalidRequest(f"sleep_until({when[:40]!r}): expected seconds since 1970, or ISO text") from error
        else:
            deadline = micros(when, "when")
        return self._handles.ask(SleepUntil(handle=self._next, line=self.line, deadline=deadline, is_fixed=True))

    def receive(self, given: Arguments) -> Handle:
        name = given.get("name")
        names, deadline, with_name = _names(name), self._deadline(given.get("timeout")), not isinstance(name, str)
        return self._handles.ask(
            ReceiveMessage(handle=self._next, line=self.line, names=names, deadline=deadline, with_name=with_name)
        )

    def receive_batch(self, given: Arguments) -> Handle:
        name, count = given["name"], given["count"]
        if type(count) is not int or not 1 <= count <= BATCH_LIMIT:
            raise InvalidRequest(
                f"receive_batch(count={count!r:.40}): expected a whole number from 1 to {BATCH_LIMIT:,}"
            )
        names, deadline, with_name = _names(name), self._deadline(given.get("timeout")), not isinstance(name, str)
        return self._handles.ask(
            ReceiveBatch(
                handle=self._next, line=self.line, names=names, count=count, deadline=deadline, with_name=with_name
            )
        )

    def wait_event(self, given: Arguments) -> Handle:
        deadline = self._deadline(given.get("timeout"))
        topic = check_topic(given["topic"])
        return self._handles.ask(WaitEvent(handle=self._next, line=self.line, topic=topic, deadline=deadline))

    def _deadline(self, timeout: Any) -> Micros | None:
        return None if timeout is None else self.now + max(0, micros(timeout, "timeout"))

    # Groups

    def join(self, given: Arguments) -> Handle:
        return self._group(JOIN, given, fails_fast=bool(given.get("fail_fast", False)))

    def race(self, given: Arguments) -> Handle:
        return self._group(RACE, given)

    def first_settled(self, given: Arguments) -> Handle:
        return self._group(FIRST, given)

    def _group(self, kind: int, given: Arguments, *, fails_fast: bool = False) -> Handle:
        branches = given["branches"]
        if isinstance(branches, (list, dict)):
            self._meter.cost += BRANCH_COST * len(branches)
            self._meter.created += BYTES_PER_BRANCH * len(branches)
        return self._handles.group(kind, branches, fails_fast=fails_fast)

    # Effects

    def _request(self, effect: SendMessage | EmitEvent | SetValue | WriteLog) -> Handle:
        self._handles.requests.append(effect)
        return Handle(NO_HANDLE)

    def send(self, given: Arguments) -> Handle:
        target, name = given["run_id"], check_name(given["name"], "message name")
        payload = self._json(given.get("payload"), f"payload of message {name!r}")
        run_id, child = None, None
        if isinstance(target, Handle):
            operation = self._handles.table.get(target.number)
            if operation is None or operation.kind != PRIMITIVE or not operation.is_child:
                raise fault("TypeError", "a message goes to a run id, or to the handle of call or start")
            child = target.number
        else:
            run_id = check_id(target)
        return self._request(
            SendMessage(handle=NO_HANDLE, line=self.line, run_id=run_id, child=child, name=name, payload=payload)
        )

    def emit(self, given: Arguments) -> Handle:
        topic = check_topic(given["topic"])
        payload = self._json(given.get("payload"), f"payload of event {topic!r}")
        return self._request(EmitEvent(handle=NO_HANDLE, line=self.line, topic=topic, payload=payload))

    def set_value(self, given: Arguments) -> Handle:
        name = check_name(given["name"], "name of a value")
        value = self._json(given["value"], f"value {name!r}")
        return self._request(SetValue(handle=NO_HANDLE, line=self.line, name=name, value=value))

    def log(self, given: Arguments) -> Handle:
        text = text_of(given["text"], self._meter)
        return self._request(WriteLog(handle=NO_HANDLE, line=self.line, text=text))

    def cancel(self, given: Arguments) -> Handle:
        handle = given["handle"]
        if not isinstance(handle, Handle):
            raise fault("TypeError", "cancel takes a handle")
        self._handles.cancel(handle.number)
        return Handle(NO_HANDLE)

    def continue_as_new(self, given: Arguments) -> Handle:
        positional = [value for name, value in given.items() if not name.startswith("=")]
        raise Continuation(positional, {name[1:]: value for name, value in given.items() if name.startswith("=")})


_CALLS: dict[str, Callable[[DurableCalls, Arguments], Handle]] = {name: getattr(DurableCalls, name) for name in DURABLE}


def _names(name: Any) -> tuple[str, ...]:
    """Return the names of the messages to wait for. An empty tuple means any message."""
    if name is None:
        return ()
    names = name if isinstance(name, list) else [name]
    if not names:
        raise InvalidRequest("receive([]) could never return; pass one name, several, or None for any message")
    return tuple(check_name(one, "message name") for one in names)


def _checked_options(options: Any) -> dict[str, Any]:
    """Return the options of a child if they are valid. Raises `InvalidRequest` otherwise."""
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise InvalidRequest(f"options={options!r:.80}: expected a dict, such as {{'priority': 10}}")
    if not options.keys() <= set(OPTION_NAMES):
        refuse_parent(options)
        refuse_unknown("option", options, OPTION_NAMES, of="a child")
    if "name" in options:
        check_name(options["name"], "name of a child")
    intent_fields(options)
    return dict(options)
