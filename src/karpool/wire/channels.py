"""Channels to estimators, as Karmada's schedulers open them: plaintext, TLS or mutual TLS.

Plaintext without an authority's file, unless verification is skipped; a client
certificate when both of its files are given. Files are looked at again before each
channel is used, so that renewed certificates serve the next one; a renewal that cannot
be read is reported, and the last good set stays in use.
"""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from karpool.model.errors import Invalid
from karpool.wire.server_protocol import MESSAGE_BYTES_MAX
from karpool.wire.server_tls import check_authority, check_pair, content, stamp

log = structlog.get_logger(__name__)

_OPTIONS: tuple[tuple[str, int | str], ...] = (
    # Retries are ours: they would hide from us which cluster cannot be reached.
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # A connection that was cut in between is noticed after half a minute, not after two hours.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # One connection for each cluster: certificates of one must not leak into another.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Files of the scheduler's side. `authority` None with `skip_verify`: any certificate is accepted."""

    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    skip_verify: bool = False

    @property
    def is_plaintext(self) -> bool:
        return self.authority is None and not self.skip_verify

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        return stamp(path for path in (self.authority, self.certificate, self.key) if path is not None)

    def read(self) -> "ChannelCredentials":
        """Raises Invalid naming the file."""
        authority = pair = None
        if self.authority is not None and not self.skip_verify:
            authority = content(self.authority)
            check_authority("--scheduler-estimator-ca-file", self.authority, authority)
        if self.certificate is not None and self.key is not None:
            pair = (content(self.key), content(self.certificate))
            check_pair(
                ("--scheduler-estimator-cert-file", self.certificate, pair[1]),
                ("--scheduler-estimator-key-file", self.key, pair[0]),
            )
        return ChannelCredentials(authority, pair)


@dataclass(frozen=True, slots=True)
class ChannelCredentials:
    authority: bytes | None
    pair: tuple[bytes, bytes] | None  # key, certificate

    def trusting(self, authority: bytes | None) -> grpc.ChannelCredentials:
        key, certificate = self.pair or (None, None)
        return grpc.ssl_channel_credentials(authority, key, certificate)


class ChannelPool:
    """Opens channels with the newest certificates that can be used."""

    def __init__(self, tls: ClientTls | None = None) -> None:
        """Raises Invalid when the files cannot be used now; later that is only reported."""
        self._tls = tls or ClientTls()
        self._stamp: object = None
        self._credentials = ChannelCredentials(None, None)
        self.generation = 0
        if not self._tls.is_plaintext:
            self._stamp = self._tls.stamp()
            self._credentials = self._tls.read()

    def renew(self) -> int:
        """Look at the files; the number moves when channels are to be opened anew."""
        if self._tls.is_plaintext:
            return self.generation
        try:
            stamp = self._tls.stamp()
            if stamp == self._stamp:
                return self.generation
            self._stamp = stamp
            self._credentials = self._tls.read()
        except (Invalid, OSError) as error:
            log.warning("renewed certificate for estimators not used", reason=str(error))
            return self.generation
        self.generation += 1
        log.info("certificates for estimators reloaded")
        return self.generation

    async def open(self, address: str) -> grpc.aio.Channel:
        """Connects in the background. Raises OSError when a certificate is to be looked at and cannot be."""
        if self._tls.is_plaintext:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        if not self._tls.skip_verify:
            credentials = self._credentials.trusting(self._credentials.authority)
            return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
        # There is no way to tell the library not to verify. So whatever certificate the server
        # shows is what is trusted, under the name that it carries; it must be within its dates.
        shown = await _certificate_of(address)
        credentials = self._credentials.trusting(shown.public_bytes(Encoding.PEM))
        options = (*_OPTIONS, ("grpc.ssl_target_name_override", _name_in(shown)))
        return grpc.aio.secure_channel(address, credentials, options=options)


async def _certificate_of(address: str) -> x509.Certificate:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
    try:
        secured: ssl.SSLObject = writer.get_extra_info("ssl_object")
        shown = secured.getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    if shown is None:
        raise OSError(f"{address} sent no certificate")
    return x509.load_der_x509_certificate(shown)


def _name_in(certificate: x509.Certificate) -> str:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        names = x509.SubjectAlternativeName([])
    alternatives = names.get_values_for_type(x509.DNSName)
    alternatives += [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    alternatives += [
        str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    ]
    return alternatives[0].replace("*", "any", 1) if alternatives else ""
