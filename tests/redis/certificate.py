"""A certificate for servers on this machine, which only those trust who are given its file.

The program `openssl` makes it, because Python has no way to.
"""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Self

from holdfast.core.errors import InvalidRequest

_NAMES = "subjectAltName=IP:127.0.0.1,DNS:localhost"


class Certificate:
    """A self-signed certificate for `localhost`, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "certificate.pem"
        """For clients that trust it."""
        self.key_file = folder / "key.pem"

    def make(self) -> Self:
        words = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "36500"]
        words += ["-subj", "/CN=holdfast tests", "-addext", _NAMES]
        # Without these uses, newer Pythons do not trust a certificate that signs itself.
        words += ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
        words += ["-out", str(self.file), "-keyout", str(self.key_file)]
        try:
            subprocess.run(["openssl", "req", *words], capture_output=True, check=True)
        except FileNotFoundError:
            raise InvalidRequest("tests of TLS need the program `openssl` on the PATH to make certificates") from None
        return self

    def encryption(self) -> ssl.SSLContext:
        """Return the side of the server, for `RedisProxy(url, encryption=…)`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self.key_file)
        return context
