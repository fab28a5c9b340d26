"""Access rules, and the security headers of every answer.

On loopback every client that can connect may read, as with kubectl proxy. The Host header must then name
loopback; otherwise a foreign page could reach us under its own name (DNS rebinding). On other addresses a
bearer token is required. It is compared in constant time and is never a cookie, so that no other site can
make a browser send it.
"""

import hmac
import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

TOKEN_LEAST = 16
# No inline script or style, no foreign resources, and no text that becomes markup.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


@dataclass(frozen=True, slots=True)
class AccessDenied:
    status: int
    title: str
    detail: str


@dataclass(frozen=True, slots=True)
class AccessGuard:
    """The access rules. `token` None: every client that can connect, under one of `hosts`."""

    token: str | None = None
    hosts: Collection[str] = ()

    def refusal(self, method: str, headers: Mapping[str, str], *, is_api: bool) -> AccessDenied | None:
        """Return the refusal, or None.

        The page contains no data and may be linked from anywhere; the API may not.
        """
        if method not in ("GET", "HEAD"):
            return AccessDenied(405, "read-only", f"{method} is not supported: the dashboard is read-only")
        host = host_of(headers.get("Host", ""))
        if self.token is None and host not in self.hosts and not is_loopback(host):
            names = ", ".join(sorted({"localhost", *self.hosts}))
            return AccessDenied(
                403, "unknown host", f"host name {host!r} is not allowed; use {names}, or serve with a token"
            )
        if not is_api:
            return None
        origin = headers.get("Origin", "")
        foreign = bool(origin) and host_of(urlsplit(origin).netloc) != host
        if foreign or headers.get("Sec-Fetch-Site", "") == "cross-site":
            return AccessDenied(403, "foreign origin", "requests of other sites are refused")
        if self.token is not None and not self._knows(headers.get("Authorization", "")):
            return AccessDenied(
                401, "token needed", "send it as a bearer token, or open the link with #token="
            )
        return None

    def _knows(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), f"Bearer {self.token}".encode())


def host_of(netloc: str) -> str:
    """Return the host without port and brackets, in lower case."""
    text = netloc.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
