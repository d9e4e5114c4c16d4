"""An address to listen on."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_HOST = "127.0.0.1"

_LAST_PORT = 65_535


class Address(NamedTuple):
    """A host and a port to listen on."""

    host: str
    port: int

    @classmethod
    def parsed(cls, text: str) -> Address:
        """Parse `9464`, `:9464`, `0.0.0.0:9464` or `[::1]:9464`."""
        host, _, port = text.rpartition(":")
        if not port.isdecimal() or not port.isascii() or int(port) > _LAST_PORT:
            raise ValueError(f"expected PORT or HOST:PORT, such as 9464 or {DEFAULT_HOST}:9464")
        return cls(host.strip("[]") or DEFAULT_HOST, int(port))

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the address."""
        import ipaddress  # imported here, because `holdfast --help` does not need it

        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def for_process(self, number: int) -> Address:
        """Return the address of a worker process, numbered from 1. Each process listens one port higher.

        Port 0 stays 0: the system chooses a free port.
        """
        port = self.port + number - 1 if self.port else 0
        if port > _LAST_PORT:
            raise ValueError(f"{self}: there is no port {port} for worker process {number}; choose a lower one")
        return self._replace(port=port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
