"""What clusters under one contract publish for each other: one ConfigMap each, in a shared namespace.

Consolidators write them; components that price nodes read them where the contract says (`sharedIn`). An entry
older than five minutes is ignored, because the use of that cluster is then unknown.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog

from karpool.kube.api.client import Client
from karpool.kube.clock import Clock, RealClock
from karpool.kube.config import kubeconfig
from karpool.kube.transport.http import HttpTransport
from karpool.model.contracts.contract import MeetingPlace
from karpool.model.contracts.contracted_prices import AskUses, ClusterUse, HeardUses
from karpool.model.contracts.written_machines import WrittenMachines, machines_of
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import CONFIGMAPS, ListOptions
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.model.kubernetes.meta import Wire, decode
from karpool.model.kubernetes.times import moment
from karpool.provisioning.latest_answer import TIMEOUT_SECONDS, LatestAnswer

log = structlog.get_logger(__name__)
LABEL = "contracts.karpool.dev/use"
PREFIX = "karpool-contract-use-"
KEY = "use"
FRESH_SECONDS = 300.0  # longer than the restart of a controller
SKEW_SECONDS = 60.0  # clock skew
_BYTES_MAX = 900_000
# Controllers write after each change, and every minute.
_ASK_AGAIN_SECONDS = 15.0

UsesOfOthers = dict[str, tuple[float, ClusterUse]]  # by cluster, with the time of writing


class WrittenUse(Wire, frozen=True):
    cluster: str
    renewed: str
    machines: tuple[WrittenMachines, ...] = ()
    intends: tuple[WrittenMachines, ...] = ()


def connected(place: MeetingPlace, clock: Clock, user_agent: str) -> Client:
    """Return a client for the shared namespace. Raises ConfigError."""
    config = kubeconfig.load(Path(place.kubeconfig) if place.kubeconfig else None, context=place.context)
    transport = HttpTransport(config, clock)
    return Client(transport, clock, name=config.name, user_agent=user_agent, timeout=TIMEOUT_SECONDS)


async def list_uses(client: Client, namespace: str) -> UsesOfOthers:
    """List the uses of all clusters. Raises KubeError. Unreadable entries are logged and skipped."""
    selection = ListOptions(namespace, label_selector=LABEL)
    return _read_uses((await client.list(CONFIGMAPS, selection, into=ConfigMap)).items)


def fresh(uses: UsesOfOthers, now: float) -> dict[str, ClusterUse]:
    return {cluster: use for cluster, (at, use) in uses.items() if -SKEW_SECONDS <= now - at <= FRESH_SECONDS}


def use_asker() -> AskUses:
    """Return a function that reads the uses; one for all clusters of a process."""
    time = RealClock()
    answers: dict[MeetingPlace, LatestAnswer[UsesOfOthers]] = {}

    def ask(place: MeetingPlace) -> HeardUses:
        if place not in answers:
            answers.clear()  # the contract has changed
            answers[place] = LatestAnswer(lambda: _ask(place, time), time, every_seconds=_ASK_AGAIN_SECONDS)
        uses = answers[place].within(FRESH_SECONDS)
        if uses is None:
            why = f"shared namespace {place.namespace}: {answers[place].failure}"
            return HeardUses({}, (why,))
        now = time.now()
        heard = fresh(uses, now)
        old = [
            f"what {cluster} wrote is {now - at:.0f} s old, and counts for {FRESH_SECONDS:.0f} s"
            for cluster, (at, _) in sorted(uses.items())
            if cluster not in heard
        ]
        return HeardUses(heard, tuple(old))

    return ask


def _ask(place: MeetingPlace, clock: Clock) -> UsesOfOthers:
    async def listed() -> UsesOfOthers:
        async with connected(place, clock, "karpool") as client:
            return await asyncio.wait_for(list_uses(client, place.namespace), TIMEOUT_SECONDS)

    return asyncio.run(listed())


def _read_uses(maps: Iterable[ConfigMap]) -> UsesOfOthers:
    uses: UsesOfOthers = {}
    for config_map in maps:
        try:
            cluster, at, use = read_use(config_map)
        except Invalid as error:
            name = config_map.metadata.name
            log.warning("use of the contract cannot be read", name=name, reason=str(error))
            continue
        uses[cluster] = at, use
    return uses


def read_use(config_map: ConfigMap) -> tuple[str, float, ClusterUse]:
    """Return the cluster, the time of writing, and its use. Raises Invalid."""
    text = (config_map.data or {}).get(KEY, "")
    if not text or len(text) > _BYTES_MAX:
        raise Invalid(f"data.{KEY}", len(text), f"must be there, and have at most {_BYTES_MAX} bytes")
    try:
        written = decode(msgspec.json.decode(text), WrittenUse)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Invalid(f"data.{KEY}", text[:40], f"is not JSON: {error}") from None
    if config_map.metadata.name != f"{PREFIX}{written.cluster}":
        raise Invalid("cluster", written.cluster, "is not the cluster that the ConfigMap is named after")
    at = moment(written.renewed)
    if at is None:
        raise Invalid("renewed", written.renewed, "must be a time")
    use = ClusterUse(machines_of("machines", written.machines), machines_of("intends", written.intends))
    return written.cluster, at, use
