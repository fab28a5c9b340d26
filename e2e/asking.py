"""Questions to an estimator, of either make, as a scheduler would send them: over mutual TLS."""

from collections.abc import Callable, Sequence

import grpc

from e2e.components import EstimatorPki
from karpool.model.karmada.replica_requirements import Component, ReplicaNodeClaim, ReplicaRequirements
from karpool.wire.client_protocol import (
    EncodedQuestion,
    ask_component_sets,
    ask_replicas,
    encode_assumed,
    read_unschedulable,
    write_unschedulable,
)
from karpool.wire.requests import AssumedWorkload, WorkloadReference

_SERVICE = "github.com.karmada_io.karmada.pkg.estimator.service.Estimator"


def replica(cpu: str, memory: str = "64Mi", **selector: str) -> ReplicaRequirements:
    claim = ReplicaNodeClaim(node_selector=selector) if selector else None
    return ReplicaRequirements(resource_request={"cpu": cpu, "memory": memory}, node_claim=claim)


def component(name: str, replicas: int, wanted: ReplicaRequirements) -> Component:
    return Component(name=name, replicas=replicas, requirements=wanted)


def assumed(replicas: int, wanted: ReplicaRequirements) -> AssumedWorkload:
    return AssumedWorkload("default", (component("main", replicas, wanted),))


class Asker:
    """One connection to one estimator; one that is not patient fails when it cannot connect."""

    def __init__(
        self, cluster: str, port: int, pki: EstimatorPki, *, trusting: bytes = b"", patient: bool = True
    ) -> None:
        credentials = grpc.ssl_channel_credentials(
            trusting or pki.ca.read_bytes(), pki.client_key.read_bytes(), pki.client_certificate.read_bytes()
        )
        self._cluster = cluster
        self._patient = patient
        self._channel = grpc.secure_channel(f"localhost:{port}", credentials)

    def close(self) -> None:
        self._channel.close()

    def replicas(self, wanted: ReplicaRequirements, promises: Sequence[AssumedWorkload] = ()) -> int:
        return self._ask("MaxAvailableReplicas", ask_replicas(wanted), promises)

    def sets(self, components: Sequence[Component], promises: Sequence[AssumedWorkload] = ()) -> int:
        return self._ask("MaxAvailableComponentSets", ask_component_sets(components), promises)

    def unschedulable(
        self, name: str, namespace: str, seconds: float, *, kind: str = "Deployment", group: str = "apps/v1"
    ) -> int:
        resource = WorkloadReference(group, kind, namespace, name)
        request = write_unschedulable(self._cluster, resource, int(seconds * 1e9))
        return read_unschedulable(self._call("GetUnschedulableReplicas", request))

    def _ask(self, method: str, question: EncodedQuestion, promises: Sequence[AssumedWorkload]) -> int:
        request = question.to(self._cluster, [encode_assumed(promise) for promise in promises])
        return question.read(self._call(method, request)).value

    def _call(self, method: str, request: bytes) -> bytes:
        stub: Callable[..., bytes] = self._channel.unary_unary(f"/{_SERVICE}/{method}")
        return stub(request, timeout=120, wait_for_ready=self._patient)
