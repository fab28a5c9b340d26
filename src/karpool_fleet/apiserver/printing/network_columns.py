"""Columns of services, endpoints and what routes to them."""

from karpool_fleet.apiserver.objects.types import Object
from karpool_fleet.apiserver.printing.cell_text import NONE, age_of, labels, selector, shown
from karpool_fleet.apiserver.printing.printer import Cell, Printer, columns, spec_of, status_of


def _service(obj: Object, now: float) -> list[Cell]:
    spec = spec_of(obj)
    kind = spec.get("type") or "ClusterIP"
    addresses = spec.get("clusterIPs") or [spec.get("clusterIP")]
    return [
        kind,
        NONE if kind == "ExternalName" else shown(addresses[0]),
        _service_address(obj, kind),
        ",".join(map(_service_port, spec.get("ports") or ())) or NONE,
        age_of(obj, now),
        labels(spec.get("selector")),
    ]


def _service_address(obj: Object, kind: str) -> str:
    spec = spec_of(obj)
    external = list(spec.get("externalIPs") or ())
    if kind == "ExternalName":
        return shown(spec.get("externalName"))
    if kind != "LoadBalancer":
        return ",".join(external) or NONE
    entries = (status_of(obj).get("loadBalancer") or {}).get("ingress") or ()
    addresses = [entry.get("ip") or entry.get("hostname") or "" for entry in entries] + external
    return ",".join(filter(None, addresses)) or "<pending>"


def _service_port(port: Object) -> str:
    node = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port.get('port')}{node}/{port.get('protocol', 'TCP')}"


def _endpoints(obj: Object, now: float) -> list[Cell]:
    texts: list[str] = []
    for subset in obj.get("subsets") or ():
        addresses = [entry.get("ip", "") for entry in subset.get("addresses") or ()]
        ports = [port.get("port") for port in subset.get("ports") or ()]
        texts += [f"{ip}:{port}" for ip in addresses for port in ports] if ports else addresses
    return [_shortened(texts), age_of(obj, now)]


def _shortened(values: list[str], most: int = 3) -> str:
    if not values:
        return NONE
    more = f" + {len(values) - most} more..." if len(values) > most else ""
    return ",".join(values[:most]) + more


def _endpoint_slice(obj: Object, now: float) -> list[Cell]:
    ports = [str(port.get("port", "*")) for port in obj.get("ports") or ()]
    addresses = [ip for endpoint in obj.get("endpoints") or () for ip in endpoint.get("addresses") or ()]
    return [
        obj.get("addressType") or "",
        _shortened(ports) if ports else "<unset>",
        _shortened(addresses) if addresses else "<unset>",
        age_of(obj, now),
    ]


def _ingress(obj: Object, now: float) -> list[Cell]:
    spec = spec_of(obj)
    hosts = [rule.get("host") or "*" for rule in spec.get("rules") or ()]
    entries = (status_of(obj).get("loadBalancer") or {}).get("ingress") or ()
    addresses = [entry.get("ip") or entry.get("hostname") or "" for entry in entries]
    return [
        shown(spec.get("ingressClassName")),
        _shortened(hosts) if hosts else "*",
        ",".join(filter(None, addresses)),
        "80, 443" if spec.get("tls") else "80",
        age_of(obj, now),
    ]


NETWORK: dict[tuple[str, str], Printer] = {
    ("", "Service"): Printer(columns("Type,Cluster-IP,External-IP,Port(s),Age,Selector*"), _service),
    ("", "Endpoints"): Printer(columns("Endpoints,Age"), _endpoints),
    ("networking.k8s.io", "Ingress"): Printer(columns("Class,Hosts,Address,Ports,Age"), _ingress),
    ("networking.k8s.io", "IngressClass"): Printer(
        columns("Controller,Parameters,Age"),
        lambda obj, now: [spec_of(obj).get("controller") or "", NONE, age_of(obj, now)],
    ),
    ("networking.k8s.io", "NetworkPolicy"): Printer(
        columns("Pod-Selector,Age"),
        lambda obj, now: [selector(spec_of(obj).get("podSelector")), age_of(obj, now)],
    ),
    ("discovery.k8s.io", "EndpointSlice"): Printer(
        columns("AddressType,Ports,Endpoints,Age"), _endpoint_slice
    ),
}
