"""Columns of nodes, namespaces, configuration, events and permissions."""

from karpool_fleet.apiserver.objects.types import Object
from karpool_fleet.apiserver.printing.cell_text import NONE, UNKNOWN, age, age_of, shown
from karpool_fleet.apiserver.printing.printer import Cell, Printer, columns, count, spec_of, status_of

_ROLE = "node-role.kubernetes.io/"


def _node(obj: Object, now: float) -> list[Cell]:
    status, info = status_of(obj), status_of(obj).get("nodeInfo") or {}
    addresses = {entry.get("type"): entry.get("address") for entry in status.get("addresses") or ()}
    return [
        _node_condition(obj),
        _node_roles(obj),
        age_of(obj, now),
        info.get("kubeletVersion") or "",
        shown(addresses.get("InternalIP")),
        shown(addresses.get("ExternalIP")),
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _node_condition(obj: Object) -> str:
    ready = [c for c in status_of(obj).get("conditions") or () if c.get("type") == "Ready"]
    words = ["Ready" if ready[0].get("status") == "True" else "NotReady"] if ready else ["Unknown"]
    if spec_of(obj).get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(obj: Object) -> str:
    roles = set()
    for key, value in (obj["metadata"].get("labels") or {}).items():
        if key.startswith(_ROLE) and len(key) > len(_ROLE):
            roles.add(key.removeprefix(_ROLE))
        elif key == "kubernetes.io/role" and value:
            roles.add(value)
    return ",".join(sorted(roles)) or NONE


def _phase(obj: Object, now: float) -> list[Cell]:
    return [status_of(obj).get("phase") or "", age_of(obj, now)]


def _config_map(obj: Object, now: float) -> list[Cell]:
    return [len(obj.get("data") or ()) + len(obj.get("binaryData") or ()), age_of(obj, now)]


def _secret(obj: Object, now: float) -> list[Cell]:
    return [obj.get("type") or "Opaque", len(obj.get("data") or ()), age_of(obj, now)]


def _quota(obj: Object, now: float) -> list[Cell]:
    status = status_of(obj)
    used = status.get("used") or {}
    requests: list[str] = []
    limits: list[str] = []
    for name, hard in sorted((status.get("hard") or {}).items()):
        entry = f"{name}: {used.get(name, '0')}/{hard}"
        (limits if name.startswith("limits") else requests).append(entry)
    return [", ".join(requests), ", ".join(limits), age_of(obj, now)]


def _event(obj: Object, now: float) -> list[Cell]:
    involved = obj.get("involvedObject") or obj.get("regarding") or {}
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    series = obj.get("series") or {}
    first = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or obj.get("eventTime")
    last = (
        series.get("lastObservedTime")
        or obj.get("lastTimestamp")
        or obj.get("deprecatedLastTimestamp")
        or first
    )
    count = series.get("count") or obj.get("count") or obj.get("deprecatedCount") or 1
    component = (
        source.get("component") or obj.get("reportingComponent") or obj.get("reportingController") or ""
    )
    host = source.get("host")
    return [
        age(last, now),
        obj.get("type") or "",
        obj.get("reason") or "",
        f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}",
        involved.get("fieldPath") or "",
        f"{component}, {host}" if host else component,
        (obj.get("message") or obj.get("note") or "").strip(),
        age(first, now),
        count,
        obj["metadata"]["name"],
    ]


def _lease(obj: Object, now: float) -> list[Cell]:
    return [spec_of(obj).get("holderIdentity") or "", age_of(obj, now)]


def _priority_class(obj: Object, now: float) -> list[Cell]:
    return [
        count(obj.get("value")),
        bool(obj.get("globalDefault")),
        age_of(obj, now),
        obj.get("preemptionPolicy") or "PreemptLowerPriority",
    ]


def _created(obj: Object, _now: float) -> list[Cell]:
    return [obj["metadata"].get("creationTimestamp") or UNKNOWN]


def _role_binding(obj: Object, now: float) -> list[Cell]:
    role, subjects = obj.get("roleRef") or {}, obj.get("subjects") or ()
    by_kind: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for subject in subjects:
        name = str(subject.get("name", ""))
        if subject.get("kind") == "ServiceAccount":
            name = f"{subject.get('namespace', '')}/{name}"
        by_kind.setdefault(str(subject.get("kind")), []).append(name)
    named = [", ".join(by_kind[kind]) for kind in ("User", "Group", "ServiceAccount")]
    return [f"{role.get('kind', '')}/{role.get('name', '')}", age_of(obj, now), *named]


_EVENTS = Printer(
    columns("Last Seen,Type,Reason,Object,Subobject*,Source*,Message,First Seen*,Count*,Name*", "Count"),
    _event,
    named=False,
)

CLUSTER: dict[tuple[str, str], Printer] = {
    ("", "Node"): Printer(
        columns(
            "Status,Roles,Age,Version,Internal-IP*,External-IP*,OS-Image*,Kernel-Version*,Container-Runtime*"
        ),
        _node,
    ),
    ("", "Namespace"): Printer(columns("Status,Age"), _phase),
    ("", "ConfigMap"): Printer(columns("Data,Age"), _config_map),
    ("", "Secret"): Printer(columns("Type,Data,Age", "Data"), _secret),
    ("", "ResourceQuota"): Printer(columns("Request,Limit,Age"), _quota),
    ("", "Event"): _EVENTS,
    ("events.k8s.io", "Event"): _EVENTS,
    ("", "ServiceAccount"): Printer(
        columns("Secrets,Age", "Secrets"), lambda obj, now: [len(obj.get("secrets") or ()), age_of(obj, now)]
    ),
    ("", "LimitRange"): Printer(columns("Created At"), _created),
    ("coordination.k8s.io", "Lease"): Printer(columns("Holder,Age"), _lease),
    ("scheduling.k8s.io", "PriorityClass"): Printer(
        columns("Value,Global-Default,Age,PreemptionPolicy", "Value"), _priority_class
    ),
    ("rbac.authorization.k8s.io", "Role"): Printer(columns("Created At"), _created),
    ("rbac.authorization.k8s.io", "ClusterRole"): Printer(columns("Created At"), _created),
    ("rbac.authorization.k8s.io", "RoleBinding"): Printer(
        columns("Role,Age,Users*,Groups*,ServiceAccounts*"), _role_binding
    ),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): Printer(
        columns("Role,Age,Users*,Groups*,ServiceAccounts*"), _role_binding
    ),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): Printer(columns("Created At"), _created),
    ("node.k8s.io", "RuntimeClass"): Printer(
        columns("Handler,Age"), lambda obj, now: [obj.get("handler") or "", age_of(obj, now)]
    ),
}
