"""The roles that the manifests grant, given to the users of the scenarios; and what was used of them.

Components run in every scenario under exactly the role that is shipped for them. The API
servers write down what each of them asked for.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tools.build_manifests import MEMBER, Folder, render

from e2e.control_plane import ApiServer
from e2e.kubectl import Kubectl, Object

MANIFESTS = Path(__file__).parent.parent / "deploy" / "kustomize"
_GROUP = "rbac.authorization.k8s.io"


@dataclass(frozen=True)
class Account:
    """A user of the scenarios: the folders that hold its roles, and how their names begin."""

    user: str
    folders: tuple[str, ...]
    prefix: str
    on: tuple[str, ...]  # API servers
    is_shared: bool = False  # a role for many commands, of which the scenarios run some
    values: tuple[str, ...] = ()  # of the chart, where its roles are not those of the manifests
    like: str = ""  # the user whose rights it shares; only its others are its own


ACCOUNTS = (
    Account("estimator", ("estimator-access",), "karpool-estimator", ("elastic", "static")),
    Account("scheduler-ours", ("karmada-access",), "karpool-scheduler", ("karmada",)),
    Account("descheduler-ours", ("karmada-access",), "karpool-descheduler", ("karmada",)),
    Account("cluster-summary", ("cluster-summary-access",), "karpool-cluster-summary", ("karmada",)),
    Account("gpu-scaler", ("gpu-scaler",), "karpool-gpu-scaler", ("elastic",)),
    Account("consolidator", ("consolidator",), "karpool-consolidator", ("elastic",)),
    Account("planner", ("reader",), "karpool-reader", ("elastic",), is_shared=True),
)
# Roles that the chart grants with other values; scenarios give them to their users.
BUFFERS = Account(
    "gpu-scaler-buffers",
    ("gpu-scaler",),
    "karpool-gpu-scaler",
    ("elastic",),
    values=("gpuScaler.backend=capacity-buffer",),
    like="gpu-scaler",
)
NODE_GROUPS = Account(
    "estimator-groups",
    ("estimator",),
    "karpool-estimator",
    ("static",),
    values=("render=access", "estimator.nodeCapacityProviders={cluster-autoscaler}"),
    like="estimator",
)
VARIANTS = (BUFFERS, NODE_GROUPS)


@dataclass(frozen=True, order=True)
class Right:
    """One verb on one kind; `name` where only that object may be touched, `namespace` where only there."""

    group: str
    resource: str  # with its subresource
    verb: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return (
            f"{self.verb} {self.resource}{'.' + self.group if self.group else ''} {self.name}".strip() + where
        )


def manifests(folder: str) -> list[Object]:
    text = (MANIFESTS / folder / "manifests.yaml").read_text()
    return [document for document in yaml.safe_load_all(text) if document]


def prepare(kubectl: Kubectl, server: str) -> None:
    """What an operator applies first, and every role of an API server with its user."""
    if server != "karmada":
        namespace: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "karpool-system"}}
        kubectl.apply(namespace, *manifests("smart-pods"), *manifests("crds"))
        kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=120s")
    for account in ACCOUNTS:
        if server in account.on:
            give(kubectl, account)


def give(kubectl: Kubectl, account: Account, helm: Path | None = None) -> None:
    """Roles and their bindings; Helm is needed for those that are not in the manifests."""
    made = list(_roles(account, helm))
    kubectl.apply(*made, *(_binding(role, account.user) for role in made))


def granted(account: Account, helm: Path | None = None) -> set[Right]:
    return {right for role in _roles(account, helm) for right in _rights(role)}


def own(account: Account, helm: Path | None = None) -> set[Right]:
    """What it is granted and the one that it is like is not."""
    shared = [granted(each) for each in ACCOUNTS if each.user == account.like]
    return granted(account, helm).difference(*shared)


def _roles(account: Account, helm: Path | None) -> Iterator[Object]:
    for role in _shipped_roles(account, helm):
        if account.values:  # beside those of the manifests, which other users have
            role["metadata"]["name"] += f"-of-{account.user}"
        yield role


def _shipped_roles(account: Account, helm: Path | None) -> Iterator[Object]:
    for folder in account.folders:
        if account.values:
            assert helm is not None
            documents = render(str(helm), Folder((folder,), MEMBER, account.values))
        else:
            documents = manifests(folder)
        for document in documents:
            named = document["metadata"]["name"]
            if document["kind"] in ("Role", "ClusterRole") and named.startswith(account.prefix):
                yield document


def _rights(role: Object) -> Iterator[Right]:
    namespace = role["metadata"].get("namespace", "")
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames") or ("",):
                        yield Right(group, resource, verb, namespace, name)


def _binding(role: Object, user: str) -> Object:
    metadata = {key: role["metadata"][key] for key in ("name", "namespace") if key in role["metadata"]}
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": f"{role['kind']}Binding",
        "metadata": {**metadata, "name": f"e2e-{user}-{metadata['name']}"},
        "roleRef": {"apiGroup": _GROUP, "kind": role["kind"], "name": role["metadata"]["name"]},
        "subjects": [{"apiGroup": _GROUP, "kind": "User", "name": user}],
    }


@dataclass(frozen=True)
class Asked:
    """One request of a user, as the API server wrote it down."""

    right: Right
    refused: bool


def asked(servers: Iterable[ApiServer], user: str) -> list[Asked]:
    """Requests for objects, in the order of the servers."""
    found = []
    for server in servers:
        for entry in server.audit():
            about: dict[str, Any] | None = entry.get("objectRef")
            if entry["user"]["username"] != user or not about or "resource" not in about:
                continue
            resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            right = Right(
                about.get("apiGroup", ""),
                resource,
                entry["verb"],
                about.get("namespace", ""),
                about.get("name", ""),
            )
            found.append(Asked(right, entry.get("responseStatus", {}).get("code") == 403))
    return found


def covers(grant: Right, right: Right) -> bool:
    return (
        (grant.group, grant.resource, grant.verb) == (right.group, right.resource, right.verb)
        and grant.namespace in ("", right.namespace)
        and grant.name in ("", right.name)
    )


def unused(grants: Iterable[Right], requests: Sequence[Asked]) -> set[Right]:
    used = {request.right for request in requests if not request.refused}
    return {grant for grant in grants if not any(covers(grant, right) for right in used)}
