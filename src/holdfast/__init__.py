"""holdfast: durable workflows for Python. A run continues after a crash, a deploy or a power cut.

    from holdfast import Context, Holdfast

    hf = Holdfast()

    @hf.workflow
    async def checkout(ctx: Context, order: str) -> str: ...

Application code imports from here, tests from `holdfast.testing`. Everything else is inside.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast.api import *  # noqa: F403 - the one list of public names is there
    from holdfast.api import __all__ as __all__
else:

    def __getattr__(name: str) -> Any:
        """Load the public names when the first of them is used: `holdfast --help` needs none of them."""
        api = import_module("holdfast.api")
        if name == "__all__" or name in api.__all__:
            return getattr(api, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted([*globals(), *import_module("holdfast.api").__all__])
