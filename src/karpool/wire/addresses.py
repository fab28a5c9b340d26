"""Addresses: where a scheduler finds an estimator, and where a server listens.

Addresses are resolved as by Karmada's clients, for deployment checks and for our own scheduler: the Service
is read from the Karmada API server, not from the host cluster.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from karpool.model.errors import Invalid

SERVICE_PREFIX = "karmada-scheduler-estimator"
PORT = 10352


class ListenAddress(NamedTuple):
    host: str  # empty for all interfaces
    port: int


def listener(flag: str, text: str) -> ListenAddress | None:
    """Parse `host:port` or `:port`; return None for `0`, which disables the listener. Raises Invalid."""
    if text == "0":
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise Invalid(flag, text, "must be host:port, :port, or 0 to switch it off")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return ListenAddress(host, int(port))


def service_name(cluster: str, prefix: str = SERVICE_PREFIX) -> str:
    return f"{prefix}-{cluster}"


def resolve(service: Mapping[str, Any] | None, namespace: str, name: str, port: int) -> list[str]:
    """Return the addresses to try, in order. `service` is the spec of the Service, or None.

    Raises Invalid for a Service without a usable address.
    """
    if service is None:
        return [f"{name}.{namespace}.svc.cluster.local:{port}", f"{name}.{namespace}.svc:{port}"]
    kind = service.get("type", "ClusterIP")
    if kind != "ExternalName":
        raise Invalid(
            "spec.type", kind, f"Service {namespace}/{name} must be of type ExternalName, or absent"
        )
    for entry in service.get("ports") or ():
        if entry.get("port") == port:
            target = entry.get("targetPort")
            if isinstance(target, int) and not isinstance(target, bool):
                return [f"{service.get('externalName')}:{target}"]
            raise Invalid("spec.ports.targetPort", target, f"must be a number for port {port}")
    raise Invalid("spec.ports", service.get("ports"), f"Service {namespace}/{name} has no port {port}")
