"""Endpoints besides resources: version and health."""

import msgspec

from karpool.kube.transport_interface import HttpRequest, HttpResponse
from karpool_fleet.apiserver.serve.status import JSON, method_not_allowed

# The Kubernetes version whose API this is; clients compare their own with it.
_MAJOR, _MINOR = "1", "34"
VERSION = {
    "major": _MAJOR,
    "minor": _MINOR,
    "gitVersion": f"v{_MAJOR}.{_MINOR}.0+karpool",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "cpython",
    "platform": "python/any",
}
_HEALTH = ("/healthz", "/livez", "/readyz")
_CHECKS = ("ping", "store")
_TEXT = {"content-type": "text/plain; charset=utf-8"}


def respond(request: HttpRequest) -> HttpResponse | None:
    """Return the response; None for paths that are not served here."""
    path = request.path.rstrip("/")
    if path != "/version" and not path.startswith(_HEALTH):
        return None
    if request.method not in ("GET", "HEAD"):
        raise method_not_allowed(request.method, path)
    if path == "/version":
        return HttpResponse(200, JSON, msgspec.json.encode(VERSION))
    probe, _, check = path.lstrip("/").partition("/")
    if f"/{probe}" not in _HEALTH or (check and check not in _CHECKS):
        return None
    if check or "verbose" not in dict(request.query):
        return HttpResponse(200, _TEXT, b"ok")
    lines = [f"[+]{name} ok\n" for name in _CHECKS]
    return HttpResponse(200, _TEXT, ("".join(lines) + f"{probe} check passed\n").encode())
