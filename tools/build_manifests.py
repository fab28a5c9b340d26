"""Writes the plain manifests of deploy/kustomize from the Helm chart: python tools/build_manifests.py

Every folder is one template of the chart, rendered with the values below; what only Helm cares about is
taken out. `chart.sha256` says which chart they were made from, so that a chart that changed without them is
noticed also where there is no Helm. Needs helm: on PATH, or named by KARPOOL_HELM.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
CHART = DEPLOY / "helm" / "karpool"
TARGET = DEPLOY / "kustomize"
STAMP = TARGET / "chart.sha256"
KUBERNETES = "1.34.0"  # helm asks which server it renders for
HEADER = (
    "# Made from the Helm chart by tools/build_manifests.py; change the chart, or patch this in an overlay.\n"
)
MEMBER, HOST = "karpool-system", "karmada-system"
Object = dict[str, Any]

_CLIENT = {"tls": {"secretName": "karpool-estimator-client-tls"}}
VALUES: Object = {
    "serviceMonitor": {"enabled": True},
    "estimator": {
        "enabled": True,
        "clusters": [
            {
                "name": "member1",
                "kubeconfig": {"secretName": "member1-kubeconfig", "key": "member1-kubeconfig"},
            }
        ],
        "tls": {"secretName": "karpool-estimator-tls"},
    },
    "scheduler": {
        "enabled": True,
        "kubeconfig": {"secretName": "karpool-scheduler-kubeconfig"},
        "estimators": _CLIENT,
    },
    "descheduler": {
        "enabled": True,
        "kubeconfig": {"secretName": "karpool-descheduler-kubeconfig"},
        "estimators": _CLIENT,
    },
    "clusterSummary": {
        "enabled": True,
        "kubeconfig": {"secretName": "karpool-cluster-summary-kubeconfig"},
        "estimators": _CLIENT,
    },
    "consolidator": {"enabled": True, "dryRun": False},
    "gpuScaler": {"enabled": True},
    "dashboard": {
        "enabled": True,
        "token": {"secretName": "karpool-dashboard-token"},
        "tls": {"secretName": "karpool-dashboard-tls"},
    },
}


class NoHelm(Exception):
    """Helm is not there, or refuses the chart; the text says which."""


@dataclass(frozen=True)
class Folder:
    """Templates that become one folder, and what is set besides `VALUES`."""

    templates: tuple[str, ...]
    namespace: str
    set: tuple[str, ...] = ()
    monitors: bool = False  # take nothing but ServiceMonitors; else everything but them


FOLDERS = {
    "crds": Folder(("crds",), MEMBER),
    "smart-pods": Folder(("smart-pods",), MEMBER),
    "reader": Folder(("reader",), MEMBER),
    "consolidator": Folder(("consolidator",), MEMBER),
    "consolidator-planning": Folder(("consolidator",), MEMBER, ("consolidator.dryRun=true",)),
    "gpu-scaler": Folder(("gpu-scaler",), MEMBER),
    "dashboard": Folder(("dashboard",), MEMBER),
    "estimator": Folder(("estimator",), HOST),
    "estimator-access": Folder(("estimator",), HOST, ("render=access",)),
    "scheduler": Folder(("scheduler",), HOST),
    "descheduler": Folder(("descheduler",), HOST),
    "cluster-summary": Folder(("cluster-summary",), HOST),
    "cluster-summary-access": Folder(("cluster-summary",), HOST, ("render=access",)),
    "karmada-access": Folder(("scheduler", "descheduler"), HOST, ("render=access",)),
    "host-monitors": Folder(
        ("estimator", "scheduler", "descheduler", "cluster-summary"), HOST, monitors=True
    ),
    "member-monitors": Folder(("consolidator", "gpu-scaler", "dashboard"), MEMBER, monitors=True),
}


def find_helm() -> str | None:
    return os.environ.get("KARPOOL_HELM") or shutil.which("helm")


def template(helm: str, *arguments: str, values: Object | None = None) -> list[Object]:
    """What the chart renders to. Raises NoHelm with what Helm says."""
    command = [helm, "template", "karpool", str(CHART), f"--kube-version={KUBERNETES}", "-f", "-", *arguments]
    done = subprocess.run(  # noqa: S603 - the words are ours
        command, input=json.dumps(values or {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "found symbolic link" not in line]
        raise NoHelm("\n".join(said))
    return [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]


def render(helm: str, folder: Folder) -> list[Object]:
    shown = [part for name in folder.templates for part in ("-s", f"templates/{name}.yaml")]
    more = [part for each in folder.set for part in ("--set", each)]
    found = template(helm, "-n", folder.namespace, *shown, *more, values=VALUES)
    chosen = [each for each in found if (each["kind"] == "ServiceMonitor") is folder.monitors]
    return [_plain(each) for each in chosen]


def _plain(obj: Object) -> Object:
    """Without what only Helm cares about."""
    for meta in _metadata(obj):
        labels = meta.get("labels") or {}
        labels.pop("helm.sh/chart", None)
        labels.pop("app.kubernetes.io/managed-by", None)
        if "annotations" in meta:
            meta["annotations"].pop("helm.sh/resource-policy", None)
            if not meta["annotations"]:
                del meta["annotations"]
    return obj


def _metadata(obj: Object) -> Iterator[Object]:
    yield obj["metadata"]
    if inner := obj.get("spec", {}).get("template"):
        yield inner["metadata"]


def text(objects: list[Object]) -> str:
    return HEADER + yaml.safe_dump_all(objects, sort_keys=False, width=120, explicit_start=True)


def stamp() -> str:
    """Of the templates, the values and what is set here."""
    digest = hashlib.sha256(json.dumps(VALUES, sort_keys=True).encode() + repr(FOLDERS).encode())
    for path in (CHART / "Chart.yaml", CHART / "values.yaml", *sorted((CHART / "templates").iterdir())):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def main() -> None:
    helm = find_helm()
    if helm is None:
        sys.exit(
            "no helm on PATH or in KARPOOL_HELM; get it from https://helm.sh, or with "
            "`go install helm.sh/helm/v3/cmd/helm@v3.18.6`"
        )
    for name, folder in FOLDERS.items():
        path = TARGET / name
        path.mkdir(parents=True, exist_ok=True)
        (path / "manifests.yaml").write_text(text(render(helm, folder)))
        (path / "kustomization.yaml").write_text(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [manifests.yaml]\n"
        )
    STAMP.write_text(stamp() + "\n")


if __name__ == "__main__":
    try:
        main()
    except NoHelm as error:
        sys.exit(f"helm: {error}")
