"""What a pod takes from its node, case by case as kube-scheduler counts it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.errors import Invalid
from karpool.model.kubernetes.pod import effective_requests
from tests.model.build import Raw, container, pod

GI = 2**30


def asked(spec_containers: list[Raw], **more: Any) -> dict[str, int]:
    return effective_requests(pod("web", *spec_containers, **more))


@pytest.mark.parametrize(
    ("containers", "spec", "expected"),
    [
        pytest.param([], {}, {}, id="nothing"),
        pytest.param(
            [container(cpu="100m"), container("b", cpu="0.5")], {}, {"cpu": 600}, id="containers add up"
        ),
        pytest.param(
            [container(cpu="1")],
            {"initContainers": [container("i", cpu="3")]},
            {"cpu": 3000},
            id="large init",
        ),
        pytest.param(
            [container(cpu="2")],
            {"initContainers": [container("i", cpu="1")]},
            {"cpu": 2000},
            id="small init",
        ),
        pytest.param(
            [container(cpu="1")],
            {"initContainers": [container("i", cpu="2"), container("j", cpu="3")]},
            {"cpu": 3000},
            id="init containers run one by one",
        ),
        pytest.param(
            [container(cpu="1", memory="1Gi")],
            {"initContainers": [container("i", cpu="2", memory="512Mi")]},
            {"cpu": 2000, "memory": GI},
            id="each resource by itself",
        ),
        pytest.param(
            [container(cpu="1")],
            {"initContainers": [container("s", cpu="2", restart="Always")]},
            {"cpu": 3000},
            id="a sidecar runs beside the containers",
        ),
        pytest.param(
            [container(cpu="1")],
            {"initContainers": [container("s", cpu="2", restart="Always"), container("i", cpu="4")]},
            {"cpu": 6000},
            id="an init container runs beside the sidecars before it",
        ),
        pytest.param(
            [container(cpu="1")],
            {"initContainers": [container("i", cpu="4"), container("s", cpu="2", restart="Always")]},
            {"cpu": 4000},
            id="and not beside those after it",
        ),
        pytest.param(
            [container(cpu="1")],
            {
                "initContainers": [
                    container("s", cpu="1", restart="Always"),
                    container("i", cpu="5"),
                    container("t", cpu="3", restart="Always"),
                    container("j", cpu="1"),
                ]
            },
            {"cpu": 6000},
            id="several sidecars and init containers",
        ),
        pytest.param(
            [container(cpu="1")],
            {"initContainers": [container("i", cpu="2")], "overhead": {"cpu": "250m", "memory": "1Gi"}},
            {"cpu": 2250, "memory": GI},
            id="overhead comes on top",
        ),
        pytest.param(
            [container(cpu="1", memory="1Gi", nvidia_com="1")],
            {"resources": {"requests": {"cpu": "4"}}},
            {"cpu": 4000, "memory": GI},
            id="pod-level resources speak for themselves",
        ),
        pytest.param(
            [container(cpu="8")],
            {
                "resources": {"requests": {"cpu": "4", "nvidia.com/gpu": "1", "hugepages-2Mi": "4Mi"}},
                "overhead": {"cpu": "1"},
            },
            {"cpu": 5000, "hugepages-2Mi": 4 * 2**20},
            id="pod-level counts less than containers, and for cpu, memory and huge pages only",
        ),
        pytest.param([container(storage="1Gi")], {}, {}, id="storage is not taken from a node"),
        pytest.param(
            [container(ephemeral_storage="1Gi")], {}, {"ephemeral-storage": GI}, id="ephemeral storage is"
        ),
        pytest.param(
            [container(memory="9Ei"), container("b", memory="9Ei")],
            {},
            {"memory": 2 * (2**63 - 1)},
            id="huge",
        ),
    ],
)
def test_requests(containers: list[Raw], spec: Raw, expected: dict[str, int]) -> None:
    assert asked(containers, **spec) == expected


def resized(status: Raw, *, reason: str = "", request: str = "1") -> dict[str, int]:
    conditions = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    statuses = [{"name": "main", **status}]
    return effective_requests(
        pod("web", container(cpu=request), status={"containerStatuses": statuses, "conditions": conditions})
    )


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        pytest.param({}, "", 1000, id="no status: what is wanted"),
        pytest.param({"allocatedResources": {"cpu": "3"}}, "", 3000, id="shrinking: what is allocated"),
        pytest.param({"resources": {"requests": {"cpu": "2"}}}, "", 2000, id="shrinking: what still runs"),
        pytest.param({"allocatedResources": {"cpu": "500m"}}, "", 1000, id="growing: what is wanted"),
        pytest.param(
            {"allocatedResources": {"cpu": "500m"}}, "Deferred", 1000, id="deferred growth is kept room"
        ),
        pytest.param(
            {"allocatedResources": {"cpu": "500m"}}, "Infeasible", 500, id="infeasible: never granted"
        ),
        pytest.param(
            {"allocatedResources": {"cpu": "200m"}, "resources": {"requests": {"cpu": "700m"}}},
            "Infeasible",
            700,
            id="infeasible: the larger of allocated and running",
        ),
    ],
)
def test_while_a_resize_is_under_way_the_larger_amount_counts(
    status: Raw, reason: str, expected: int
) -> None:
    assert resized(status, reason=reason) == {"cpu": expected}


def test_a_sidecar_is_resized_like_a_container() -> None:
    found = effective_requests(
        pod(
            "web",
            container(cpu="1"),
            initContainers=[container("s", cpu="1", restart="Always")],
            status={"initContainerStatuses": [{"name": "s", "allocatedResources": {"cpu": "4"}}]},
        )
    )

    assert found == {"cpu": 5000}


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (
            {"containers": [container(cpu="1"), container("b", cpu="x")]},
            "spec.containers[1].resources.requests.cpu",
        ),
        ({"initContainers": [container(memory="1Gib")]}, "spec.initContainers[0].resources.requests.memory"),
        ({"overhead": {"cpu": "--1"}}, "spec.overhead.cpu"),
        ({"resources": {"requests": {"memory": "a"}}}, "spec.resources.requests.memory"),
    ],
)
def test_a_bad_quantity_is_named_with_its_path_and_value(spec: Raw, path: str) -> None:
    with pytest.raises(Invalid) as caught:
        effective_requests(pod("web", **spec))

    assert caught.value.path == path
    assert str(caught.value.value) in str(caught.value)


@st.composite
def phases(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, bool]]]:
    containers = draw(st.lists(st.integers(0, 20), max_size=3))
    inits = draw(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=4))
    return containers, inits


def highest_at_any_moment(containers: list[int], inits: list[tuple[int, bool]]) -> int:
    """Play the start-up through: every init container in turn, then everything together."""
    running, peak = 0, 0
    for amount, stays in inits:
        peak = max(peak, running + amount)
        running += amount if stays else 0
    return max(peak, running + sum(containers))


@given(phases())
def test_a_pod_needs_the_most_it_uses_at_any_moment(case: tuple[list[int], list[tuple[int, bool]]]) -> None:
    containers, inits = case
    made = pod(
        "web",
        *(container(f"c{n}", cpu=f"{amount}m") for n, amount in enumerate(containers)),
        initContainers=[
            container(f"i{n}", cpu=f"{amount}m", restart="Always" if stays else "")
            for n, (amount, stays) in enumerate(inits)
        ],
    )

    assert effective_requests(made).get("cpu", 0) == highest_at_any_moment(containers, inits)
