"""The failure of a driver: the error that names the call."""

from __future__ import annotations

from holdfast.core.errors import StoreUnavailable


class DriverFailed(StoreUnavailable):
    """Raised when a driver raises, returns what the contract forbids, or loses a batch. Advance the run again."""

    def __init__(self, call: str, problem: str) -> None:
        super().__init__(f"driver.{call}: {problem}; nothing is lost: advance the run again when the driver works")
        self.call = call
        """The method of the driver: `list`, `batch` and so on."""
