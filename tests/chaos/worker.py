"""A worker process of the storm: `python -m tests.chaos.worker URL [--lease …] [--grace …] [--concurrency …]`."""

from __future__ import annotations

from tests.chaos.load import workflows
from tests.process.app import main

if __name__ == "__main__":
    main(workflows)
