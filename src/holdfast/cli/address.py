"""Addresses to listen on, as options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.core.errors import InvalidRequest
from holdfast.telemetry.endpoint import Address

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]  # generic only for type checkers of newer clicks
else:
    _ParamType = click.ParamType


class AddressType(_ParamType):
    """Where to listen."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        if isinstance(value, Address):
            return value
        try:
            return Address.parsed(value)
        except InvalidRequest as error:
            self.fail(str(error), param, ctx)


ADDRESS = AddressType()
