"""Addresses of pools, and how they are talked to: TLS, with certificates of the pool's own authority on both sides."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mlc.errors import DeviceError, MissingDependencyError, UsageError
from mlc.pool.certificates import CA, CERTIFICATE, KEY, REVOKED, Role, files_of, role_in

_LOGGER = logging.getLogger("mlc")
PORT = 8786
_ADDRESS = re.compile(r"(?P<scheme>tls|tcp)://(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]*)(?::(?P<port>\d{1,5}))?")
_ANSWER = 10.0  # seconds in which whoever listens has said something


class RefusedError(DeviceError):
    """A pool does not want this party, or is not the party's."""


@dataclass(frozen=True)
class Address:
    """Where a pool is.

    Args:
        host: name or number.
        port: number.
        plain: whether everything is sent in clear, which stays on this machine.
    """

    host: str
    port: int
    plain: bool = False

    @property
    def url(self) -> str:
        """As people write it."""
        return f"{'tcp' if self.plain else 'tls'}://{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, *, plain: bool = False) -> Address:
        """The address in ``tls://HOST:PORT``.

        Args:
            text: as the user gave it.
            plain: whether ``tcp://`` will do, on this machine.
        Raises:
            UsageError: it is none, or it is in clear and not meant to be or not of this machine.
        """
        match = _ADDRESS.fullmatch(text)
        port = int(match["port"] or PORT) if match else 0
        if match is None or port > 65535:
            raise UsageError(f"{text!r} is no address of a pool", hint="for example: tls://pool.example.org:8786")
        host = match["host"]
        if match["scheme"] == "tcp":
            if not plain:
                raise UsageError(
                    f"{text}: a pool is not talked to in clear",
                    hint="use tls://; --plain allows tcp:// on this machine",
                )
            if not _is_loopback(host):
                raise UsageError(
                    f"{text}: --plain is for this machine alone", hint="use tcp://127.0.0.1, or tls:// and certificates"
                )
        elif plain:
            raise UsageError(f"{text}: --plain contradicts tls://", hint="leave --plain out, or use tcp://127.0.0.1")
        return cls(host, port, match["scheme"] == "tcp")


def security_of(address: Address, certificates: Path | None, role: Role) -> Any:
    """How dask shall talk to a pool; nothing where it is in clear.

    Args:
        address: of the pool.
        certificates: the folder of this party.
        role: that this party wants to have.
    Raises:
        UsageError: there are no certificates, some of another role, or some where none can be used.
        MissingDependencyError: dask.distributed is not installed.
    """
    if address.plain:
        if certificates is not None:
            raise UsageError(f"{address.url}: certificates are of no use in clear", hint="use tls://")
        return None
    if certificates is None:
        raise UsageError(
            f"{address.url}: takes a certificate",
            hint="name the folder that `mlc devices ca` made for you: --certificates FOLDER",
        )
    files = files_of(certificates)
    try:
        context(files, ssl.Purpose.SERVER_AUTH)
    except (ssl.SSLError, OSError) as error:
        raise UsageError(f"{certificates}: holds no valid certificate: {error}") from None
    found = role_in(files[CERTIFICATE])
    if found != role:
        raise UsageError(
            f"{certificates}: is the certificate of a {found}, and not of a {role}",
            hint=f"mlc devices ca FOLDER --{role} NAME makes one",
        )
    return _checking(files)


def context(files: Mapping[str, Path], purpose: ssl.Purpose) -> ssl.SSLContext:
    """How to greet another party, or be greeted: TLS 1.3, certificates on both sides, and none that was withdrawn."""
    made = ssl.create_default_context(purpose, cafile=str(files[CA]))
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False  # who has a certificate of this authority is of this pool, wherever he is
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_cert_chain(files[CERTIFICATE], files[KEY])
    made.load_verify_locations(files[REVOKED])
    made.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return made


class _Fresh(ssl.SSLContext):
    """Reads the files for every connection, so that a certificate which is withdrawn opens none from then on."""

    def __new__(cls, files: Mapping[str, Path], purpose: ssl.Purpose) -> Self:
        server = purpose is ssl.Purpose.CLIENT_AUTH
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, files: Mapping[str, Path], purpose: ssl.Purpose) -> None:
        self._files, self._purpose = files, purpose

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        try:
            made = context(self._files, self._purpose)
        except (OSError, ssl.SSLError) as error:
            _LOGGER.warning("%s: nobody gets in: %s", self._files[REVOKED].parent, error)
            raise ssl.SSLEOFError(ssl.SSL_ERROR_EOF, str(error)) from None  # of which dask makes a closed connection
        return made.wrap_socket(*args, **options)


