"""Certificates of the gRPC server, reloaded when their files change, and checks for both sides.

Files are checked on each new connection, so that the next handshake uses a renewed certificate or authority
without a restart. A renewal that is not valid (half written, key of another certificate) is reported, and the
last valid set stays in use.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc
import structlog

from karpool.kube.bounded_input import CREDENTIAL_LIMIT, read_bounded
from karpool.model.errors import Invalid

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The server's TLS files. `client_ca` None: clients need no certificate."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @property
    def _paths(self) -> list[Path]:
        return [path for path in (self.certificate, self.key, self.client_ca) if path is not None]

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Return a value that changes with the files, or with the link of a mounted secret."""
        return stamp(self._paths)

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Read the files. Raises Invalid naming the file."""
        certificate, key = content(self.certificate), content(self.key)
        check_pair(
            ("--grpc-auth-cert-file", self.certificate, certificate),
            ("--grpc-auth-key-file", self.key, key),
        )
        authority = None
        if self.client_ca is not None:
            authority = content(self.client_ca)
            check_authority("--grpc-client-ca-file", self.client_ca, authority)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Return the credentials.

    Raises Invalid if the files are not valid now; later problems are only reported.
    """
    # The stubs do not say that a fetcher returns None when nothing has changed.
    fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", _Reload(files).fetch)
    return grpc.dynamic_ssl_server_credentials(
        files.read(), fetch, require_client_authentication=files.client_ca is not None
    )


class _Reload:
    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamp: object = None  # forces a read on the first handshake, so that no change is missed

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return a changed configuration, or None. Called on every handshake; it must not raise."""
        try:
            stamp = self._files.stamp()
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            renewed = self._files.read()
        except (Invalid, OSError) as error:
            log.warning("renewed certificate not used", reason=str(error))
            return None
        log.info("certificate reloaded", certificate=str(self._files.certificate))
        return renewed


Named = tuple[str, Path, bytes]  # the flag, its file, and the content


def stamp(paths: Iterable[Path]) -> tuple[tuple[int, int, int], ...]:
    """Return a value that changes with the files, or with the link of a mounted secret. Raises OSError."""
    stats = [path.stat() for path in paths]
    return tuple((status.st_ino, status.st_mtime_ns, status.st_size) for status in stats)


def content(path: Path) -> bytes:
    try:
        return read_bounded(path, CREDENTIAL_LIMIT)
    except OSError as error:
        raise Invalid("certificate file", str(path), f"cannot be read: {error.strerror}") from None


def check_authority(flag: str, path: Path, authority: bytes) -> None:
    from cryptography import x509  # imported here, because plaintext servers do not need it

    try:
        x509.load_pem_x509_certificates(authority)
    except ValueError:
        raise Invalid(flag, str(path), "contains no PEM certificate") from None


def check_pair(certificate: Named, key: Named) -> None:
    """Raise Invalid unless the key belongs to the certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    flag, path, data = certificate
    try:
        leaf = x509.load_pem_x509_certificates(data)[0]
    except ValueError:
        raise Invalid(flag, str(path), "contains no PEM certificate") from None
    key_flag, key_path, key_data = key
    try:
        private = load_pem_private_key(key_data, password=None)
    except (ValueError, TypeError):
        raise Invalid(key_flag, str(key_path), "contains no unencrypted PEM key") from None
    if private.public_key() != leaf.public_key():
        raise Invalid(key_flag, str(key_path), f"is not the key of {path}")
