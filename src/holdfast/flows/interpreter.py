"""The interpreter: the loop that executes instructions.

The most frequent instructions stand in the loop itself, which makes them several times faster. The others are functions
in `handlers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.flows.cursors import END, SEQUENCE
from holdfast.flows.durable import Continuation
from holdfast.flows.faults import CANCELLED, ErrorValue, FlowFault, fault
from holdfast.flows.frames import MAIN_PATH, UNSET_SLOT, Frame, Path
from holdfast.flows.handlers import HANDLERS
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
from holdfast.flows.operators import BINARY_FUNCTIONS, SMALL, compare, index

if TYPE_CHECKING:
    from holdfast.flows.machine import Machine

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
    if path.number == MAIN_PATH and error.type != CANCELLED:
        machine.fail(error)
    elif path.number == MAIN_PATH:
        machine.fail(ErrorValue("Error", "the flow was cancelled"))
    else:
        machine.handles.end_path(path, error=error)


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
