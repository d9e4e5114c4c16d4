"""An alarm: how loudly to tell that the store cannot be reached, and that it can be again."""

from __future__ import annotations

import logging

from holdfast.core.errors import StoreUnavailable


def loudness(error: BaseException) -> int:
    """The level of a log line about this error. A store that notes it by itself is not to be repeated."""
    return logging.DEBUG if isinstance(error, StoreUnavailable) and error.is_noted else logging.WARNING
