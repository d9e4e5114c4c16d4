"""An address to listen on."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_HOST = "127.0.0.1"

_LAST_PORT = 65_535


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    @classmethod
    def parsed(cls, text: str) -> Address:
        """What `9464`, `:9464`, `0.0.0.0:9464` or `[::1]:9464` says."""
        host, _, port = text.rpartition(":")
        if not port.isdecimal() or not port.isascii() or int(port) > _LAST_PORT:
            raise ValueError(f"it is PORT or HOST:PORT, such as 9464 or {DEFAULT_HOST}:9464")
        return cls(host.strip("[]") or DEFAULT_HOST, int(port))

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        import ipaddress  # here, as help on the command line needs none of it

        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def for_process(self, number: int) -> Address:
        """Where the worker process of this number listens, from 1 on: each one port higher; port 0 is any free one."""
        port = self.port + number - 1 if self.port else 0
        if port > _LAST_PORT:
            raise ValueError(f"{self}: there is no port {port} for worker process {number}; choose a lower one")
        return self._replace(port=port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
