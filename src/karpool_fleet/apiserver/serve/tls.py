"""Certificates of an embedded server: its own authority and what that issued.

`in_memory` creates a pair that lives as long as the process. `in_directory` keeps the authority, so that
kubeconfigs survive restarts, and renews the server's certificate before it expires or when a host name is
missing. Keys are ECDSA P-256, for short handshakes; files with keys are readable by their owner only.
"""

import contextlib
import ipaddress
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from karpool.kube.clock import Clock
from karpool.kube.errors import ConfigError
from karpool_fleet.apiserver.serve.private_files import write_private

LOOPBACK = ("localhost", "127.0.0.1", "::1")
AUTHORITY_LIFE = timedelta(days=3650)
SERVER_LIFE = timedelta(days=365)  # Apple's clients refuse more than 398
RENEW_BEFORE = timedelta(days=30)
SKEW = timedelta(minutes=10)  # for clients whose clock is a little behind

_AUTHORITY_FILES = ("ca.crt", "ca.key")
_SERVER_FILES = ("tls.crt", "tls.key")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """The certificate of a server, and the authority that its clients trust."""

    ca_pem: bytes
    server: Pair


def in_memory(clock: Clock, hosts: Iterable[str] = LOOPBACK) -> ServerCertificate:
    """A fresh authority and a certificate for `hosts`; nothing is written."""
    now = _now(clock)
    authority = _new_authority(now)
    return ServerCertificate(authority.certificate, _issue(authority, list(hosts), now))


def in_directory(directory: Path, clock: Clock, hosts: Iterable[str] = LOOPBACK) -> ServerCertificate:
    """Return the pair of a directory, created or renewed as needed; raises ConfigError."""
    names = list(hosts)
    now = _now(clock)
    try:
        authority = _read(directory, _AUTHORITY_FILES)
        if authority is None or not _is_valid(authority, now, ()):
            authority = _new_authority(now)
            _write(directory, _AUTHORITY_FILES, authority)
        server = _read(directory, _SERVER_FILES)
        if server is None or not _is_valid(server, now, names) or not _issued_by(authority, server):
            server = _issue(authority, names, now)
            _write(directory, _SERVER_FILES, server)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"certificates in {directory}: {reason}; make it writable, or use another directory"
        ) from error
    return ServerCertificate(authority.certificate, server)


def server_context(certificate: ServerCertificate) -> ssl.SSLContext:
    """Return a context for listening; TLS 1.2 or newer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # OpenSSL reads pairs from files only; this file is private and deleted right after.
    with tempfile.TemporaryDirectory(prefix="karpool-") as name:
        path = Path(name) / "pair.pem"
        write_private(path, certificate.server.certificate + certificate.server.key)
        context.load_cert_chain(path)
    return context


def _now(clock: Clock) -> datetime:
    return datetime.fromtimestamp(int(clock.now()), UTC)


def _new_authority(now: datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "karpool embedded authority")])
    usage = _usage(key_cert_sign=True, crl_sign=True, digital_signature=True)
    built = (
        _builder(name, name, key.public_key(), now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return _pair(built, key)


def _issue(authority: Pair, hosts: list[str], now: datetime) -> Pair:
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = _key(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "karpool embedded server")])
    life = min(SERVER_LIFE, issuer.not_valid_after_utc - now)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    built = (
        _builder(subject, issuer.subject, key.public_key(), now, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _pair(built, key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError(f"host {host!r:.100}: must be an IP address or an ASCII DNS name") from None


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


def _key(pair: Pair) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pair.key, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an ECDSA key")
    return key


def _read(directory: Path, names: tuple[str, str]) -> Pair | None:
    """Return the stored pair; None if it is missing or does not match, and must be created."""
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
        pair = Pair(*((directory / name).read_bytes() for name in names))
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        if certificate.public_key() == _key(pair).public_key():
            return pair
    return None


def _write(directory: Path, names: tuple[str, str], pair: Pair) -> None:
    write_private(directory / names[1], pair.key)
    write_private(directory / names[0], pair.certificate)


def _is_valid(pair: Pair, now: datetime, hosts: Iterable[str]) -> bool:
    """Whether a certificate is valid now and for a while, and covers all hosts."""
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - RENEW_BEFORE:
        return False
    names = {_general_name(host) for host in hosts}
    try:
        covered = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return not names
    return names <= set(covered)


def _issued_by(authority: Pair, server: Pair) -> bool:
    try:
        issuer = x509.load_pem_x509_certificate(authority.certificate)
        x509.load_pem_x509_certificate(server.certificate).verify_directly_issued_by(issuer)
    except Exception:  # the library raises InvalidSignature, ValueError or TypeError; all mean no
        return False
    return True
