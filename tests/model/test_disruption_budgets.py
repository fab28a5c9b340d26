"""What budgets allow, as the disruption controller computes it and Karpenter reads it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import (
    CompiledPdb,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    allowance,
    blocking_budget,
    budget_of,
    scaled,
)
from tests.model.build import Raw, pod


def budget(name: str = "web", allowed: int = 0, selector: Raw | None = None, **spec: Any) -> CompiledPdb:
    chosen = {"matchLabels": {"app": "web"}} if selector is None else selector
    return budget_of(
        decode(
            {
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"selector": chosen, **spec},
                "status": {"disruptionsAllowed": allowed},
            },
            PodDisruptionBudget,
        )
    )


@pytest.mark.parametrize(
    ("spec", "pods", "replicas", "healthy", "expected"),
    [
        pytest.param({"minAvailable": 2}, 3, 9, 3, (3, 2, 1), id="at least a number, of the pods there are"),
        pytest.param({"minAvailable": 5}, 3, 3, 3, (3, 5, 0), id="more than there are"),
        pytest.param(
            {"minAvailable": "50%"}, 3, 5, 5, (5, 3, 2), id="at least a part, of the replicas, rounded up"
        ),
        pytest.param({"minAvailable": "100%"}, 3, 3, 3, (3, 3, 0), id="all of them"),
        pytest.param({"minAvailable": "0%"}, 3, 3, 3, (3, 0, 3), id="none of them"),
        pytest.param({"maxUnavailable": 1}, 3, 3, 3, (3, 2, 1), id="at most a number"),
        pytest.param({"maxUnavailable": 1}, 3, 3, 2, (3, 2, 0), id="one is down already"),
        pytest.param({"maxUnavailable": "10%"}, 5, 5, 5, (5, 4, 1), id="at most a part, rounded up"),
        pytest.param({"maxUnavailable": 0}, 3, 3, 3, (3, 3, 0), id="none may go"),
        pytest.param({"maxUnavailable": 10}, 3, 3, 3, (3, 0, 3), id="all may go"),
        pytest.param({"maxUnavailable": 1}, 0, 0, 0, (0, 0, 0), id="no pods, nothing allowed"),
        pytest.param({"minAvailable": 0}, 0, 0, 0, (0, 0, 0), id="no pods and nothing to keep"),
        pytest.param(
            {"minAvailable": 1, "maxUnavailable": 1}, 3, 3, 3, (3, 2, 1), id="maxUnavailable is asked first"
        ),
    ],
)
def test_allowances(
    spec: Raw, pods: int, replicas: int, healthy: int, expected: tuple[int, int, int]
) -> None:
    found = allowance(decode(spec, PodDisruptionBudgetSpec), pods=pods, replicas=replicas, healthy=healthy)

    assert found == expected


@given(st.integers(0, 100), st.integers(0, 50), st.data())
def test_what_is_allowed_never_goes_below_what_is_desired(
    percent: int, replicas: int, data: st.DataObject
) -> None:
    healthy = data.draw(st.integers(0, replicas))
    for name in ("min_available", "max_unavailable"):
        found = allowance(
            PodDisruptionBudgetSpec(**{name: f"{percent}%"}),
            pods=replicas,
            replicas=replicas,
            healthy=healthy,
        )
        assert 0 <= found.disruptions <= healthy
        assert found.disruptions == 0 or healthy - found.disruptions >= found.desired_healthy


@pytest.mark.parametrize(
    ("amount", "up", "down"), [("25%", 2, 1), ("50%", 3, 2), ("100%", 5, 5), ("0%", 0, 0), (7, 7, 7)]
)
def test_percentages_round_the_way_that_is_asked_for(amount: int | str, up: int, down: int) -> None:
    assert scaled(amount, 5, "spec.x") == up
    assert scaled(amount, 5, "spec.x", down=True) == down


@pytest.mark.parametrize("amount", [-1, "x", "10", "-5%", "5.5%", "%", "9999999999%"])
@pytest.mark.parametrize("field", ["minAvailable", "maxUnavailable"])
def test_a_wrong_amount_is_named(field: str, amount: object) -> None:
    with pytest.raises(Invalid) as caught:
        budget(**{field: amount})

    assert caught.value.path == f"spec.{field}"
    assert caught.value.value == amount


def test_a_wrong_selector_is_named() -> None:
    with pytest.raises(Invalid, match=r"spec\.selector\.matchExpressions\[0\]\.operator: 'Near'"):
        budget(selector={"matchExpressions": [{"key": "a", "operator": "Near"}]})


def web(**more: Any) -> Pod:
    return pod("web-0", meta={"labels": {"app": "web"}}, **more)


@pytest.mark.parametrize(
    ("budgets", "reason"),
    [
        pytest.param([], None, id="no budget"),
        pytest.param([budget(allowed=1)], None, id="one disruption is left"),
        pytest.param([budget(allowed=0)], "disruption budget web allows no disruption", id="none is left"),
        pytest.param([budget(selector={"matchLabels": {"app": "db"}})], None, id="other pods"),
        pytest.param(
            [budget(selector={})], "disruption budget web allows no disruption", id="empty selector"
        ),
        pytest.param(
            [budget("a", 5), budget("b", 5)], "several disruption budgets select it (a, b)", id="two budgets"
        ),
    ],
)
def test_what_keeps_a_pod_where_it_is(budgets: list[CompiledPdb], reason: str | None) -> None:
    found = blocking_budget(web(), budgets)

    assert (found is None) if reason is None else (found is not None and found.startswith(reason))


def test_a_missing_selector_selects_nothing() -> None:
    made = decode({"metadata": {"name": "x", "namespace": "default"}, "spec": {}}, PodDisruptionBudget)

    assert not budget_of(made).selects(web())


def test_a_budget_stays_in_its_namespace() -> None:
    other = pod("web-0", meta={"labels": {"app": "web"}, "namespace": "other"})

    assert blocking_budget(other, [budget()]) is None


@pytest.mark.parametrize(
    ("policy", "ready", "free"),
    [
        ("AlwaysAllow", "False", True),
        ("AlwaysAllow", "True", False),
        ("AlwaysAllow", "Unknown", False),
        ("IfHealthyBudget", "False", False),
        (None, "False", False),
    ],
)
def test_unready_pods_go_freely_where_the_budget_says_so(policy: str | None, ready: str, free: bool) -> None:
    made = web(status={"conditions": [{"type": "Ready", "status": ready}]})

    assert (blocking_budget(made, [budget(unhealthyPodEvictionPolicy=policy)]) is None) is free


@pytest.mark.parametrize(
    ("spec", "fully"),
    [
        ({"maxUnavailable": 0}, True),
        ({"maxUnavailable": "0%"}, True),
        ({"minAvailable": "100%"}, True),
        ({"maxUnavailable": 1}, False),
        ({"maxUnavailable": "1%"}, False),
        ({"minAvailable": "99%"}, False),
        ({"minAvailable": 100}, False),
        ({}, False),
    ],
)
def test_budgets_that_never_allow_anything(spec: Raw, fully: bool) -> None:
    assert budget(**spec).is_fully_blocking is fully
