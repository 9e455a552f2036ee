"""A certification authority of one's own for a pool: who may run a scheduler, offer a board, or ask for work.

It is a folder: ``ca.key`` is the secret by which all certificates are signed, and never leaves the machine where it was
made. Every party has a folder beside it with all that it needs: ``ca.pem``, ``cert.pem``, ``key.pem`` and ``crl.pem``,
which lists the certificates that were withdrawn.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlc.errors import MissingDependencyError, OutputError, UsageError
from mlc.fields import Fields, as_flag, as_list, as_text, told_as
from mlc.runtime.atomic import atomic_write

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA, CERTIFICATE, KEY, REVOKED = "ca.pem", "cert.pem", "key.pem", "crl.pem"
_SECRET, _LIST = "ca.key", "issued.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_YEARS = timedelta(days=3650)  # of the authority itself
_EARLIER = timedelta(minutes=5)  # clocks differ
DAYS = 365


class Role(StrEnum):
    """What a certificate is for."""

    SCHEDULER = "scheduler"
    BOARD = "board"
    CLIENT = "client"


@dataclass(frozen=True)
class Issued:
    """A certificate that was made.

    Args:
        name: of the party, which is that of its folder.
        role: what it may do.
        serial: hexadecimal.
        expires: date and time, ISO 8601.
        revoked: whether it was withdrawn.
    """

    name: str
    role: Role
    serial: str
    expires: str
    revoked: bool = False


class Authority:
    """A folder with an authority; it is made where there is none.

    Args:
        folder: the folder.
    Raises:
        UsageError: the folder holds something else.
        OutputError: it cannot be written.
        MissingDependencyError: the library ``cryptography`` is not installed.
    """

    def __init__(self, folder: Path) -> None:
        _require_library()
        self.folder = folder
        self.made = not (folder / _SECRET).exists()
        if self.made:
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise UsageError(f"{folder}: is there and is no authority", hint="name a folder to be made")
            _make(folder)
        try:
            self._key, self._certificate = _read(folder)
            entries = json.loads((folder / _LIST).read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"{folder}: holds no authority that can be read: {error}") from None
        with told_as(UsageError):
            self.issued = list(as_list(entries, _LIST, _issued))

    def issue(self, name: str, role: Role, days: int = DAYS) -> Path:
        """Makes a key and a certificate for a party; its folder.

        Raises:
            UsageError: no folder can have that name, or there is such a party already.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be a party's name", hint="use letters, digits, dots, - and _, 63 at most"
            )
        if any(i.name == name and not i.revoked for i in self.issued):
            raise UsageError(f"{self.folder / name}: has a certificate already", hint=f"withdraw it: --revoke {name}")
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        # who only asks for work cannot be taken for a scheduler or a board: TLS itself refuses it as a server
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role is not Role.CLIENT:
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        subject = [(NameOID.ORGANIZATION_NAME, "mlc pool"), (NameOID.ORGANIZATIONAL_UNIT_NAME, role.value)]
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(o, v) for o, v in (*subject, (NameOID.COMMON_NAME, name))]))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLIER)
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(_signer(self._certificate), critical=False)
            .sign(self._key, _sha256())
        )
        place = self.folder / name
        _make_folder(place)
        (place / KEY).unlink(missing_ok=True)
        _write_secret(place / KEY, key)
        _write(place / CERTIFICATE, _pem(made))
        _write(place / CA, (self.folder / CA).read_bytes())
        self.issued = [i for i in self.issued if i.name != name or i.revoked]
        expires = made.not_valid_after_utc.isoformat()
        self.issued.append(Issued(name, role, f"{made.serial_number:x}", expires))
        self._save()
        return place

    def revoke(self, name: str) -> None:
        """Withdraws the certificate of a party: the list that all folders hold says so from now on.

        Raises:
            UsageError: there is none that is valid.
        """
        if not any(i.name == name and not i.revoked for i in self.issued):
            known = ", ".join(i.name for i in self.issued if not i.revoked)
            raise UsageError(f"{self.folder}: {name!r} has no certificate", hint=f"these have one: {known or 'nobody'}")
        self.issued = [Issued(**{**asdict(i), "revoked": i.revoked or i.name == name}) for i in self.issued]
        self._save()

    def _save(self) -> None:
        _write(self.folder / _LIST, json.dumps([asdict(i) for i in self.issued], indent=1).encode() + b"\n")
        text = self._revoked()
        for place in (self.folder, *sorted({self.folder / i.name for i in self.issued if not i.revoked})):
            if place.is_dir():
                _write(place / REVOKED, text)

    def _revoked(self) -> bytes:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import Encoding

        now = datetime.now(UTC)
        # it holds until the next one: a list that runs out would lock everybody out
        made = x509.CertificateRevocationListBuilder().issuer_name(self._certificate.subject)
        made = made.last_update(now - _EARLIER).next_update(self._certificate.not_valid_after_utc)
        for entry in self.issued:
            if entry.revoked:
                withdrawn = x509.RevokedCertificateBuilder().serial_number(int(entry.serial, 16)).revocation_date(now)
                made = made.add_revoked_certificate(withdrawn.build())
        made = made.add_extension(_signer(self._certificate), critical=False)
        return made.sign(self._key, _sha256()).public_bytes(Encoding.PEM)


