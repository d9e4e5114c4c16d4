"""Handlers: one function for each instruction that is not in the interpreter's loop.

A handler takes its operands from the stack of the frame and returns True if another frame or path continues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.flows import instructions as ops
from holdfast.flows.builtins import BUILTIN_FUNCTIONS, formatted, text_of
from holdfast.flows.cursors import cursor_of, lazy
from holdfast.flows.faults import ErrorValue, FlowFault, fault
from holdfast.flows.frames import UNSET_SLOT, Frame, Path
from holdfast.flows.handle import Handle
from holdfast.flows.handles import NO_HANDLE
from holdfast.flows.meter import width_of
from holdfast.flows.methods import call_method, check_method
from holdfast.flows.operations import DONE, OPEN, copy_of
from holdfast.flows.operators import UNARY, change_in_place, delete_index, set_key, store_index, take_slice

if TYPE_CHECKING:
    from holdfast.flows.machine import Machine

Handler = Callable[["Machine", Path, Frame, Any, Any], bool | None]


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
        name = "NoneType" if value is None else type(value).__name__
        raise TypeError(f"cannot unpack non-iterable {name} object")
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
        name = "NoneType" if handle is None else type(handle).__name__
        raise TypeError(f"object {name} can't be used in 'await' expression")
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
    ops.LIST_APPEND: _list_append,
    ops.JUMP_IF_FALSE_OR_POP: _jump_if_false_or_pop,
    ops.JUMP_IF_TRUE_OR_POP: _jump_if_true_or_pop,
    ops.TAKE_SLOT: _take_slot,
    ops.CLEAR_SLOT: _clear_slot,
    ops.UNARY: _unary,
    ops.IN_PLACE: _in_place,
    ops.BUILD_LIST: _build_list,
    ops.BUILD_DICT: _build_dict,
    ops.DICT_SET: _dict_set,
    ops.STORE_INDEX: _store_index,
    ops.DELETE_INDEX: _delete_index,
    ops.SLICE: _slice,
    ops.UNPACK: _unpack,
    ops.MAKE_CURSOR: _make_cursor,
    ops.LAZY: _lazy,
    ops.CALL_BUILTIN: _call_builtin,
    ops.CALL_METHOD: _call_method,
    ops.CALL_HELPER: _call_helper,
    ops.SPAWN: _spawn,
    ops.DURABLE: _durable,
    ops.FORMAT: _format,
    ops.BUILD_STRING: _build_string,
    ops.RAISE_ERROR: _raise_error,
    ops.RAISE_SLOT: _raise_slot,
    ops.MATCH_ERROR: _match_error,
    ops.BIND_ERROR: _bind_error,
    ops.ASSERT_FAILED: _assert_failed,
    ops.AWAIT: _await,
    ops.RETURN: _return,
    ops.FIND_METHOD: _find_method,
}
"""The handler of each instruction."""
