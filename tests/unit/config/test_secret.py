"""Secrets: no password appears in a shown address, however the address is written."""

from __future__ import annotations

import pytest

from holdfast.config.secret import excerpt, scrubbed
from tests.rows import each_row


@each_row(
    ("address", "shown"),
    [
        ("postgresql://ann:hush@db/shop", "postgresql://ann:***@db/shop"),
        ("postgresql://db/shop?user=ann&password=hush", "postgresql://db/shop?user=ann&password=***"),
        (
            "postgresql://db/shop?sslpassword=hush&sslmode=require",
            "postgresql://db/shop?sslpassword=***&sslmode=require",
        ),
        ("host=db password=hush user=ann", "host=db password=*** user=ann"),
        ("password = hush host=db", "password = *** host=db"),
        ("host=db password='hu sh' user=ann", "host=db password=*** user=ann"),
        (r"host=db password='hu\'sh hush' user=ann", "host=db password=*** user=ann"),
        ("host=db PASSWORD=hush", "host=db PASSWORD=***"),
        ("host=db sslpassword=hush", "host=db sslpassword=***"),
        ("host=db password='hush", "host=db password=***"),
        (r"password=hu\ hush\'hush host=db", "password=*** host=db"),
        ("password=hu\\\nhush host=db", "password=*** host=db"),
        ("password=hush\\", "password=***"),
        ("password='hu'hush host=db", "password=*** host=db"),
        ("password='hu\nhush' host=db", "password=*** host=db"),
        ("postgresql://db/shop?passwor%64=hush&user=ann", "postgresql://db/shop?passwor%64=***&user=ann"),
        ("postgresql://db/shop?%50ASSWORD=hush", "postgresql://db/shop?%50ASSWORD=***"),
        ("postgresql://db/shop?password=hu#hush&user=ann", "postgresql://db/shop?password=***&user=ann"),
        ("postgresql://db:5432/shop?password=hu@hush", "postgresql://db:***"),
        ("postgresql://ann:hush?token=hush@db/shop", "postgresql://ann:***"),
        ("postgresql://ann:hu\nsh@db/shop", "postgresql://ann:***@db/shop"),
        ("host=db\npassword=hush\tuser=ann", "host=db\npassword=***\tuser=ann"),
    ],
)
def test_no_password_is_shown(address: str, shown: str) -> None:
    assert scrubbed(address) == shown
    assert "hush" not in excerpt(address)


@pytest.mark.parametrize("address", ["sqlite:///holdfast.db", "postgresql://ann@db/shop?schema=x", "host=db user=ann"])
def test_an_address_without_a_password_is_shown_unchanged(address: str) -> None:
    assert scrubbed(address) == address
