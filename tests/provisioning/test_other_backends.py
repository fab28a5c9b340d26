"""CapacityBuffers and ProvisioningRequests ask for the same with objects of their own APIs.

The autoscalers that answer are played by the test: no embedded one has these APIs.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from karpool.kube.api.client import Client
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import PODS, PODTEMPLATES
from karpool.model.kubernetes.times import rfc3339
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.placeholders.backend import ProvisioningBackend, RequestResult
from karpool.provisioning.placeholders.placeholder import Placeholder, PlaceholderState
from karpool.provisioning.placeholders.prerequisites import ensure_prerequisites
from karpool.provisioning.placeholders.registry import backend
from karpool.provisioning.placeholders.template_backend import GROUP, TemplateBackend
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from tests.provisioning.acting import ACCELERATED, SETTINGS, ask, followed

KINDS = {"capacity-buffer": "CapacityBuffer", "provisioning-request": "ProvisioningRequest"}
Object = dict[str, Any]


def crd(kind: str, version: str = "v1beta1") -> Object:
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    return {
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


@asynccontextmanager
async def cluster(*kinds: str) -> AsyncIterator[tuple[EmbeddedCluster, Client]]:
    async with EmbeddedCluster("east", clock=LoopClock(), crds=[crd(kind) for kind in kinds]) as found:
        client = found.client("desk")
        assert await ensure_prerequisites(client, SETTINGS) == []
        yield found, client


def play(
    name: str, story: Callable[[EmbeddedCluster, ProvisioningBackend], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        async with cluster(*KINDS.values()) as (found, client):
            chosen = await backend(name, client, SETTINGS, ClaimMonitor(found.clock))
            async with followed(client, chosen.watches):
                await story(found, chosen)

    run_manual(main())


async def seen(found: EmbeddedCluster, chosen: ProvisioningBackend, count: int) -> list[Placeholder]:
    for _ in range(100):
        if len(placeholders := list(chosen.placeholders())) == count:
            return placeholders
        await found.clock.sleep(0.1)
    raise AssertionError(f"not {count} placeholders: {chosen.placeholders()}")


async def answer(
    found: EmbeddedCluster, chosen: ProvisioningBackend, *said: tuple[str, str, str]
) -> Placeholder:
    """What the autoscaler would write, and the placeholder as it is seen then."""
    (one,) = await seen(found, chosen, 1)
    now = rfc3339(found.clock.now())
    conditions = [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": f"because {reason}",
            "lastTransitionTime": now,
        }
        for kind, status, reason in said
    ]
    admin = found.client("autoscaler")
    await admin.patch(
        one.resource,
        one.key.name,
        {"status": {"conditions": conditions}},
        namespace=one.key.namespace,
        subresource="status",
    )
    await found.clock.sleep(1)
    (one,) = chosen.placeholders()
    return one


@pytest.mark.parametrize("name", KINDS)
def test_each_unit_is_an_object_and_a_template_and_no_pod(name: str) -> None:
    async def story(found: EmbeddedCluster, chosen: ProvisioningBackend) -> None:
        assert await chosen.request(ask(units=3), ACCELERATED, (0, 2)) == RequestResult(created=(0, 2))
        assert await chosen.request(ask(units=3), ACCELERATED) == RequestResult(created=(1,), present=(0, 2))
        placeholders = await seen(found, chosen, 3)
        assert {placeholder.index for placeholder in placeholders} == {0, 1, 2}
        admin = found.client("admin")
        templates = {each["metadata"]["name"]: each for each in (await admin.list(PODTEMPLATES)).items}
        assert set(templates) == {each.key.name for each in placeholders}
        spec = templates[placeholders[0].key.name]["template"]["spec"]
        assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
        assert (await admin.list(PODS)).items == []

    play(name, story)


@pytest.mark.parametrize("name", KINDS)
def test_withdrawing_leaves_nothing_even_when_it_stops_half_way(name: str) -> None:
    async def story(found: EmbeddedCluster, chosen: ProvisioningBackend) -> None:
        assert isinstance(chosen, TemplateBackend)
        await chosen.request(ask(units=2), ACCELERATED)
        first, second = await seen(found, chosen, 2)
        fault = found.faults.fail("desk", status=503, method="DELETE", path=chosen.resource.plural)
        with pytest.raises(Exception, match="503"):
            await chosen.withdraw(first)
        assert len(chosen.placeholders()) == 2, "what is left is still seen"
        fault.end()
        for each in (first, second, second):
            await chosen.withdraw(each)
        await seen(found, chosen, 0)
        admin = found.client("admin")
        assert (await admin.list(PODTEMPLATES)).items == []

    play(name, story)


def test_a_buffer_is_there_when_everything_fits_existing_nodes() -> None:
    async def story(found: EmbeddedCluster, chosen: ProvisioningBackend) -> None:
        await chosen.request(ask(), ACCELERATED)
        ready = ("ReadyForProvisioning", "True", "Resolved")
        assert (await answer(found, chosen, ready)).outlook is PlaceholderState.WAITING
        coming = await answer(found, chosen, ready, ("Provisioning", "False", "RequiresNewCapacity"))
        assert coming.outlook is PlaceholderState.COMING
        there = await answer(found, chosen, ready, ("Provisioning", "True", "FitsExistingCapacity"))
        assert there.outlook is PlaceholderState.THERE and "FitsExistingCapacity" in there.message
        refused = await answer(found, chosen, ("ReadyForProvisioning", "False", "TemplateNotFound"))
        assert refused.outlook is PlaceholderState.REFUSED

    play("capacity-buffer", story)


def test_a_provisioning_request_ends_when_it_fails_or_its_booking_expires() -> None:
    async def story(found: EmbeddedCluster, chosen: ProvisioningBackend) -> None:
        await chosen.request(ask(), ACCELERATED)
        accepted = ("Accepted", "True", "Accepted")
        assert (await answer(found, chosen)).outlook is PlaceholderState.WAITING
        assert (await answer(found, chosen, accepted)).outlook is PlaceholderState.COMING
        provisioned = ("Provisioned", "True", "Provisioned")
        assert (await answer(found, chosen, accepted, provisioned)).outlook is PlaceholderState.THERE
        for end in ("BookingExpired", "CapacityRevoked", "Failed"):
            ended = await answer(found, chosen, accepted, provisioned, (end, "True", end))
            assert ended.outlook is PlaceholderState.ENDED and ended.message.startswith(f"{end}: ")

    play("provisioning-request", story)


def test_a_backend_whose_api_is_not_there_says_what_to_do() -> None:
    async def main() -> None:
        async with cluster("CapacityBuffer") as (found, client):
            monitor = ClaimMonitor(found.clock)
            assert (await backend("capacity-buffer", client, SETTINGS, monitor)).name == "capacity-buffer"
            with pytest.raises(Invalid, match=r"serves no ProvisioningRequest.*use smart-pod"):
                await backend("provisioning-request", client, SETTINGS, monitor)

    run_manual(main())
