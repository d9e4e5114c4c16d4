"""The endpoint: its answers, its access control, and its reaction to invalid requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from holdfast import InvalidRequest
from holdfast.config.secret import Address
from holdfast.telemetry import endpoint
from holdfast.telemetry.endpoint import Endpoint
from holdfast.testing.patience import GUARD_SECONDS

HERE = Address("127.0.0.1", 0)
TOKEN = "let-me-in"  # noqa: S105 - of a test


def an_endpoint(*, is_healthy: Callable[[], bool] = lambda: True, token: str | None = None) -> Endpoint:
    async def text() -> str:
        return "holdfast_runs 1\n"

    return Endpoint(text, "text/x; charset=utf-8", is_healthy, token)


async def asked(address: Address, request: bytes) -> str:
    """Return the bytes received until the other side closes."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(request)
    await writer.drain()
    try:
        return (await reader.read()).decode()
    finally:
        writer.close()
        await writer.wait_closed()


async def got(address: Address, path: str, *headers: str, method: str = "GET") -> str:
    return await asked(address, "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode())


async def test_metrics_are_served() -> None:
    async with an_endpoint().serving(HERE) as address:
        answer = await got(address, "/metrics?name=x")

    head, _, body = answer.partition("\r\n\r\n")
    assert head.splitlines() == [
        "HTTP/1.1 200 OK",
        "Content-Type: text/x; charset=utf-8",
        "Content-Length: 16",
        "Connection: close",
    ]
    assert body == "holdfast_runs 1\n"


@pytest.mark.parametrize(("is_healthy", "status"), [(True, "200 OK"), (False, "503 Service Unavailable")])
async def test_health_needs_no_token(is_healthy: bool, status: str) -> None:
    async with an_endpoint(is_healthy=lambda: is_healthy, token=TOKEN).serving(HERE) as address:
        assert (await got(address, "/healthz")).startswith(f"HTTP/1.1 {status}\r\n")


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Authorization: Bearer {TOKEN}", "200"),
        (f"authorization:  Bearer {TOKEN} ", "200"),
        ("Authorization: Bearer wrong", "401"),
        ("Authorization: Bearer \xe9", "401"),
        ("X: y", "401"),
    ],
)
async def test_metrics_require_the_token(header: str, status: str) -> None:
    async with an_endpoint(token=TOKEN).serving(HERE) as address:
        assert (await got(address, "/metrics", header)).split(" ")[1] == status


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET / HTTP/1.1", "404"),
        ("POST /metrics HTTP/1.1", "405"),
        ("nonsense", "404"),
        ("", "404"),
        ("GET  /metrics  HTTP/1.1", "404"),
    ],
)
async def test_any_other_request_is_refused(request_line: str, status: str) -> None:
    async with an_endpoint().serving(HERE) as address:
        assert (await asked(address, f"{request_line}\r\nx\r\n\r\n".encode())).split(" ")[1] == status


async def test_a_head_request_gets_only_the_head() -> None:
    async with an_endpoint().serving(HERE) as address:
        answer = await got(address, "/metrics", method="HEAD")

    assert "Content-Length: 16" in answer
    assert answer.endswith("\r\n\r\n")


async def test_a_client_that_sends_too_much_or_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_SECONDS", 0.05)
    async with an_endpoint().serving(HERE) as address:
        assert await asked(address, b"GET /metrics HTTP/1.1\r\n") == ""
        assert await asked(address, b"x" * 100_000 + b"\r\n\r\n") == ""
        assert (await got(address, "/healthz")).startswith("HTTP/1.1 200")


async def test_a_silent_client_is_disconnected_when_the_endpoint_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_SECONDS", 2 * GUARD_SECONDS)
    async with asyncio.timeout(GUARD_SECONDS):
        async with an_endpoint().serving(HERE) as address:
            reader, writer = await asyncio.open_connection(address.host, address.port)
            assert (await got(address, "/healthz")).startswith("HTTP/1.1 200")  # so the first was accepted, too

        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_metrics_that_cannot_be_computed_are_an_error_of_that_request_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def text() -> str:
        raise RuntimeError("no numbers")

    async with Endpoint(text, "text/plain", lambda: True).serving(HERE) as address:
        assert (await got(address, "/metrics")).startswith("HTTP/1.1 500")
        assert (await got(address, "/healthz")).startswith("HTTP/1.1 200")
    assert "collecting the metrics failed" in caplog.text


async def test_other_machines_are_not_served_without_a_token() -> None:
    with pytest.raises(InvalidRequest, match="HOLDFAST_METRICS_TOKEN"):
        async with an_endpoint().serving(Address("0.0.0.0", 0)):  # noqa: S104 - that is refused
            pass


async def test_a_port_that_is_taken_is_named() -> None:
    async with an_endpoint().serving(HERE) as address:
        with pytest.raises(InvalidRequest, match=f"cannot listen on 127.0.0.1:{address.port}: .* choose another port"):
            async with an_endpoint().serving(address):
                pass


@pytest.mark.parametrize(
    ("text", "address", "is_local"),
    [
        ("9464", ("127.0.0.1", 9464), True),
        (":9464", ("127.0.0.1", 9464), True),
        ("localhost:1", ("localhost", 1), True),
        ("[::1]:9464", ("::1", 9464), True),
        ("0.0.0.0:9464", ("0.0.0.0", 9464), False),  # noqa: S104 - as above
        ("metrics.example.com:80", ("metrics.example.com", 80), False),
    ],
)
def test_an_address_may_be_short(text: str, address: tuple[str, int], is_local: bool) -> None:
    found = Address.parsed(text)

    assert found == address
    assert found.is_local == is_local
    assert Address.parsed(str(found)) == found


@pytest.mark.parametrize("text", ["", "x", "localhost", "1:", "70000", "1:-1", "1:²"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        Address.parsed(text)


def test_each_process_has_its_own_port() -> None:
    assert Address("h", 9464).for_process(3) == ("h", 9466)
    assert Address("h", 0).for_process(3) == ("h", 0)
    with pytest.raises(ValueError, match="no port 65536"):
        Address("h", 65_535).for_process(2)
