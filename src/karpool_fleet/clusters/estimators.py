"""Calls the estimators of a fleet without a network.

It uses the scheduler's own client and the estimator's own service, with the bytes of the wire protocol
between them. Only the connection is a function call, so it works on manual time. An estimator that is not
running is unreachable.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn, cast

import grpc

from karpool.estimator.process import FleetEstimator
from karpool.estimator.serving.options import EstimatorOptions
from karpool.estimator.serving.service import EstimatorService
from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.manager.manager import Manager
from karpool.manager.options import read_options
from karpool.model.kubernetes.api_resources import CLUSTERS
from karpool.scheduler.estimates.estimator_client import EstimatorClient, EstimatorSettings
from karpool_fleet.runtime.supervisor import Context

Metadata = tuple[tuple[str, str], ...]
_Method = Callable[[bytes, Any], Awaitable[bytes]]


class Estimators:
    """The running estimators by cluster, and a client for them."""

    def __init__(self) -> None:
        self.services: dict[str, EstimatorService] = {}

    def clients(self, clock: Clock, settings: EstimatorSettings | None = None) -> EstimatorClient:
        return EstimatorClient(_itself, settings or EstimatorSettings(), clock, _Channels(self))


class EstimatorComponent:
    """The estimator of one cluster, with region and zones of Karmada's Cluster object.

    Raises Invalid for invalid options.
    """

    def __init__(
        self, context: Context, estimators: Estimators, given: dict[str, Any], karmada: Client | None = None
    ) -> None:
        options = read_options(EstimatorOptions, {"cluster-name": context.cluster, **given}, embedded=True)
        self._context = context
        self._estimators, self._karmada = estimators, karmada
        self._manager = Manager.of(
            context.client, lambda environment: FleetEstimator(environment, options, serves=False)
        )

    async def run(self) -> None:
        services, service = self._estimators.services, self._manager.runnable.service
        services[self._context.cluster] = service
        if self._karmada is not None:
            spec = (await self._karmada.get(CLUSTERS, self._context.cluster))["spec"]
            for member in self._manager.runnable.members.values():
                member.cluster.market.see_karmada_cluster(spec.get("region") or "", spec.get("zones") or ())
        try:
            await self._manager.run()
        finally:
            if services.get(self._context.cluster) is service:
                del services[self._context.cluster]


async def _itself(cluster: str) -> Sequence[str]:
    return [cluster]


class _Channels:
    def __init__(self, estimators: Estimators) -> None:
        self._estimators = estimators

    def renew(self) -> int:
        return 0

    async def open(self, address: str) -> grpc.aio.Channel:
        return cast("grpc.aio.Channel", _Channel(self._estimators, address))


class _Channel:
    """The part of a channel that the scheduler's client uses."""

    def __init__(self, estimators: Estimators, cluster: str) -> None:
        self._estimators = estimators
        self._cluster = cluster

    def unary_unary(self, path: str) -> Callable[..., Awaitable[bytes]]:
        method = path.rpartition("/")[2]

        async def call(data: bytes, metadata: Metadata = ()) -> bytes:
            service = self._estimators.services.get(self._cluster)
            if service is None:
                raise _error(grpc.StatusCode.UNAVAILABLE, f"no estimator of {self._cluster} is running")
            methods: dict[str, _Method] = {
                "MaxAvailableReplicas": service.max_available_replicas,
                "MaxAvailableComponentSets": service.max_available_component_sets,
                "GetUnschedulableReplicas": service.get_unschedulable_replicas,
                "AwaitRoom": service.await_room,
            }
            return await methods[method](data, _Call(metadata))

        return call

    async def close(self, grace: float | None = None) -> None:
        pass


class _Call:
    """The server's side of one call."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise _error(code, details)

    def peer(self) -> str:
        return "in this process"


def _error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)
