"""Explains an estimate: the same plugins, with all their answers.

The gRPC method `Explain`, `karpool capacity` and the tests render this value.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from karpool.estimator.plugins.interface import MergedEstimate
from karpool.estimator.question import EstimateQuestion
from karpool.model.errors import Invalid
from karpool.model.infeasible import Infeasible
from karpool.model.karmada.replica_requirements import ReplicaRequirements
from karpool.model.kubernetes.pod_shape import shape_of
from karpool.model.kubernetes.workload import pod_template
from karpool.packing import fit_reasons
from karpool.packing.fit_reasons import FitReason
from karpool.wire.proto import explain_pb2 as pb
from karpool.wire.requests import ComponentSetsRequest, EstimateRequest, ReplicasRequest
from karpool.wire.server_protocol import RequestReader, saturated


@dataclass(frozen=True, slots=True)
class EstimateExplanation:
    """`refusals`: why existing nodes take no more than counted."""

    outcome: MergedEstimate
    refusals: tuple[Infeasible[FitReason], ...]
    state_version: int
    unseen: tuple[str, ...] = ()  # kinds without permission, and why


def explanation(
    question: EstimateQuestion, outcome: MergedEstimate, unseen: Sequence[str] = ()
) -> EstimateExplanation:
    reasons: list[Infeasible[FitReason]] = []
    if question.snapshot.room.n:
        for shape in question.shapes:
            reasons += fit_reasons.explain_nodes(question.room, shape)
    return EstimateExplanation(
        outcome, tuple(dict.fromkeys(reasons)), question.snapshot.version, tuple(unseen)
    )


def of_manifest(cluster: str, manifest: bytes) -> ReplicasRequest:
    """The request of a Pod or of a workload's template, including topology. Raises Invalid."""
    try:
        document = msgspec.json.decode(manifest)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise Invalid("manifest", manifest, "is not JSON") from None
    return of_object(cluster, document)


def of_object(cluster: str, document: object) -> ReplicasRequest:
    pod = pod_template(document).pod
    spec = pod.spec
    requirements = ReplicaRequirements(shape_of(pod), pod.metadata.namespace, spec.priority_class_name)
    return ReplicasRequest(cluster, requirements)


def read(message: pb.ExplainRequest) -> tuple[EstimateRequest, bool]:
    """The request, and whether it carries topology. Raises Invalid or TooLarge."""
    if message.manifest:
        return of_manifest(message.cluster, message.manifest), True
    reader = RequestReader()
    assumed = reader.assumed(message.assumed_workloads)
    if message.components:
        components = reader.components(message.components, "components")
        return ComponentSetsRequest(message.cluster, components, message.namespace, assumed), False
    requirements = None
    if message.HasField("replica_requirements"):
        requirements = reader.replica_requirements(message.replica_requirements)
    return ReplicasRequest(message.cluster, requirements, assumed), False


def write(explanation: EstimateExplanation) -> pb.ExplainResponse:
    outcome = explanation.outcome
    return pb.ExplainResponse(
        answer=saturated(outcome.answer),
        code=outcome.code.value,
        parts=[
            pb.Part(
                name=part.name,
                amount=part.amount,
                nodes=part.nodes,
                instance_types=part.instance_types,
                price_per_hour=part.price_per_hour,
                reasons=part.reasons,
            )
            for part in outcome.parts
        ],
        plugins=[
            pb.Verdict(
                plugin=verdict.plugin,
                role=verdict.role.value,
                value=verdict.estimate.value,
                code=verdict.estimate.code.value,
                reasons=verdict.estimate.reasons,
            )
            for verdict in outcome.verdicts
        ],
        refusals=[
            pb.Refusal(
                plugin=refusal.reason.value,
                reason=refusal.detail,
                nodes=refusal.count,
                resolvable=refusal.resolvable,
            )
            for refusal in explanation.refusals
        ],
        state_version=explanation.state_version,
        unseen=explanation.unseen,
    )