def withdrawn(certificates: Path) -> frozenset[int]:
    """Serial numbers of the certificates that were withdrawn, as the list in a party's folder says.

    Raises:
        UsageError: there is no list that the authority has signed.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    files = files_of(certificates)
    try:
        listed = x509.load_pem_x509_crl(files[REVOKED].read_bytes())
        authority = x509.load_pem_x509_certificate(files[CA].read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{files[REVOKED]}: is no list of withdrawn certificates: {error}") from None
    key = authority.public_key()
    assert isinstance(key, EllipticCurvePublicKey)
    if not listed.is_signature_valid(key):
        raise UsageError(f"{files[REVOKED]}: is not signed by the authority")
    return frozenset(entry.serial_number for entry in listed)


def _checking(files: Mapping[str, Path]) -> Any:
    """Dask's account of TLS, with the list of withdrawn certificates, which it does not know."""
    try:
        from distributed.security import Security
    except ImportError:
        raise MissingDependencyError("a pool takes dask.distributed", hint="pip install 'mlc[pool]'") from None

    class Checking(Security):
        """Gives the contexts above to whatever dask opens."""

        def get_listen_args(self, role: str) -> dict[str, Any]:
            return {**super().get_listen_args(role), "ssl_context": _Fresh(files, ssl.Purpose.CLIENT_AUTH)}

        def get_connection_args(self, role: str) -> dict[str, Any]:
            return {**super().get_connection_args(role), "ssl_context": _Fresh(files, ssl.Purpose.SERVER_AUTH)}

    names = {f"tls_{role}_{what}": str(files[file]) for role in ("client", "scheduler", "worker")
             for what, file in (("cert", CERTIFICATE), ("key", KEY))}  # fmt: skip
    return Checking(
        tls_ca_file=str(files[CA]), require_encryption=True, tls_min_version=ssl.TLSVersion.TLSv1_3, **names
    )


def mend_connections() -> None:
    """Lets a connection that ends before TLS begins count as one that failed; tornado tells of a wrong value."""
    from distributed.comm import CommClosedError, registry, tcp

    class Connector(tcp.TLSConnector):
        async def connect(self, address: str, deserialize: bool = True, **arguments: Any) -> Any:
            try:
                return await super().connect(address, deserialize, **arguments)
            except ValueError as error:
                raise CommClosedError(f"{address}: {error}") from error

    class Backend(tcp.TLSBackend):
        _connector_class = Connector

    registry.backends["tls"] = Backend()


def greet(address: Address, certificates: Path | None) -> None:
    """Looks whether a pool is there and lets this party in, so that a message can say why not.

    Raises:
        DeviceError: it is not, or does not.
    """
    hint = "is the scheduler running, and does a firewall let you through?"
    host = address.host.strip("[]")
    try:
        with contextlib.ExitStack() as stack:
            plain = stack.enter_context(socket.create_connection((host, address.port), timeout=_ANSWER))
            talk = plain
            if certificates is not None:
                made = context(files_of(certificates), ssl.Purpose.SERVER_AUTH)
                talk = stack.enter_context(made.wrap_socket(plain, server_hostname=host or None))
            # a pool speaks first, or ends the connection where it does not like the certificate
            if not talk.recv(1):
                raise DeviceError(f"{address.url}: closes the connection", hint="is it a pool, and with TLS?")
    except ssl.SSLCertVerificationError as error:
        raise RefusedError(
            f"{address.url}: is not of your pool: {error.verify_message}",
            hint="its certificate has to be of the same authority as yours, and not withdrawn",
        ) from None
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise RefusedError(
            f"{address.url}: does not let you in: {reason}",
            hint="was your certificate withdrawn, has it run out, or is it of another pool?",
        ) from None
    except TimeoutError:
        raise DeviceError(f"{address.url}: does not answer", hint=hint) from None
    except OSError as error:
        raise DeviceError(f"{address.url}: cannot be reached: {error.strerror or error}", hint=hint) from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
