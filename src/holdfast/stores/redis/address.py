"""The address of a Redis store, parsed from its URL. It never shows the password."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from holdfast.core.errors import InvalidRequest, refuse_unknown

DEFAULT_HOST = "localhost"
DEFAULT_PORT = 6379
DEFAULT_NAMESPACE = "holdfast"

_TLS_SCHEME = "rediss"
_SCHEMES = ("redis", _TLS_SCHEME)
_NAMESPACE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_OWN_OPTIONS = ("namespace", "allow_volatile")
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_SWITCH = {"1": True, "0": False, "true": True, "false": False, "on": True, "off": False}
_CERT_REQS = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}
_HIDDEN = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Options of an encrypted connection. Without any, the certificate of the server must fit its host name."""

    ca_certs: str = ""
    certfile: str = ""
    keyfile: str = ""
    cert_reqs: ssl.VerifyMode = ssl.CERT_REQUIRED
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Read the certificates.

        Raises:
            InvalidRequest: A file cannot be read.

        """
        try:
            context = ssl.create_default_context(cafile=self.ca_certs or None)
            # In this order: a context that checks host names refuses to check no certificates.
            context.check_hostname = self.check_hostname and self.cert_reqs is not ssl.CERT_NONE
            context.verify_mode = self.cert_reqs
            if self.certfile:
                context.load_cert_chain(self.certfile, self.keyfile or None)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(name for name in (self.ca_certs, self.certfile, self.keyfile) if name)
            raise InvalidRequest(f"the TLS files {files} cannot be used: {error}") from error
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """The location of a Redis server, and of a namespace on it. `shown` is for people and has no password."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    user: str = ""
    password: str = field(default="", repr=False)
    database: int = 0
    namespace: str = DEFAULT_NAMESPACE
    may_be_volatile: bool = False
    tls: TlsOptions | None = None
    shown: str

    @classmethod
    def of(cls, url: str) -> Self:
        """Parse `redis://user:password@host:port/database?option=value`, or `rediss://…` for TLS."""
        parts = _split(url)
        options = _options(url, parts)
        namespace = _namespace(options.get("namespace", DEFAULT_NAMESPACE))
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        if user and not password:
            raise InvalidRequest(
                f"{_guarded(url)!r} has a user but no password; write {parts.scheme}://user:password@…"
            )
        host, port = parts.hostname or DEFAULT_HOST, _port(url, parts)
        database = _database(url, parts.path)
        account = user + (f":{_HIDDEN}" if password else "")
        place = f"{account}{'@' if account else ''}{f'[{host}]' if ':' in host else host}:{port}/{database}"
        shown = f"{parts.scheme}://{place}" + ("" if namespace == DEFAULT_NAMESPACE else f"?namespace={namespace}")
        return cls(
            host=host,
            port=port,
            user=user,
            password=password,
            database=database,
            namespace=namespace,
            may_be_volatile=_switch("allow_volatile", options.get("allow_volatile", "0")),
            tls=_tls(options) if parts.scheme == _TLS_SCHEME else None,
            shown=shown,
        )

    @property
    def prefix(self) -> str:
        """The beginning of all keys. The braces keep all of them on one node of a cluster."""
        return f"{{{self.namespace}}}:"

    def scrubbed(self, text: str) -> str:
        """Return a text of the server or the system with the password hidden."""
        if not self.password:
            return text
        # Whole words only: a one-letter password would otherwise remove that letter from every word.
        return re.sub(rf"(?<!\w){re.escape(self.password)}(?!\w)", _HIDDEN, text)


def _split(url: str) -> SplitResult:
    scheme, mark, rest = url.partition("://")
    if not mark or scheme.lower() not in _SCHEMES:
        raise InvalidRequest(f"{_guarded(url)!r} is not a Redis URL; write redis://user:password@host:port/database")
    if rest.partition("?")[0].count("@") > 1:
        raise InvalidRequest(
            f"{_guarded(url)!r} has one @ too many; in user and password write %40 for @, %2F for / and %3A for :"
        )
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidRequest(f"{_guarded(url)!r} is not a Redis URL: {error}") from None
    if "," in parts.netloc.rpartition("@")[2]:
        raise InvalidRequest(f"{_guarded(url)!r}: name one host; Sentinel and Cluster are not supported yet")
    if parts.fragment:
        raise InvalidRequest(f"{_guarded(url)!r} contains a #; in user, password and values write %23")
    return parts


def _options(url: str, parts: SplitResult) -> dict[str, str]:
    given = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(given)
    known = (*_OWN_OPTIONS, *(_TLS_OPTIONS if parts.scheme == _TLS_SCHEME else ()))
    if parts.scheme != _TLS_SCHEME and (tls := [name for name in options if name in _TLS_OPTIONS]):
        raise InvalidRequest(f"{_guarded(url)!r}: {', '.join(tls)} needs an encrypted connection; write rediss://…")
    if not set(options) <= set(known):
        refuse_unknown("option", options, known, of="a Redis URL")
    if len(options) < len(given):
        raise InvalidRequest(f"{_guarded(url)!r} has an option twice")
    return options


def _port(url: str, parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise InvalidRequest(f"{_guarded(url)!r}: the port must be a number from 1 to 65535")
    return DEFAULT_PORT if port is None else port


def _database(url: str, path: str) -> int:
    text = path.strip("/")
    if "/" in text or text.endswith(".sock"):
        raise InvalidRequest(
            f"{_guarded(url)!r}: Unix sockets are not supported; write redis://localhost, with the port of the server"
        )
    if text and not (text.isascii() and text.isdecimal()):
        raise InvalidRequest(
            f"{_guarded(url)!r}: the database must be a number, not {text!r}; most servers have 0 to 15"
        )
    return int(text or 0)


def _namespace(name: str) -> str:
    if not _NAMESPACE.fullmatch(name):
        raise InvalidRequest(
            f"namespace={name!r} is not allowed: use 1 to 64 characters from A-Z, a-z, 0-9 and _ . : -"
        )
    return name


def _tls(options: dict[str, str]) -> TlsOptions:
    reqs = options.get("ssl_cert_reqs", "required")
    if reqs not in _CERT_REQS:
        raise InvalidRequest(f"ssl_cert_reqs={reqs!r} is not valid: write required, optional or none")
    if options.get("ssl_keyfile") and not options.get("ssl_certfile"):
        raise InvalidRequest("ssl_keyfile needs ssl_certfile, the certificate of this client")
    return TlsOptions(
        ca_certs=options.get("ssl_ca_certs", ""),
        certfile=options.get("ssl_certfile", ""),
        keyfile=options.get("ssl_keyfile", ""),
        cert_reqs=_CERT_REQS[reqs],
        check_hostname=_switch("ssl_check_hostname", options.get("ssl_check_hostname", "true")),
    )


def _switch(option: str, value: str) -> bool:
    if value.lower() not in _SWITCH:
        raise InvalidRequest(f"{option}={value!r} is not valid: write {option}=1 or {option}=0")
    return _SWITCH[value.lower()]


def _guarded(url: str) -> str:
    """Return an invalid URL with everything hidden that may be a password."""
    scheme, mark, rest = url.partition("://" if "://" in url else ":")
    rest = re.sub(r"(?i)([a-z_]*(?:password|secret)=)[^&]*", rf"\1{_HIDDEN}", rest)
    if "@" in rest:
        rest = f"{_HIDDEN}@{rest.rpartition('@')[2]}"
    return scheme + mark + rest
