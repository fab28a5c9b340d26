"""What could be launched for a waiting item: candidates of its pools, each with what it would bring.

A GPU pool is served by the NodePools whose template carries its label, and by the one of
its name. Only instance types on which the item itself would fit are considered. Answers
are kept until pools or the catalogue change.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from karpool.cluster.market.market import Market
from karpool.gpu.scale_up.demand import ScaleUpCandidate, WaitingWorker, key_of
from karpool.gpu.scale_up.feasibility import feasible
from karpool.model.catalogue.catalogue import InstanceType
from karpool.model.devices.device import POOL_LABEL
from karpool.model.devices.node_devices import AMD_GPU, NodeYield, smallest_yield, type_yield
from karpool.model.karpenter.objects import CompiledPool
from karpool.model.requirements import Requirements, ValueSet
from karpool.model.resources import CPU, GPU, MEMORY, show_amount
from karpool.model.taints import untolerated
from karpool.provisioning.candidates.ladder import CandidateLadder, CandidateQuery, Skipped, ladder
from karpool.provisioning.node_request import NodeCandidate


def resource_of(item: WaitingWorker) -> str:
    """The resource under which the autoscaler knows the devices."""
    return AMD_GPU if item.request.vendor == "AMD" else GPU


class CandidateFinder:
    def __init__(self, market: Market) -> None:
        self.market = market
        self.pools: Mapping[str, CompiledPool] = {}
        self._answers: dict[object, tuple[ScaleUpCandidate, ...]] = {}
        self._answered_for: object = None

    def use_pools(self, pools: Mapping[str, CompiledPool]) -> None:
        if pools is not self.pools and pools != self.pools:
            self.pools = pools
            self._answers.clear()

    def serving(self, gpu_pool: str) -> list[CompiledPool]:
        """NodePools whose nodes would belong to this GPU pool."""
        return [
            pool for pool in self.pools.values() if (pool.labels.get(POOL_LABEL) or pool.name) == gpu_pool
        ]

    def __call__(self, item: WaitingWorker) -> tuple[ScaleUpCandidate, ...]:
        if self._answered_for != self.market.version:
            self._answered_for = self.market.version
            self._answers.clear()
        key = (key_of(item), item.request.cpu_milli, item.request.memory_bytes)
        if key not in self._answers:
            self._answers[key] = self._rungs(item)
        return self._answers[key]

    def explained(self, item: WaitingWorker) -> CandidateLadder:
        """The whole answer, with the pools that were left out and why.

        A smart pod tolerates what its pool asks for; the pod it stands for must do so itself.
        """
        pools, refused = [], []
        for pool in self.serving(item.request.pool):
            taint = untolerated(pool.taints, item.tolerations)
            if taint is None:
                pools.append(pool)
            else:
                refused.append(Skipped(pool.name, f"the pod does not tolerate its taint {taint}"))
        found = ladder(self._wish(item), pools, self.market.offerings)
        return replace(found, skipped=(*found.skipped, *refused))

    def why_none(self, item: WaitingWorker) -> str:
        """Why there is no candidate, pool by pool."""
        found = self.explained(item)
        if not found.skipped:
            return f"no NodePool belongs to GPU pool {item.request.pool}; label its template {POOL_LABEL}"
        return "; ".join(f"NodePool {skipped.pool}: {skipped.reason}" for skipped in found.skipped[:5])

    def _rungs(self, item: WaitingWorker) -> tuple[ScaleUpCandidate, ...]:
        resource = resource_of(item)
        found = self.explained(item)
        return tuple(
            ScaleUpCandidate(candidate, self._brings(candidate, resource)) for candidate in found.candidates
        )

    def _brings(self, candidate: NodeCandidate, resource: str) -> NodeYield:
        types = self.market.catalogue.types
        return smallest_yield([type_yield(types[name], resource) for name in candidate.instance_types])

    def _wish(self, item: WaitingWorker) -> CandidateQuery:
        request, resource = item.request, resource_of(item)

        def fits(type_: InstanceType) -> bool:
            rung = ScaleUpCandidate(NodeCandidate(instance_types=(type_.name,)), type_yield(type_, resource))
            return isinstance(feasible(item, (rung,)), tuple)

        def why_not(types: Sequence[InstanceType]) -> str:
            """What is asked for, and what the one with the most to give has."""
            brings = {instance_type.name: type_yield(instance_type, resource) for instance_type in types}
            best = max(brings, key=lambda name: (brings[name].vram_bytes, brings[name].devices, name))
            has = brings[best]
            model = has.model or "of an unknown model"
            memory = show_amount(MEMORY, has.vram_bytes)
            return f"asked for {request.wanted}, and {best} has {has.devices} {model} with {memory} VRAM each"

        terms = request.node_terms
        return CandidateQuery(
            resources={resource: request.count, CPU: request.cpu_milli, MEMORY: request.memory_bytes},
            alternatives=({},) if terms is None else tuple(_labels(term.labels) for term in terms),
            preferences=tuple(
                (preferred_term.weight, _labels(preferred_term.term.labels))
                for preferred_term in request.preferred
            ),
            tolerations=item.tolerations,
            only=fits,
            why_not=why_not,
        )


def _labels(pairs: Iterable[tuple[str, ValueSet]]) -> Requirements:
    return dict(pairs)
