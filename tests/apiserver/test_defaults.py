"""What the server fills in that no schema could."""

import pytest

from karpool_fleet.apiserver.objects.defaults import qos_class
from tests.apiserver.serving import PODS, Client, pod

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
SERVICES = "/api/v1/namespaces/default/services"


async def test_a_pod_is_born_pending_with_its_class_of_service(client: Client) -> None:
    made = await client.create(PODS, pod("p"))
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    spec = made["spec"]
    assert (spec["restartPolicy"], spec["schedulerName"]) == ("Always", "default-scheduler")
    assert (spec["priority"], spec["serviceAccountName"]) == (0, "default")
    assert [t["tolerationSeconds"] for t in spec["tolerations"]] == [300, 300]


async def test_tolerations_of_the_pod_itself_are_respected(client: Client) -> None:
    everything = [{"operator": "Exists"}]
    assert (await client.create(PODS, pod("p", tolerations=everything)))["spec"]["tolerations"] == everything


async def test_priorities_come_from_their_class(client: Client) -> None:
    critical = await client.create(PODS, pod("p", priorityClassName="system-node-critical"))
    assert critical["spec"]["priority"] == 2_000_001_000
    await client.refused(403, "Forbidden", "POST", PODS, pod("q", priorityClassName="unknown"))
    usual = {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True, "preemptionPolicy": "Never"}
    await client.create(CLASSES, usual)
    made = (await client.create(PODS, pod("r")))["spec"]
    assert (made["priority"], made["priorityClassName"], made["preemptionPolicy"]) == (7, "usual", "Never")


async def test_services_get_addresses_and_keep_them(client: Client) -> None:
    body = {"metadata": {"name": "a"}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}
    first = (await client.create(SERVICES, body))["spec"]
    second = (await client.create(SERVICES, {**body, "metadata": {"name": "b"}}))["spec"]
    assert first["clusterIP"] != second["clusterIP"] and first["clusterIPs"] == [first["clusterIP"]]
    assert 30000 <= first["ports"][0]["nodePort"] < 32768
    kept = await client.update(f"{SERVICES}/a", body)
    assert kept["spec"]["clusterIP"] == first["clusterIP"]
    other = {"spec": {"clusterIP": "10.96.9.9", "clusterIPs": ["10.96.9.9"]}}
    await client.refused(422, "Invalid", "PATCH", f"{SERVICES}/a", other, kind="application/merge-patch+json")


async def test_a_job_selects_its_own_pods(client: Client) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    path = "/apis/batch/v1/namespaces/default/jobs"
    made = await client.create(path, {"metadata": {"name": "j"}, "spec": {"template": template}})
    labels = made["spec"]["selector"]["matchLabels"]
    assert labels.items() <= made["spec"]["template"]["metadata"]["labels"].items()
    assert made["metadata"]["uid"] in labels.values()


@pytest.mark.parametrize(
    ("expected", "resources"),
    [
        ("BestEffort", [{}]),
        ("Burstable", [{"requests": {"cpu": "1"}}]),
        ("Burstable", [{"limits": {"cpu": "1"}}]),
        ("Guaranteed", [{"limits": {"cpu": "1", "memory": "1Gi"}}]),
        ("Burstable", [{"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}]),
        ("Burstable", [{"limits": {"cpu": "1", "memory": "1Gi"}}, {}]),
        ("BestEffort", [{"requests": {"example.com/gpu": "1"}}]),
    ],
)
def test_classes_of_service(expected: str, resources: list[dict]) -> None:
    assert qos_class({"containers": [{"resources": resource} for resource in resources]}) == expected
