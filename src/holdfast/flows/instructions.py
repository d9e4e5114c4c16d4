"""Instruction set 1: the operations of the machine.

An instruction is three integers: the operation and two arguments. A released instruction set never changes, because the
snapshots of living runs have program counters into it.
"""

from __future__ import annotations

INSTRUCTION_SET = 1

LOAD_SLOT = 0  # a: slot
LOAD_CONST = 1  # a: constant
STORE_SLOT = 2  # a: slot
BINARY = 3  # a: number of the operator
COMPARE = 4  # a: number of the operator
JUMP = 5  # a: target
JUMP_IF_FALSE = 6  # a: target; takes the value
JUMP_IF_TRUE = 7  # a: target; takes the value
FOR_NEXT = 8  # a: slot of the cursor, b: target when it is exhausted
INDEX = 9
POP = 10
LIST_APPEND = 11  # a: slot of the list

JUMP_IF_FALSE_OR_POP = 12  # a: target; keeps the value if it jumps
JUMP_IF_TRUE_OR_POP = 13  # a: target; keeps the value if it jumps
TAKE_SLOT = 14  # a: slot; loads and clears it
CLEAR_SLOT = 15  # a: slot
UNARY = 16  # a: number of the operator
IN_PLACE = 17  # a: number of the operator
BUILD_LIST = 18  # a: count
BUILD_DICT = 19  # a: count of pairs
DICT_SET = 20  # a: slot of the dict; takes key and value
STORE_INDEX = 21  # takes container, key, value
DELETE_INDEX = 22  # takes container, key
SLICE = 23  # takes container, start, stop, step
UNPACK = 24  # a: count
MAKE_CURSOR = 25  # takes an iterable
LAZY = 26  # a: number of the lazy iterable, b: count of arguments
CALL_BUILTIN = 27  # a: constant [name, keyword names], b: count of arguments
CALL_METHOD = 28  # a: constant name, b: count of arguments
CALL_HELPER = 29  # a: number of the function, b: count of arguments
SPAWN = 30  # a: number of the function, b: count of arguments
DURABLE = 31  # a: constant [name, argument names], b: count of arguments
FORMAT = 32  # a: constant [conversion, specification]
BUILD_STRING = 33  # a: count
RAISE_ERROR = 34  # takes code and message
RAISE_SLOT = 35  # a: slot of the error
MATCH_ERROR = 36  # a: slot of the error, b: constant names; pushes a bool
BIND_ERROR = 37  # a: slot of the error; pushes its dict
ASSERT_FAILED = 38  # takes the message
AWAIT = 39
RETURN = 40
FIND_METHOD = 41  # a: constant name; fails if the value on the stack has no such method

OPCODES = {name: number for name, number in list(globals().items()) if name.isupper() and type(number) is int}
OPCODES.pop("INSTRUCTION_SET")
"""The number of each operation by name."""

BINARY_OPERATORS = ("+", "-", "*", "/", "//", "%", "**")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=", "in", "not in", "is", "is not")
UNARY_OPERATORS = ("-", "+", "not")
LAZY_ITERABLES = ("range", "enumerate", "zip", "reversed", "keys", "values", "items")
JUMPS = frozenset((JUMP, JUMP_IF_FALSE, JUMP_IF_TRUE, JUMP_IF_FALSE_OR_POP, JUMP_IF_TRUE_OR_POP))
