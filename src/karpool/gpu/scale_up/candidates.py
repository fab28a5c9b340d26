"""Finds what could be launched for a pending item: the candidates of its pools, each with its yield.

A GPU pool is served by the NodePools whose template carries its label, and by the NodePool of the same name;
pods of other systems by the NodePools of that system. Only instance types that fit the item itself are
considered. Answers are cached until pools, nodes or the catalogue change.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from karpool.cluster.market.market import Market
from karpool.gpu.scale_up.demand import ScaleUpCandidate, WaitingWorker, key_of
from karpool.gpu.scale_up.feasibility import feasible
from karpool.gpu.scale_up.system_nodes import ShownNode, SystemNodes, refused_pool
from karpool.model.catalogue.catalogue import InstanceType
from karpool.model.devices.device import POOL_LABEL
from karpool.model.devices.node_devices import AMD_GPU, NodeYield, smallest_yield, type_yield
from karpool.model.devices.systems import GpuSystem
from karpool.model.karpenter.objects import CompiledPool
from karpool.model.kubernetes.node import HOSTNAME
from karpool.model.requirements import NodeTerm, Requirements, ValueSet
from karpool.model.resources import CPU, GPU, MEMORY, show_amount
from karpool.model.taints import untolerated
from karpool.packing.dra.pod_claims import DraState
from karpool.provisioning.candidates.ladder import CandidateLadder, CandidateQuery, Skipped, ladder
from karpool.provisioning.node_request import NodeCandidate


def resource_of(item: WaitingWorker) -> str:
    """The resource name of the devices for the autoscaler."""
    return AMD_GPU if item.request.vendor == "AMD" else GPU


class CandidateFinder:
    def __init__(self, market: Market) -> None:
        self.market = market
        self.pools: Mapping[str, CompiledPool] = {}
        self.nodes = SystemNodes()
        self._answers: dict[object, tuple[ScaleUpCandidate, ...]] = {}
        self._answered_for: object = None

    def use_pools(self, pools: Mapping[str, CompiledPool]) -> None:
        if pools is not self.pools and pools != self.pools:
            self.pools = pools
            self._answers.clear()

    def use_nodes(self, shown: Mapping[tuple[str, str], ShownNode], drivers: DraState | None) -> None:
        """Set what current nodes show; answers for pods of other systems depend on it."""
        if shown != self.nodes.shown or drivers is not self.nodes.drivers:
            self.nodes.shown, self.nodes.drivers = shown, drivers
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
        key = (key_of(item), item.request.cpu_milli, item.request.memory_bytes, item.models)
        if key not in self._answers:
            self._answers[key] = self._rungs(item)
        return self._answers[key]

    def explained(self, item: WaitingWorker) -> CandidateLadder:
        """The complete answer, including the excluded pools and why.

        A smart pod tolerates the taints of its pool; the pod that it stands for must do so itself.
        """
        pools, refused = [], []
        for pool in self.pools.values() if item.system else self.serving(item.request.pool):
            taint = untolerated(pool.taints, item.tolerations)
            if (reason := self._refused_pool(item, pool)) or taint is not None:
                refused.append(Skipped(pool.name, reason or f"the pod does not tolerate its taint {taint}"))
            else:
                pools.append(pool)
        rungs = ladder(self._wish(item, pools), pools, self.market.offerings)
        return replace(rungs, skipped=(*rungs.skipped, *refused))

    def _refused_pool(self, item: WaitingWorker, pool: CompiledPool) -> str:
        if item.system is None:
            return ""
        return refused_pool(item, pool, self.pools.values())

    def why_none(self, item: WaitingWorker) -> str:
        """Why there is no candidate, pool by pool."""
        skipped = self.explained(item).skipped
        if not skipped and item.system is None:
            return f"no NodePool belongs to GPU pool {item.request.pool}; label its template {POOL_LABEL}"
        if not skipped:
            return "the pod is bound to one node by name" if _is_pinned(item) else "there is no NodePool"
        return "; ".join(f"NodePool {pool.pool}: {pool.reason}" for pool in skipped[:5])

    def _rungs(self, item: WaitingWorker) -> tuple[ScaleUpCandidate, ...]:
        if item.system is not None:
            return tuple(self._system_rungs(item))
        resource = resource_of(item)
        return tuple(
            ScaleUpCandidate(candidate, self._brings(candidate, resource))
            for candidate in self.explained(item).candidates
        )

    def _system_rungs(self, item: WaitingWorker) -> Iterator[ScaleUpCandidate]:
        """Candidates with the minimum yield of their pools and types; insufficient ones are left out."""
        for candidate in self.explained(item).candidates:
            kinds = [
                (self.pools[pool], self.market.catalogue_of(pool).types[name])
                for pool in candidate.pools
                for name in candidate.instance_types
            ]
            yields = [
                (units, kind)
                for kind in kinds
                if isinstance(units := self.nodes.brings(item, *kind), NodeYield)
            ]
            if len(yields) != len(kinds) or any(self.nodes.refusal(item, *kind) for kind in kinds):
                continue
            _, least = min(yields, key=lambda pair: (pair[0].devices, pair[0].vram_bytes))
            drivers = self.nodes.state_on(*least) if item.system is GpuSystem.DRA else None
            yield ScaleUpCandidate(candidate, smallest_yield([units for units, _ in yields]), drivers)

    def _brings(self, candidate: NodeCandidate, resource: str) -> NodeYield:
        return smallest_yield(
            [
                type_yield(self.market.catalogue_of(pool).types[name], resource)
                for pool in candidate.pools
                for name in candidate.instance_types
            ]
        )

    def _wish(self, item: WaitingWorker, pools: Sequence[CompiledPool]) -> CandidateQuery:
        request, resource = item.request, resource_of(item)
        if item.system is not None:
            return self._system_wish(item, pools)

        def fits(type_: InstanceType) -> bool:
            rung = ScaleUpCandidate(NodeCandidate(instance_types=(type_.name,)), type_yield(type_, resource))
            return isinstance(feasible(item, (rung,)), tuple)

        def why_not(types: Sequence[InstanceType]) -> str:
            """The request, and what the largest of the types has."""
            brings = {instance_type.name: type_yield(instance_type, resource) for instance_type in types}
            best = max(brings, key=lambda name: (brings[name].vram_bytes, brings[name].devices, name))
            has = brings[best]
            model = has.model or "of an unknown model"
            memory = show_amount(MEMORY, has.vram_bytes)
            return (
                f"{request.wanted} are requested, and {best} has {has.devices} {model} with {memory} "
                "VRAM each"
            )

        return CandidateQuery(
            resources={resource: request.count, CPU: request.cpu_milli, MEMORY: request.memory_bytes},
            alternatives=_alternatives(item),
            preferences=_preferences(item),
            tolerations=item.tolerations,
            only=fits,
            why_not=why_not,
        )

    def _system_wish(self, item: WaitingWorker, pools: Sequence[CompiledPool]) -> CandidateQuery:
        """The query of a system's pod. Its devices are not a resource that autoscalers count, so the types
        express the need.
        """
        nodes = self.nodes

        def fits(type_: InstanceType) -> bool:
            return any(not nodes.refusal(item, pool, type_) for pool in pools)

        def why_not(types: Sequence[InstanceType]) -> str:
            reasons = (nodes.refusal(item, pool, type_) for pool in pools for type_ in types)
            return next((reason for reason in reasons if reason), "")

        return CandidateQuery(
            resources={CPU: item.request.cpu_milli, MEMORY: item.request.memory_bytes},
            alternatives=_alternatives(item),
            preferences=_preferences(item),
            tolerations=item.tolerations,
            only=fits,
            why_not=why_not,
            devices=(GPU, AMD_GPU),
        )


def _alternatives(item: WaitingWorker) -> tuple[Requirements, ...]:
    """The alternatives without those that only an existing node can satisfy."""
    terms = item.request.node_terms
    if terms is None:
        return ({},)
    return tuple(_labels(term.labels) for term in terms if not _names_node(term))


def _names_node(term: NodeTerm) -> bool:
    return bool(term.fields) or any(key == HOSTNAME and not values.complement for key, values in term.labels)


def _is_pinned(item: WaitingWorker) -> bool:
    return not _alternatives(item)


def _preferences(item: WaitingWorker) -> tuple[tuple[int, Requirements], ...]:
    return tuple(
        (preferred_term.weight, _labels(preferred_term.term.labels))
        for preferred_term in item.request.preferred
    )


def _labels(pairs: Iterable[tuple[str, ValueSet]]) -> Requirements:
    return dict(pairs)
