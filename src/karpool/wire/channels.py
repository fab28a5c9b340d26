"""Channels to estimators, opened as by Karmada's schedulers: plaintext, TLS or mutual TLS.

A channel is plaintext without an authority file, unless verification is skipped. A client certificate is used
when both of its files are set. Files are checked before each use of a channel, so that the next channel uses
a renewed certificate. A renewal that cannot be read is reported, and the last valid files stay in use.
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
    # We retry ourselves: retries inside gRPC would hide which cluster cannot be reached.
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # A silently broken connection is noticed after half a minute, not after two hours.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # One connection for each cluster: certificates of one must not be used for another.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The client's TLS files. `authority` None with `skip_verify`: any certificate is accepted."""

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
        """Read the files. Raises Invalid naming the file."""
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
    """Opens channels with the newest valid certificates."""

    def __init__(self, tls: ClientTls | None = None) -> None:
        """Read the files. Raises Invalid if they are not valid now; later problems are only reported."""
        self._tls = tls or ClientTls()
        self._stamp: object = None
        self._credentials = ChannelCredentials(None, None)
        self.generation = 0
        if not self._tls.is_plaintext:
            self._stamp = self._tls.stamp()
            self._credentials = self._tls.read()

    def renew(self) -> int:
        """Check the files; the returned number changes when channels must be reopened."""
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
        """Open a channel, which connects in the background.

        With skipped verification it fetches the certificate of the server, and raises OSError if that fails.
        """
        if self._tls.is_plaintext:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        if not self._tls.skip_verify:
            credentials = self._credentials.trusting(self._credentials.authority)
            return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
        # The library cannot skip verification. So the certificate that the server presents is trusted, under
        # its own name; it must be within its validity period.
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
