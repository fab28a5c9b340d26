"""Shares the use of a contract between clusters: the machines each has, and those it is about to launch.

Each cluster writes one ConfigMap to a cluster that all of them reach, and reads those of the others. A
cluster writes its intended launches before it reads the others and validates the move again, so that of two
clusters competing for the rest of a commitment at least one sees the other. A ConfigMap older than five
minutes makes the use of that cluster unknown.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from math import inf

import msgspec
import structlog

from karpool.cluster.market.market import Market
from karpool.consolidation.execution.record import MovePhase, MoveRecord
from karpool.kube.api.client import Client
from karpool.kube.errors import AlreadyExists, KubeError
from karpool.model.contracts.contract import BilledKind, Fleet
from karpool.model.contracts.written_machines import written_machines
from karpool.model.kubernetes.api_resources import CONFIGMAPS
from karpool.model.kubernetes.times import rfc3339
from karpool.provisioning.contract_uses import KEY, LABEL, PREFIX, UsesOfOthers, fresh, list_uses

log = structlog.get_logger(__name__)
_RENEW_SECONDS = 60.0  # maximum time between two writes
_LAUNCHING = (MovePhase.WAITING, MovePhase.ASKING)


class ContractExchange:
    def __init__(
        self, client: Client, name: str, namespace: str, check: Callable[[], None] = lambda: None
    ) -> None:
        """`client` is of the cluster where all write, `name` is this cluster's name in the contract.

        `check` raises unless this process may act.
        """
        self._client, self._name, self._namespace, self._check = client, name, namespace, check
        self._written: tuple[Fleet, Fleet] | None = None
        self._renewed = -inf
        self._others: UsesOfOthers = {}

    async def exchange(self, market: Market, records: Iterable[MoveRecord]) -> None:
        """Write our own use, then read the others'. Errors are reported, and fail closed."""
        contracted, clock = market.contracted, self._client.clock
        is_silent = False
        try:
            await self._write(contracted.own, intended(market, records))
        except KubeError as error:
            log.warning("use of the contract not published", reason=str(error))
            is_silent = True
        try:
            uses = await list_uses(self._client, self._namespace)
        except KubeError as error:
            log.warning("contract use of other clusters not read", reason=str(error))
        else:
            self._others = {name: use for name, use in uses.items() if name != self._name}
        contracted.see_uses(fresh(self._others, clock.now()), is_silent=is_silent)

    async def _write(self, machines: Fleet, intends: Fleet) -> None:
        now = self._client.clock.now()
        if self._written == (machines, intends) and 0 <= now - self._renewed < _RENEW_SECONDS:
            return
        use = {
            "cluster": self._name,
            "renewed": rfc3339(now),
            "machines": written_machines(machines),
            "intends": written_machines(intends),
        }
        labels = {LABEL: "true", "app.kubernetes.io/managed-by": "karpool"}
        document = {
            "metadata": {"name": f"{PREFIX}{self._name}", "namespace": self._namespace, "labels": labels},
            "data": {KEY: msgspec.json.encode(use).decode()},
        }
        self._check()
        self._written = None  # until a write has succeeded
        try:
            await self._client.create(CONFIGMAPS, document, namespace=self._namespace)
        except AlreadyExists:
            await self._client.update(CONFIGMAPS, document, namespace=self._namespace)
        self._written, self._renewed = (dict(machines), dict(intends)), now


def intended(market: Market, records: Iterable[MoveRecord]) -> Counter[BilledKind]:
    """The machines that moves without new nodes so far are about to launch."""
    bill = market.bill()
    machines: Counter[BilledKind] = Counter()
    for record in records:
        if bill is None or record.phase not in _LAUNCHING or record.arrived:
            continue
        for new_node in record.move.new_nodes:
            if (kind := bill.kind_of(new_node.pool, new_node.chosen)) is not None:
                machines[kind] += 1
    return machines
