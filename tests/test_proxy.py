"""The fault proxy in front of an echo server."""

from __future__ import annotations

import gc
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast.testing.patience import GUARD_SECONDS, wait_until
from tests.proxy import FaultProxy
from tests.redis.certificate import Certificate

MOMENT_SECONDS = 0.1
"""Time to wait to see that nothing comes."""


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        try:
            while data := self.request.recv(1 << 16):
                self.request.sendall(data)
        except ConnectionError:
            pass


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        with FaultProxy(*server.server_address) as proxy:
            yield proxy
        server.shutdown()


@pytest.fixture
def connect(proxy: FaultProxy) -> Iterator[Callable[[], socket.socket]]:
    opened: list[socket.socket] = []

    def connect() -> socket.socket:
        opened.append(socket.create_connection((proxy.host, proxy.port), timeout=GUARD_SECONDS))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


Connect = Callable[[], socket.socket]


def test_data_arrives_in_order_both_ways(connect: Connect) -> None:
    client = connect()
    sent = bytes(range(256)) * 4_000

    threading.Thread(target=client.sendall, args=[sent]).start()

    assert _received(client, len(sent)) == sent


def test_an_end_of_stream_is_forwarded(proxy: FaultProxy, connect: Connect) -> None:
    client = connect()
    assert _echoed(client, b"hello") == b"hello"

    client.shutdown(socket.SHUT_WR)

    assert client.recv(1) == b""
    wait_until("the proxy has no connections", lambda: proxy.connections == 0)


def test_a_cut_is_an_error_for_every_client_and_new_connections_are_accepted(
    proxy: FaultProxy, connect: Connect
) -> None:
    clients = [connect(), connect()]
    for client in clients:
        _echoed(client, b"hello")

    assert proxy.cut() == 2

    for client in clients:
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert _echoed(connect(), b"again") == b"again"
    assert proxy.accepted == 3


def test_a_refusing_proxy_accepts_no_connection_until_healed(proxy: FaultProxy, connect: Connect) -> None:
    early = connect()
    _echoed(early, b"hello")

    proxy.refuse()

    with pytest.raises(ConnectionRefusedError):
        connect()
    assert _echoed(early, b"still here") == b"still here"
    proxy.heal()
    assert _echoed(connect(), b"again") == b"again"


def test_a_delay_holds_data_back_for_that_long(proxy: FaultProxy, connect: Connect) -> None:
    client = connect()
    proxy.delay(to_server=0.1, to_client=0.2)
    began = time.monotonic()

    assert _echoed(client, b"hello") == b"hello"

    assert time.monotonic() - began >= 0.3


def test_a_black_hole_accepts_everything_and_delivers_nothing_until_healed(proxy: FaultProxy, connect: Connect) -> None:
    early = connect()
    _echoed(early, b"hello")
    proxy.black_hole()
    late = connect()
    early.sendall(b"early")
    late.sendall(b"late")
    assert _is_silent(early)
    assert _is_silent(late)

    proxy.heal()

    assert _received(early, 5) == b"early"
    assert _received(late, 4) == b"late"


def test_a_black_hole_can_be_cut(proxy: FaultProxy, connect: Connect) -> None:
    client = connect()
    _echoed(client, b"hello")
    proxy.black_hole()
    client.sendall(b"lost")

    proxy.cut()

    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_a_missing_server_is_an_error_for_the_client() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with FaultProxy(*unused.getsockname()) as proxy, pytest.raises(ConnectionResetError):
            _first_byte(proxy)


def test_a_closed_proxy_and_its_connections_are_gone(connect: Connect, proxy: FaultProxy) -> None:
    client = connect()
    _echoed(client, b"hello")

    proxy.close()

    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect()


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return Certificate(tmp_path).make()


def test_a_closed_proxy_leaves_no_connection_that_is_still_negotiating(certificate: Certificate) -> None:
    with _a_server_that_says_goodbye() as address, FaultProxy(*address, encryption=certificate.encryption()) as proxy:
        client = socket.create_connection((proxy.host, proxy.port), timeout=GUARD_SECONDS)
        client.sendall(_START_OF_A_GREETING)
        time.sleep(MOMENT_SECONDS)  # the proxy waits for the rest; nothing outside shows that

    with client, suppress(ConnectionResetError):
        assert client.recv(1) == b""
    gc.collect()  # a socket that is still open warns here


def test_a_closed_proxy_leaves_no_connection_whose_client_does_not_confirm_the_end(certificate: Certificate) -> None:
    trusting = ssl.create_default_context(cafile=certificate.file)
    with _a_server_that_says_goodbye() as address, FaultProxy(*address, encryption=certificate.encryption()) as proxy:
        plain = socket.create_connection((proxy.host, proxy.port), timeout=GUARD_SECONDS)
        client = trusting.wrap_socket(plain, server_hostname=proxy.host)
        assert client.recv(3) == b"bye"
        wait_until("the connection is over", lambda: proxy.connections == 0)

    client.close()
    gc.collect()


def test_a_closed_proxy_leaves_no_connection_that_it_has_just_accepted() -> None:
    with _a_server_that_says_goodbye() as address:
        for _ in range(50):
            clients = []
            with FaultProxy(*address) as proxy:
                clients += [socket.create_connection((proxy.host, proxy.port)) for _ in range(5)]
            for client in clients:
                client.close()
    gc.collect()


_START_OF_A_GREETING = bytes([22, 3, 1])
"""The first bytes of a TLS handshake record."""


@contextmanager
def _a_server_that_says_goodbye() -> Iterator[tuple[str, int]]:
    """Run a server that sends "bye" to each client and closes the connection."""

    class Goodbye(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"bye")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Goodbye) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield ("127.0.0.1", server.server_address[1])
        server.shutdown()


def _first_byte(proxy: FaultProxy) -> bytes:
    with socket.create_connection((proxy.host, proxy.port), timeout=GUARD_SECONDS) as client:
        return client.recv(1)


def _echoed(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return _received(client, len(data))


def _received(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = client.recv(1 << 16)
        assert piece
        data += piece
    return data


def _is_silent(client: socket.socket) -> bool:
    client.settimeout(MOMENT_SECONDS)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(GUARD_SECONDS)
    return False
