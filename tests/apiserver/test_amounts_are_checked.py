"""Amounts that a real API server refuses are refused here too."""

import pytest

from tests.apiserver.serving import Client

PODS = "/api/v1/namespaces/default/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


@pytest.mark.parametrize(
    "resources",
    [
        {"requests": {"cpu": "-1"}},
        {"limits": {"memory": "-1Gi"}},
        {"requests": {"cpu": "2"}, "limits": {"cpu": "1999m"}},
    ],
)
async def test_a_pod_cannot_ask_for_less_than_nothing_or_more_than_its_limit(
    client: Client, resources: dict[str, dict[str, str]]
) -> None:
    pod = {
        "metadata": {"name": "bad"},
        "spec": {"containers": [{"name": "main", "image": "none", "resources": resources}]},
    }
    await client.refused(422, "Invalid", "POST", PODS, pod)


async def test_a_lease_lasts(client: Client) -> None:
    lease = {"metadata": {"name": "bad"}, "spec": {"leaseDurationSeconds": 0}}
    await client.refused(422, "Invalid", "POST", LEASES, lease)
