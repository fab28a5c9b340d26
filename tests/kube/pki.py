"""Throw-away certificates."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Fixed, so that no test depends on today's date except by being before 2100.
START = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
END = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Pair:
    certificate: bytes
    key: bytes


class Authority:
    def __init__(self, name: str = "test CA") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        key_usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        built = (
            self._builder(self._name, self._key.public_key(), END)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(key_usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = built.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, *, hosts: Sequence[str] = (), end: datetime.datetime = END) -> Pair:
        """A server certificate when `hosts` are given, otherwise a client's."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            self._builder(subject, key.public_key(), end)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(identifier, critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(map(_host, hosts)), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Pair(
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )

    def _builder(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey, end: datetime.datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(START)
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
