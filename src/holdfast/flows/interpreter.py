"""The interpreter: the loop that executes instructions.

The most frequent instructions stand in the loop itself, which makes them several times faster. Each of the others has a
handler: a function with its name, which takes its operands from the stack of the frame and returns True if another
frame or path continues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.flows import instructions as ops
from holdfast.flows.builtins import BUILTIN_FUNCTIONS, call_method, check_method, formatted, text_of
from holdfast.flows.cursors import END, SEQUENCE, cursor_of, lazy
from holdfast.flows.durable import Continuation
from holdfast.flows.faults import CANCELLED, ErrorValue, FlowFault, fault
from holdfast.flows.instructions import (
    BINARY,
    COMPARE,
    FOR_NEXT,
    IN_PLACE,
    INDEX,
    JUMP,
    JUMP_IF_FALSE,
    JUMP_IF_TRUE,
    LOAD_CONST,
    LOAD_SLOT,
    POP,
    STORE_SLOT,
)
from holdfast.flows.meter import type_name, width_of
from holdfast.flows.operations import DONE, MAIN_PATH, NO_HANDLE, OPEN, UNSET_SLOT, Frame, Handle, Path, copy_of
from holdfast.flows.operators import (
    BINARY_FUNCTIONS,
    SMALL,
    UNARY,
    change_in_place,
    compare,
    delete_index,
    index,
    set_key,
    store_index,
    take_slice,
)

if TYPE_CHECKING:
    from holdfast.flows.machine import Machine

Handler = Callable[["Machine", Path, Frame, Any, Any], bool | None]

ERROR_COST = 20
"""Number of instructions that an error costs."""
PROGRAM_ERRORS = (
    FlowFault,
    TypeError,
    ValueError,
    KeyError,
    IndexError,
    ZeroDivisionError,
    OverflowError,
    AttributeError,
)
"""Errors of operations on values. They are errors of the program, which can catch them."""


def execute(machine: Machine, path: Path, left: int) -> int:
    """Execute a path until it waits, ends, or has used up `left` instructions. Return how many are left."""
    if path.error is not None:
        error, path.error = path.error, None
        _unwind(machine, path, error)
    while path.frames and left > 0 and path.wait < 0:
        frame = path.frames[-1]
        try:
            left = _step(machine, path, frame, left)
        except Continuation as continuation:
            try:
                machine.continue_as_new(continuation)
            except PROGRAM_ERRORS as error:
                _unwind(machine, path, _error_of(error))
            else:
                path.frames.clear()
        except PROGRAM_ERRORS as error:
            value = _error_of(error)
            left = machine.left - ERROR_COST - machine.meter.cost - (len(value.message) >> 6)
            machine.meter.cost = 0
            _unwind(machine, path, value)
    return left


def _error_of(error: Exception) -> ErrorValue:
    if isinstance(error, FlowFault):
        return error.error
    return ErrorValue(type(error).__name__, str(error))


def _unwind(machine: Machine, path: Path, error: ErrorValue) -> None:
    """Go to the handler of an error, or end the path."""
    frames = path.frames
    while frames:
        frame = frames[-1]
        if not error.is_raised_again:
            error.places.append(machine.place(frame))
        error.is_raised_again = False
        if frame.pc:
            handler = machine.program.functions[frame.function].handlers[frame.pc - 1]
            if handler >= 0:
                frame.pc = handler
                frame.stack[:] = [error]
                return
        frames.pop()
    if path.number != MAIN_PATH:
        machine.handles.end_path(path, error=error)
    else:
        machine.fail(ErrorValue("Error", "the flow was cancelled") if error.type == CANCELLED else error)


def _step(machine: Machine, path: Path, frame: Frame, left: int) -> int:  # noqa: C901, PLR0912, PLR0915 - one loop: see above
    code = machine.program.linked[frame.function]
    slots, stack, pc = frame.slots, frame.stack, frame.pc
    meter = machine.meter
    push, pop = stack.append, stack.pop
    try:
        while left > 0:
            op, a, b = code[pc]
            pc += 1
            left -= 1
            if op == LOAD_SLOT:
                value = slots[a]
                if value is UNSET_SLOT:
                    raise _unbound(machine, frame, a)
                push(value)
            elif op == LOAD_CONST:
                push(a)
            elif op == STORE_SLOT:
                slots[a] = pop()
            elif op == BINARY or op == IN_PLACE:  # noqa: PLR1714, SIM109 - a set costs more here
                right = pop()
                value = stack[-1]
                if (
                    type(value) is int
                    and type(right) is int
                    and a < 3
                    and -SMALL < value < SMALL
                    and -SMALL < right < SMALL
                ):
                    stack[-1] = value + right if a == 0 else value - right if a == 1 else value * right
                elif op == BINARY:
                    stack[-1] = BINARY_FUNCTIONS[a](value, right, meter)
                    left -= meter.cost
                    meter.cost = 0
                else:
                    push(right)
                    frame.pc = pc
                    HANDLERS[op](machine, path, frame, a, b)
                    left -= meter.cost
                    meter.cost = 0
            elif op == COMPARE:
                right = pop()
                value = stack[-1]
                if type(value) is int and type(right) is int and a < 6:
                    stack[-1] = (
                        value == right
                        if a == 0
                        else value < right
                        if a == 2
                        else value > right
                        if a == 4
                        else value <= right
                        if a == 3
                        else value >= right
                        if a == 5
                        else value != right
                    )
                else:
                    stack[-1] = compare(a, value, right, meter)
                    left -= meter.cost
                    meter.cost = 0
            elif op == JUMP_IF_FALSE:
                if not pop():
                    pc = a
            elif op == JUMP:
                pc = a
            elif op == FOR_NEXT:
                cursor: Any = slots[a]
                if cursor.kind == SEQUENCE and cursor.at < len(cursor.source):
                    push(cursor.source[cursor.at])
                    cursor.at += 1
                else:
                    value = cursor.next()
                    if value is END:
                        slots[a] = UNSET_SLOT
                        pc = b
                    else:
                        push(value)
            elif op == INDEX:
                right = pop()
                stack[-1] = index(stack[-1], right)
            elif op == POP:
                pop()
            elif op == JUMP_IF_TRUE:
                if pop():
                    pc = a
            else:
                frame.pc = pc
                is_elsewhere = HANDLERS[op](machine, path, frame, a, b)
                left -= meter.cost
                meter.cost = 0
                pc = frame.pc
                if is_elsewhere:
                    return left
        return left
    finally:
        frame.pc = pc
        machine.left = left


def _unbound(machine: Machine, frame: Frame, slot: int) -> FlowFault:
    name = machine.program.functions[frame.function].slots[slot].lstrip(".")
    return fault("UnboundLocalError", f"the variable {name} has no value yet")


# Handlers


def _take(stack: list[Any], count: int) -> list[Any]:
    if not count:
        return []
    taken = stack[-count:]
    del stack[-count:]
    return taken


def _list_append(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    target = frame.slots[a]
    if len(target) >= machine.limits.collection_items:
        machine.meter.items(len(target) + 1)
    target.append(frame.stack.pop())


def _jump_if_false_or_pop(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    if frame.stack[-1]:
        frame.stack.pop()
    else:
        frame.pc = a


def _jump_if_true_or_pop(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    if frame.stack[-1]:
        frame.pc = a
    else:
        frame.stack.pop()


def _take_slot(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    frame.stack.append(frame.slots[a])
    frame.slots[a] = UNSET_SLOT


def _clear_slot(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    frame.slots[a] = UNSET_SLOT


def _unary(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    frame.stack[-1] = UNARY[a](frame.stack[-1])


def _in_place(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = change_in_place(a, frame.stack[-1], right, machine.meter)


def _build_list(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    machine.meter.cost += a >> 3
    frame.stack.append(_take(frame.stack, a))


def _build_dict(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    machine.meter.cost += a >> 2
    flat = _take(frame.stack, 2 * a)
    built: dict[str, Any] = {}
    for place in range(0, len(flat), 2):
        set_key(built, flat[place], flat[place + 1], machine.meter)
    frame.stack.append(built)


def _dict_set(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    value = frame.stack.pop()
    set_key(frame.slots[a], frame.stack.pop(), value, machine.meter)


def _store_index(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    value, container, key = _take(frame.stack, 3)
    store_index(container, key, value, machine.meter)


def _delete_index(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    container, key = _take(frame.stack, 2)
    machine.meter.cost += len(container) >> 9 if type(container) is list else 0
    delete_index(container, key)


def _slice(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    container, start, stop, step = _take(frame.stack, 4)
    frame.stack.append(take_slice(container, start, stop, step, machine.meter))


def _unpack(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    value = frame.stack.pop()
    if type(value) not in (list, str, dict):
        raise TypeError(f"cannot unpack non-iterable {type_name(value)} object")
    if len(value) > a:
        raise ValueError(f"too many values to unpack (expected {a})")
    if len(value) < a:
        raise ValueError(f"not enough values to unpack (expected {a}, got {len(value)})")
    frame.stack.extend(reversed(list(value)))


def _make_cursor(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    frame.stack[-1] = cursor_of(frame.stack[-1], machine.meter)


def _lazy(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    frame.stack.append(lazy(a, _take(frame.stack, b), machine.meter))


def _call_builtin(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    name, words = a
    values = _take(frame.stack, b)
    function = BUILTIN_FUNCTIONS.get(name)
    if function is None:
        frame.stack.append(machine.draw(name))
        return
    count = b - len(words)
    by_name = dict(zip(words, values[count:], strict=True)) if words else {}
    frame.stack.append(function(values[:count], by_name, machine.meter))


def _call_method(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    name, words = a
    values = _take(frame.stack, b)
    count = b - len(words)
    by_name = dict(zip(words, values[count:], strict=True)) if words else {}
    frame.stack[-1] = call_method(frame.stack[-1], name, values[:count], by_name, machine.meter)


def _find_method(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    check_method(frame.stack[-1], a)


def _call_helper(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> bool:
    machine.call(path, a, _take(frame.stack, b))
    return True


def _spawn(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    frame.stack.append(machine.spawn(a, _take(frame.stack, b)))


def _durable(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    name, words = a
    machine.durable.line = machine.place(frame)[1]
    frame.stack.append(machine.durable.perform(name, words, _take(frame.stack, b)))


def _format(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    conversion, specification = a
    frame.stack[-1] = formatted(frame.stack[-1], conversion, specification, machine.meter)


def _build_string(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    parts = _take(frame.stack, a)
    machine.meter.characters(sum(map(len, parts)), width_of(*parts))
    frame.stack.append("".join(parts))


def _raise_error(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    code, message = _take(frame.stack, 2)
    code, message = text_of(code, machine.meter), text_of(message, machine.meter)
    raise FlowFault(ErrorValue("Error", message or code, {"code": code}))


def _raise_slot(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    error = frame.slots[a]
    frame.slots[a] = UNSET_SLOT
    error.is_raised_again = True
    raise FlowFault(error)


def _match_error(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    frame.stack.append(frame.slots[a].matches(b))


def _bind_error(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    frame.stack.append(frame.slots[a].as_dict())


def _assert_failed(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> None:
    raise fault("AssertionError", text_of(frame.stack.pop(), machine.meter))


def _await(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> bool | None:
    handle = frame.stack.pop()
    if type(handle) is not Handle:
        raise TypeError(f"object {type_name(handle)} can't be used in 'await' expression")
    if handle.number == NO_HANDLE:
        frame.stack.append(None)
        return None
    operation = machine.handles.table[handle.number]
    if operation.state == OPEN:
        operation.paths.append(path.number)
        path.wait = handle.number
        return True
    if operation.state == DONE:
        frame.stack.append(operation.value)
        return None
    assert operation.error is not None
    machine.handles.raised.add(operation, machine.handles.table)
    raise FlowFault(copy_of(operation.error))


def _return(machine: Machine, path: Path, frame: Frame, a: Any, b: Any) -> bool:
    value = frame.stack[-1]
    if len(path.frames) > 1:
        path.frames.pop()
        path.frames[-1].stack.append(value)
    else:
        machine.finish(path, value)
        path.frames.pop()
    return True


HANDLERS: dict[int, Handler] = {
    number: globals()[f"_{name.lower()}"] for name, number in ops.OPCODES.items() if f"_{name.lower()}" in globals()
}
"""The handler of each instruction that is not in the loop, and of `IN_PLACE` for what the loop leaves to it."""
