"""What the commands of the pages are executed on: one embedded cluster, and files of the names they use."""

import gzip
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import yaml

from karpool.cli.main import run
from karpool.gpu.records.demand_key import DemandKey
from karpool.gpu.records.scale_up_object import definition, to_object
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.apiserver.kinds.bundled_crds import bundled_crds
from karpool_fleet.simulation import ready_scenarios
from tests.consolidation import cluster_objects
from tests.dashboard.fleets import gpu_nodes, placed
from tests.docs.shown_commands import ROOT
from tests.kubectl.serving import RunningServer
from tests.scheduler.acting import APIS, binding, summary

CONTEXTS = (
    "embedded",
    "prod",
    "karmada",
    "member1",
    "member2",
    "east",
    "oregon",
    "ireland",
    "arn:aws:eks:eu-west-1:1:cluster/prod",
)
NODE, EMPTY_NODE = "ip-10-0-1-7.ec2.internal", "ip-10-0-1-8.ec2.internal"
WAITING = ScaleUpRecord(
    DemandKey("shared", "*", 1, 12, 30), ScaleUpState.PENDING, time.time() - 60, time.time() - 30
)


def workload(kind: str, name: str, cpu: str = "500m", **spec: Any) -> dict[str, Any]:
    pod = {"containers": [{"name": "c", "image": "web:1", "resources": {"requests": {"cpu": cpu}}}]}
    meta = {"name": name, "namespace": "default"}
    if kind == "Pod":
        return {"apiVersion": "v1", "kind": kind, "metadata": meta, "spec": pod | spec}
    template = {"metadata": {"labels": {"app": name}}, "spec": pod}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": spec}


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = RunningServer(folder)
        self._kubeconfigs()
        self._objects()
        self._files()

    def stop(self) -> None:
        self.server.stop()

    def _kubeconfigs(self) -> None:
        config = yaml.safe_load(self.server.kubeconfig.read_text())
        (context,) = config["contexts"]
        config["contexts"] = [{**context, "name": name} for name in CONTEXTS]
        text = yaml.safe_dump(config)
        (self.folder / "members").mkdir()
        names = (
            "config",
            "members.yaml",
            "karmada.yaml",
            "member1-kubeconfig",
            "member1.config",
            "fleet.yaml",
            "prod.config",
        )
        for name in (*names, "members/member1-kubeconfig", "members/member2.yaml"):
            (self.folder / name).write_text(text)

    def _objects(self) -> None:
        send = self.server.send
        for crd in [*bundled_crds(), definition()]:
            send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        for name in ("karmada-system", "karpool-system", "karpool-smart-pods", "shop"):
            send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        send("POST", "/apis/karpenter.sh/v1/nodepools", cluster_objects.pool())
        for name in (NODE, EMPTY_NODE):
            self._node(*cluster_objects.node(name, "m5.xlarge"))
        for made in gpu_nodes():
            if made["metadata"]["name"] == "gpu-b" and made["kind"] == "Node":
                self._node(made)
        for namespace in ("default", "shop"):
            deployment = workload("Deployment", "web")
            deployment["metadata"]["namespace"] = namespace
            send("POST", f"/apis/apps/v1/namespaces/{namespace}/deployments", deployment)
        for name in ("infer", "busy"):
            on = {"nodeName": NODE} if name == "busy" else {"schedulerName": "karpool-gpu-scheduler"}
            send("POST", "/api/v1/namespaces/default/pods", workload("Pod", name, cpu="3", **on))
        stuck = workload("Pod", "web-7d9c5b8f4-x2x7k", cpu="900")
        stuck["metadata"] |= {"namespace": "shop", "labels": {"app": "web"}}
        send("POST", "/api/v1/namespaces/shop/pods", stuck)
        send(
            "POST",
            "/apis/cluster.karmada.io/v1alpha1/clusters",
            {"metadata": {"name": "member1"}, "spec": {"syncMode": "Push"}},
        )
        status = {"resourceSummary": summary(100), "apiEnablements": APIS}
        self._status("/apis/cluster.karmada.io/v1alpha1/clusters/member1", status)
        path = "/apis/work.karmada.io/v1alpha2/namespaces/{}/resourcebindings"
        send("POST", path.format("default"), binding("web"))
        promised = placed("web", 4, {"member1": 4}, time.time(), in_flight={"member1": 2})
        promised["metadata"]["namespace"] = "shop"
        send("POST", path.format("shop"), promised)
        meta = {"name": "cluster-autoscaler-status"}
        send("POST", "/api/v1/namespaces/kube-system/configmaps", {"metadata": meta, "data": {"status": ""}})

    def scale_up_waits(self) -> None:
        path = "/apis/gpu.karpool.dev/v1alpha1/namespaces/karpool-smart-pods/scaleups"
        self.server.send("POST", path, to_object(WAITING, "karpool-smart-pods"))

    def _node(self, made: dict[str, Any], claim: dict[str, Any] | None = None) -> None:
        for path, obj in (("/api/v1/nodes", made), ("/apis/karpenter.sh/v1/nodeclaims", claim)):
            if obj is not None:
                self.server.send("POST", path, obj)
                self._status(f"{path}/{obj['metadata']['name']}", obj["status"])

    def _status(self, path: str, status: dict[str, Any]) -> None:
        merge = "application/merge-patch+json"
        self.server.send("PATCH", f"{path}/status", {"status": status}, merge)

    def _files(self) -> None:
        for name in ("pod", "deployment"):
            text = json.dumps(workload(name.capitalize(), "web"))
            for ending in ("yaml", "json"):
                (self.folder / f"{name}.{ending}").write_text(text)
        (self.folder / "deploy").symlink_to(ROOT / "deploy")
        self._scenarios()
        page = (ROOT / "docs" / "catalogue.md").read_text()
        (example,) = re.findall(r"^```yaml\n(format: .*?)^```$", page, re.MULTILINE | re.DOTALL)
        (self.folder / "catalogue.yaml").write_text(example)
        (self.folder / "prices.csv").write_text("region,type,on_demand\neu-central-1,m5.large,0.11\n")
        (self.folder / "contract.yaml").write_text("format: karpool-contract/1\n")
        code = run(
            ["snapshot", "--kubeconfig", str(self.folder / "config"), "-o", str(self.folder / "saved.gz")],
            "karpool",
        )
        assert code == 0
        for name in ("prod.gz", "prod.karpool.gz"):
            shutil.copy(self.folder / "saved.gz", self.folder / name)
        (self.folder / "now").write_text(rfc3339(time.time()))

    def _scenarios(self) -> None:
        """The shipped ones, for two minutes and one variant, and without what they expect of whole days."""
        folder = self.folder / "scenarios"
        folder.mkdir()
        shipped = ready_scenarios.FOLDER
        for path in shipped.glob("*.yaml"):
            scenario = yaml.load(path.read_text(), yaml.CSafeLoader) | {"duration": "2m"}
            short = {key: value for key, value in scenario.items() if key not in ("expect", "measureFrom")}
            short["variants"] = (short.get("variants") or [])[:1]
            (folder / path.name).write_text(yaml.safe_dump(short))
        pods = (shipped / "example-pods.csv").read_bytes()
        (folder / "example-pods.csv").write_bytes(pods)
        (self.folder / "pods.csv.gz").write_bytes(gzip.compress(pods))
