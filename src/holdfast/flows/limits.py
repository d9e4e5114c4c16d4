"""The limits of flows: each has a name, which the error of a flow that exceeds it mentions."""

from __future__ import annotations

import msgspec

SOURCE_LIMIT_CHARACTERS = 200_000
"""Maximum length of a program's text."""
NODE_LIMIT = 40_000
"""Maximum number of nodes of the syntax tree of a program."""
NESTING_LIMIT = 90
"""Maximum depth of the syntax tree of a program."""
INSTRUCTION_LIMIT = 60_000
"""Maximum number of instructions of a compiled program. Copies of `finally` blocks count, too."""
BLOCK_LIMIT = 16
"""Maximum number of `try` statements inside each other."""
CALL_ARGUMENT_LIMIT = 200
"""Maximum number of arguments of a call, and of names in one target."""
MISTAKE_LIMIT = 100
"""Maximum number of mistakes in one report."""
DEPTH_LIMIT = 64
"""Maximum nesting of a value, as in every value that holdfast stores."""


class FlowLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one run of a flow. The defaults are for programs of strangers."""

    instructions_per_slice: int = 5_000
    """Number of instructions that the machine executes without a pause. Others get the event loop in between."""
    instructions_per_turn: int = 500_000
    """Number of instructions after which a turn is checkpointed. The flow continues in its next turn."""
    requests_per_checkpoint: int = 200
    """Number of durable calls that one checkpoint carries out. The others follow in the next ones, before the program
    continues. Each child of a `map` counts, and every 4 KiB of a payload."""
    max_instructions: int = 100_000_000
    """Number of instructions of a whole run. More of them fail the run."""
    state_bytes: int = 1024 * 1024
    """Size of the state as JSON."""
    state_parts: int = 10_000
    """Number of lists, dicts, handles and calls in the state."""
    value_bytes: int = 1024 * 1024
    """Size of one value as JSON: a payload, a result, a message."""
    string_characters: int = 1_000_000
    """Length of a string."""
    collection_items: int = 30_000
    """Number of items of a list or dict that the program builds or passes to a builtin."""
    value_nodes: int = 20_000
    """Number of parts of a value that is compared, sent or turned into text."""
    integer_bits: int = 14_000
    """Size of an integer. It is below the number of digits that Python parses."""
    call_depth: int = 100
    """Number of helper functions that have called each other and not yet returned."""
    open_handles: int = 3_000
    """Number of operations that are open at once."""
    branches: int = 2_000
    """Number of branches of one `join`, `race` or `first_settled`."""
    paths: int = 1_000
    """Number of async helpers that run side by side."""
    map_items: int = 5_000
    """Number of children of one `map`."""


DEFAULT_FLOW_LIMITS = FlowLimits()
