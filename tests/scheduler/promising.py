"""Bindings for tests of promises, in a few words."""

from karpool.model.karmada.binding import (
    AggregatedStatus,
    Binding,
    BindingKey,
    TargetCluster,
    WorkloadTemplate,
)
from karpool.model.karmada.replica_requirements import Component, requirements

ONE_CORE = requirements({"cpu": "1"})


def targets(**clusters):
    return tuple(TargetCluster(name, replicas) for name, replicas in clusters.items())


def binding(name="web", *, on=None, generation=1, cpu="1", status=None, **more):
    """`on`: replicas by cluster; `status`: what each cluster reports."""
    placed = targets(**(on or {}))
    return Binding(
        key=BindingKey("ResourceBinding", "default", name),
        template=WorkloadTemplate("apps/v1", "Deployment", "default", name, f"uid-{name}"),
        replicas=sum(each.replicas for each in placed) or 1,
        requirements=requirements({"cpu": cpu}),
        targets=placed,
        uid=f"binding-{name}",
        generation=generation,
        aggregated=reports(**(status or {})),
        **more,
    )


def reports(**clusters):
    """A number of ready replicas, all of them created, or a whole status."""
    return tuple(
        AggregatedStatus(name, True, "Healthy", status if isinstance(status, dict) else deployed(status))
        for name, status in clusters.items()
    )


def deployed(ready, created=None):
    """As Go writes it: zeros are left out."""
    counts = {"replicas": ready if created is None else created, "readyReplicas": ready}
    return {"observedGeneration": 1} | counts


def flink(name="job", *, on=(), generation=1, **more):
    return Binding(
        key=BindingKey("ResourceBinding", "default", name),
        template=WorkloadTemplate(
            "flink.apache.org/v1beta1", "FlinkDeployment", "default", name, f"uid-{name}"
        ),
        components=(Component("manager", 1, ONE_CORE), Component("worker", 3, ONE_CORE)),
        targets=tuple(TargetCluster(each) for each in on),
        uid=f"binding-{name}",
        generation=generation,
        **more,
    )


def in_flight(ledger, cluster="m1"):
    return {
        promise.binding.name: promise.replicas for promise in ledger.promises(cluster) if promise.replicas
    }
