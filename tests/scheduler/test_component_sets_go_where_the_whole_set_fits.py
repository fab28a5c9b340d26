"""The whole way of a workload with several pod templates: detector, binding, estimators, decision, work."""

import asyncio

from karpool.model.kubernetes.api_resources import (
    CRDS,
    PROPAGATIONPOLICIES,
    RESOURCEBINDINGS,
    WORKS,
    ApiResource,
)
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.controllers import add_controllers
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.fleet_file import parse_fleet
from tests.scheduler.acting import AGGREGATED, condition, targets

PYTORCHJOBS = ApiResource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", namespaced=True)
FLEET = b"""
kind: Fleet
clusters:
  - {name: little, autoscaler: none, nodes: [{type: m5.xlarge, count: 3}]}
  - {name: large, autoscaler: none, nodes: [{type: m5.2xlarge, count: 3}]}
karmada: {}
"""
CONTROLLERS = {
    "scheduler": {"feature-gates": "MultiplePodTemplatesScheduling=true,SchedulingOvercommitProtection=true"},
    "estimator": {"feature-gates": "SchedulingOvercommitProtection=true"},
}
CRD = {
    "metadata": {"name": "pytorchjobs.kubeflow.org"},
    "spec": {
        "group": "kubeflow.org",
        "scope": "Namespaced",
        "names": {"plural": "pytorchjobs", "kind": "PyTorchJob", "singular": "pytorchjob"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}
POLICY = {
    "metadata": {"name": "jobs", "namespace": "default"},
    "spec": {
        "schedulerName": "karpool-scheduler",
        "resourceSelectors": [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}],
        "placement": {
            "replicaScheduling": AGGREGATED,  # duplicated ones are placed without a look at room
            "clusterAffinity": {"clusterNames": ["little", "large"]},
            "spreadConstraints": [{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}],
        },
    },
}


def job(name, workers, cpu="6", **more):
    def role(replicas, cores):
        request = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cores}}}
        return {"replicas": replicas, "template": {"spec": {"containers": [request], **more}}}

    specs = {"Master": role(1, "1"), "Worker": role(workers, cpu)}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"pytorchReplicaSpecs": specs},
    }


def story(*jobs):
    async def told():
        def furnish(fleet):
            add_controllers(fleet, CONTROLLERS)

        async with EmbeddedFleet(parse_fleet(FLEET), LoopClock(), furnish=furnish) as fleet:
            admin = fleet.karmada.client("admin")
            for served in fleet.api_servers.values():
                await served.client("admin").create(CRDS, CRD)
            await asyncio.sleep(300)  # until nodes are up and members have told that they serve the kind
            await admin.create(PROPAGATIONPOLICIES, POLICY)
            for one in jobs:
                await admin.create(PYTORCHJOBS, one)
                await asyncio.sleep(10)
            await asyncio.sleep(60)
            bindings = (await admin.list(RESOURCEBINDINGS)).items
            works = (await admin.list(WORKS)).items
            return {one["spec"]["resource"]["name"]: one for one in bindings}, works

    return run_manual(told())


def test_a_set_goes_where_all_of_it_fits_and_its_work_carries_all_of_it():
    bindings, works = story(job("train", 2, tolerations=[{"key": "gpu", "operator": "Exists"}]))
    spec = bindings["train"]["spec"]
    claim = {"tolerations": [{"key": "gpu", "operator": "Exists"}]}
    assert spec["components"] == [
        {
            "name": "master",
            "replicas": 1,
            "replicaRequirements": {"nodeClaim": claim, "resourceRequest": {"cpu": "1"}},
        },
        {
            "name": "worker",
            "replicas": 2,
            "replicaRequirements": {"nodeClaim": claim, "resourceRequest": {"cpu": "6"}},
        },
    ]
    assert "replicas" not in spec
    assert "replicaRequirements" not in spec
    # No node of the little cluster has six free cores.
    (target,) = spec["clusters"]
    assert target == {
        "name": "large",
        "components": [{"name": "master", "replicas": 1}, {"name": "worker", "replicas": 2}],
    }
    (manifest,) = [
        held
        for work in works
        for held in work["spec"]["workload"]["manifests"]
        if held["kind"] == "PyTorchJob"
    ]
    assert manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2


def test_a_second_set_is_refused_while_the_first_is_promised():
    bindings, _ = story(job("first", 2), job("second", 2))
    assert set(targets(bindings["first"])) == {"large"}
    assert not targets(bindings["second"])
    assert condition(bindings["second"])[0] == "False"