def files_of(folder: Path) -> Mapping[str, Path]:
    """The files of a party's folder.

    Raises:
        UsageError: one is missing.
    """
    found = {name: folder / name for name in (CA, CERTIFICATE, KEY, REVOKED)}
    for path in found.values():
        if not path.is_file():
            raise UsageError(
                f"{path}: there is no such file",
                hint="name the folder of a party, as `mlc devices ca` makes them",
            )
    return found


def role_in(certificate: Path) -> str:
    """The role that a certificate is for; empty where it tells none."""
    _require_library()
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    subject = x509.load_pem_x509_certificate(certificate.read_bytes()).subject
    return next((str(a.value) for a in subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)), "")


def _require_library() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise MissingDependencyError("making certificates takes cryptography", hint="pip install 'mlc[pool]'") from None


def _make(folder: Path) -> None:
    """A new authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    serial = x509.random_serial_number()
    words = (
        (NameOID.ORGANIZATION_NAME, "mlc pool"),
        (NameOID.COMMON_NAME, f"mlc pool authority {serial & 0xFFFFFF:x}"),
    )
    name = x509.Name([x509.NameAttribute(oid, value) for oid, value in words])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + _YEARS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, _sha256())
    )
    _make_folder(folder)
    _write(folder / CA, _pem(made))
    _write(folder / _LIST, b"[]\n")
    _write_secret(folder / _SECRET, key)  # last: with it, the folder is an authority


def _read(folder: Path) -> tuple[EllipticCurvePrivateKey, x509.Certificate]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key((folder / _SECRET).read_bytes(), None)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ValueError(f"{_SECRET} is a key of another kind")
    return key, x509.load_pem_x509_certificate((folder / CA).read_bytes())


def _usage(*, sign: bool) -> x509.KeyUsage:
    """What a key is for: a party's own signature, or those of certificates and lists."""
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=sign, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=not sign, crl_sign=not sign, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _signer(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    from cryptography import x509

    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
        authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    )


def _sha256() -> Any:
    from cryptography.hazmat.primitives.hashes import SHA256

    return SHA256()


def _pem(made: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return made.public_bytes(Encoding.PEM)


def _write(path: Path, data: bytes) -> None:
    with atomic_write(path) as file:
        file.write(data)


def _write_secret(path: Path, key: EllipticCurvePrivateKey) -> None:
    """A key that nobody but the user may read."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    data = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from None


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made: {error.strerror}", hint="name a folder to be made") from None


def _issued(value: Any, where: str) -> Issued:
    get = Fields(value, where)
    with told_as(UsageError):
        role = get.take("role", as_text)
    if role not in set(Role):
        raise UsageError(f"{where}: there is no role {role!r}")
    found = Issued(
        get.take("name", as_text),
        Role(role),
        get.take("serial", as_text),
        get.take("expires", as_text),
        get.take("revoked", as_flag),
    )
    get.end()
    return found


def parties(names: Mapping[Role, Sequence[str]]) -> Iterator[tuple[str, Role]]:
    """Names with their roles, in order."""
    for role, some in names.items():
        yield from ((name, role) for name in some)
