"""The meaning of a Redis URL, and the protection of its password."""

from __future__ import annotations

import ssl

import pytest

from holdfast.core.errors import InvalidRequest
from holdfast.stores.redis.address import RedisAddress, TlsOptions
from tests.rows import each_row

PASSWORD = "tr0ub4dor"  # noqa: S105 - not a real password


def test_a_plain_url_has_defaults() -> None:
    address = RedisAddress.of("redis://cache.example")

    assert (address.host, address.port, address.database, address.namespace) == ("cache.example", 6379, 0, "holdfast")
    assert (address.user, address.password, address.tls, address.may_be_volatile) == ("", "", None, False)
    assert address.shown == "redis://cache.example:6379/0"
    assert address.prefix == "{holdfast}:"
    assert RedisAddress.of("redis://").host == "localhost"


def test_all_parts_of_a_url_are_read_and_the_password_is_never_shown() -> None:
    address = RedisAddress.of(f"redis://ann:{PASSWORD}%40%2F@[::1]:7000/3?namespace=jobs&allow_volatile=1")

    assert (address.user, address.password) == ("ann", f"{PASSWORD}@/")
    assert (address.host, address.port, address.database) == ("::1", 7000, 3)
    assert (address.namespace, address.may_be_volatile) == ("jobs", True)
    assert address.shown == "redis://ann:***@[::1]:7000/3?namespace=jobs"
    assert PASSWORD not in repr(address)
    assert address.scrubbed(f"refused {address.password} again") == "refused *** again"


def test_a_password_needs_no_user() -> None:
    address = RedisAddress.of(f"redis://:{PASSWORD}@db")

    assert (address.user, address.password, address.shown) == ("", PASSWORD, "redis://:***@db:6379/0")


def test_options_of_tls() -> None:
    assert RedisAddress.of("rediss://db").tls == TlsOptions()
    given = "ssl_ca_certs=/ca&ssl_certfile=/c&ssl_keyfile=/k&ssl_cert_reqs=optional&ssl_check_hostname=false"

    assert RedisAddress.of(f"rediss://db?{given}").tls == TlsOptions(
        ca_certs="/ca", certfile="/c", keyfile="/k", cert_reqs=ssl.CERT_OPTIONAL, check_hostname=False
    )


def test_without_a_check_of_certificates_there_is_no_check_of_names() -> None:
    context = TlsOptions(cert_reqs=ssl.CERT_NONE).context()

    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


def test_the_case_of_the_scheme_does_not_matter() -> None:
    address = RedisAddress.of("Rediss://db")

    assert address.shown == "rediss://db:6379/0"
    assert address.tls is not None


@each_row(
    ("url", "told"),
    [
        ("http://db", "is not a Redis URL"),
        ("redis:db", "is not a Redis URL"),
        ("redis://db/shop", "the database must be a number, not 'shop'"),
        ("redis:///run/redis.sock", "Unix sockets are not supported; write redis://localhost"),
        ("redis://db1:6379,db2:6379/0", "name one host; Sentinel and Cluster are not supported yet"),
        ("redis://db:0", "from 1 to 65535"),
        ("redis://db:port", "from 1 to 65535"),
        ("redis://db:70000", "from 1 to 65535"),
        ("redis://ann@db", "has a user but no password"),
        ("redis://db?namespace=", "namespace='' is not allowed"),
        ("redis://db?namespace=a{b}", "namespace='a{b}' is not allowed"),
        ("redis://db?namespce=a", "unknown option namespce of a Redis URL; did you mean namespace?"),
        ("redis://db?ssl_ca_certs=/ca", "ssl_ca_certs needs an encrypted connection; write rediss://"),
        ("rediss://db?ssl_cacerts=/ca", "did you mean ssl_ca_certs?"),
        ("rediss://db?ssl_cert_reqs=maybe", "write required, optional or none"),
        ("rediss://db?ssl_keyfile=/k", "ssl_keyfile needs ssl_certfile"),
        ("redis://db?allow_volatile=perhaps", "write allow_volatile=1 or allow_volatile=0"),
        ("redis://db?namespace=a&namespace=b", "has an option twice"),
        ("redis://db#x", "write %23"),
        ("redis://[::1", "is not a Redis URL"),
        (f"redis://ann:{PASSWORD}@x@db", "one @ too many"),
    ],
)
def test_what_is_wrong_with_a_url_is_named_without_its_password(url: str, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        RedisAddress.of(url)

    assert told in str(caught.value)
    assert PASSWORD not in str(caught.value)
