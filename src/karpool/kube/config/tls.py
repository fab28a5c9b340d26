"""TLS contexts from certificates held in memory."""

import os
import ssl
import tempfile
from pathlib import Path

from karpool.kube.errors import ConfigError


def client_context(
    where: str, *, ca: bytes = b"", certificate: bytes = b"", key: bytes = b"", insecure: bool = False
) -> ssl.SSLContext:
    """Return a context that trusts only `ca`, or the system's authorities if `ca` is empty.

    Raises ConfigError; `where` names the cluster.
    """
    try:
        context = ssl.create_default_context(cadata=ca.decode("ascii") if ca else None)
    except (ssl.SSLError, UnicodeDecodeError, ValueError):
        raise ConfigError(f"cluster {where}: the certificate authority is not a PEM certificate") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        _load_pair(context, where, certificate, key)
    return context


def _load_pair(context: ssl.SSLContext, where: str, certificate: bytes, key: bytes) -> None:
    # OpenSSL reads pairs from files only; this file is private and deleted right after.
    handle, name = tempfile.mkstemp(prefix="karpool-", suffix=".pem")
    path = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(certificate.rstrip() + b"\n" + key)
        context.load_cert_chain(path, password=_no_password)
    except (ssl.SSLError, ValueError):
        raise ConfigError(
            f"cluster {where}: client certificate and key are not a matching, unencrypted PEM pair"
        ) from None
    finally:
        path.unlink(missing_ok=True)


def _no_password() -> str:
    """Refuse an encrypted key; otherwise OpenSSL would ask for its password on the terminal."""
    raise ValueError("encrypted key")
