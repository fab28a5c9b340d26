"""What clusters under one contract tell each other: the machines each has, and those it is about to launch.

Each cluster writes one ConfigMap in a place that all of them reach, and reads those of the others. What is
about to be launched is written before the others are read and the move is looked at again: of two that
would take the last of a commitment, one sees the other. What is older than five minutes does not count:
nobody knows then what that cluster uses.
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
from karpool.model.contracts.contract_file import WrittenMachines, machines_of, written_machines
from karpool.model.contracts.contracted_prices import ClusterUse
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import CONFIGMAPS, ListOptions
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.model.kubernetes.meta import Wire, decode
from karpool.model.kubernetes.times import moment, rfc3339

log = structlog.get_logger(__name__)
LABEL = "contracts.karpool.dev/use"
_PREFIX = "karpool-contract-use-"
_KEY = "use"
# Written again at least so often, and believed for so long: a controller that starts anew is back by then.
_RENEW_SECONDS = 60.0
FRESH_SECONDS = 300.0
_SKEW_SECONDS = 60.0  # of clocks
_BYTES_MAX = 900_000
_LAUNCHING = (MovePhase.WAITING, MovePhase.ASKING)


class WrittenUse(Wire, frozen=True):
    cluster: str
    renewed: str
    machines: tuple[WrittenMachines, ...] = ()
    intends: tuple[WrittenMachines, ...] = ()


class ContractExchange:
    def __init__(
        self, client: Client, name: str, namespace: str, check: Callable[[], None] = lambda: None
    ) -> None:
        """`client` is of the place where all clusters write, `name` what the contract calls this one.
        `check` raises unless this process may act."""
        self._client, self._name, self._namespace, self._check = client, name, namespace, check
        self._written: tuple[Fleet, Fleet] | None = None
        self._renewed = -inf
        self._others: dict[str, tuple[float, ClusterUse]] = {}  # when they were written

    async def exchange(self, market: Market, records: Iterable[MoveRecord]) -> None:
        """First write, then read. What could not be done is said, and fails closed."""
        contracted, clock = market.contracted, self._client.clock
        is_silent = False
        try:
            await self._write(contracted.own, intended(market, records))
        except KubeError as error:
            log.warning("others cannot hear what this cluster uses of the contract", reason=str(error))
            is_silent = True
        try:
            selection = ListOptions(self._namespace, label_selector=LABEL)
            maps = (await self._client.list(CONFIGMAPS, selection, into=ConfigMap)).items
        except KubeError as error:
            log.warning("what others use of the contract was not read", reason=str(error))
        else:
            self._read(maps)
        now = clock.now()
        fresh = {
            name: use
            for name, (at, use) in self._others.items()
            if -_SKEW_SECONDS <= now - at <= FRESH_SECONDS
        }
        contracted.see_uses(fresh, is_silent=is_silent)

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
            "metadata": {"name": f"{_PREFIX}{self._name}", "namespace": self._namespace, "labels": labels},
            "data": {_KEY: msgspec.json.encode(use).decode()},
        }
        self._check()
        self._written = None  # until it is known to be there
        try:
            await self._client.create(CONFIGMAPS, document, namespace=self._namespace)
        except AlreadyExists:
            await self._client.update(CONFIGMAPS, document, namespace=self._namespace)
        self._written, self._renewed = (dict(machines), dict(intends)), now

    def _read(self, maps: Iterable[ConfigMap]) -> None:
        uses: dict[str, tuple[float, ClusterUse]] = {}
        for config_map in maps:
            name = config_map.metadata.name
            try:
                cluster, at, use = read_use(config_map)
            except Invalid as error:
                log.warning("use of the contract cannot be read", name=name, reason=str(error))
                continue
            if cluster != self._name:
                uses[cluster] = at, use
        self._others = uses


def read_use(config_map: ConfigMap) -> tuple[str, float, ClusterUse]:
    """The cluster, when it wrote, and what it has. Raises Invalid."""
    text = (config_map.data or {}).get(_KEY, "")
    if not text or len(text) > _BYTES_MAX:
        raise Invalid(f"data.{_KEY}", len(text), f"must be there, and have at most {_BYTES_MAX} bytes")
    try:
        written = decode(msgspec.json.decode(text), WrittenUse)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Invalid(f"data.{_KEY}", text[:40], f"is not JSON: {error}") from None
    if config_map.metadata.name != f"{_PREFIX}{written.cluster}":
        raise Invalid("cluster", written.cluster, "is not the cluster that the ConfigMap is named after")
    at = moment(written.renewed)
    if at is None:
        raise Invalid("renewed", written.renewed, "must be a time")
    use = ClusterUse(machines_of("machines", written.machines), machines_of("intends", written.intends))
    return written.cluster, at, use


def intended(market: Market, records: Iterable[MoveRecord]) -> Counter[BilledKind]:
    """What moves that have no new nodes yet are about to launch."""
    bill = market.bill()
    machines: Counter[BilledKind] = Counter()
    for record in records:
        if bill is None or record.phase not in _LAUNCHING or record.arrived:
            continue
        for new_node in record.move.new_nodes:
            if (kind := bill.kind_of(new_node.pool, new_node.chosen)) is not None:
                machines[kind] += 1
    return machines
