"""Which policy a template belongs to, and what happens when policies come, change and go."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.kube.api.decoding import Object
from karpool.model.kubernetes.api_resources import (
    CLUSTERPROPAGATIONPOLICIES,
    DEPLOYMENTS,
    PROPAGATIONPOLICIES,
    RESOURCEBINDINGS,
)
from karpool_fleet.clusters.clock import run_manual
from karpool_fleet.karmada.propagation.names import CLUSTER_POLICY_ID, POLICY_ID, POLICY_NAME
from karpool_fleet.karmada.propagation.policies import MISMATCH, best, choose, match_policy, priority_of
from tests.fleet.karmada.acting import Fleet, deployment, fleet, policy

NAMED = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
LABELLED = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "labelSelector": {"matchLabels": {"tier": "front"}},
}
ALL = {"apiVersion": "apps/v1", "kind": "Deployment"}


def rules(name: str, *selectors: Object, wide: bool = False, **spec: Any) -> Object:
    made = policy(name, resourceSelectors=list(selectors or (ALL,)), **spec)
    made["metadata"]["uid"] = f"uid-{name}"
    if wide:
        del made["metadata"]["namespace"]
    return made


WEB = {"apiVersion": "apps/v1", "kind": "Deployment", **deployment(labels={"tier": "front"})}


@pytest.mark.parametrize(
    ("policies", "chosen"),
    [
        pytest.param([rules("a"), rules("b", NAMED)], "b", id="a name before everything"),
        pytest.param([rules("a"), rules("b", LABELLED)], "b", id="labels before everything"),
        pytest.param([rules("a", LABELLED), rules("b", NAMED)], "b", id="a name before labels"),
        pytest.param([rules("a", NAMED), rules("b", priority=1)], "b", id="priority before exactness"),
        pytest.param([rules("b"), rules("a")], "a", id="the first name among equals"),
        pytest.param([rules("a", {**ALL, "kind": "Job"})], None, id="another kind"),
        pytest.param([rules("a", {**NAMED, "name": "api"})], None, id="another name"),
        pytest.param(
            [rules("a", {**NAMED, "labelSelector": {"matchLabels": {"no": "no"}}})], "a", id="a name alone"
        ),
    ],
)
def test_the_first_policy_among_those_that_match(policies: list[Object], chosen: str | None) -> None:
    found = best(policies, WEB)
    assert (found["metadata"]["name"] if found else None) == chosen


def test_a_policy_of_the_namespace_comes_before_a_cluster_wide_one() -> None:
    own, wide = rules("own"), rules("wide", NAMED, wide=True, priority=100)
    assert choose(WEB, None, [own], [wide]) is own


def test_a_policy_speaks_for_its_own_namespace_only() -> None:
    other = rules("other", {**ALL, "namespace": "default"})
    other["metadata"]["namespace"] = "shop"
    assert match_policy(other, WEB) == MISMATCH


_policies = st.lists(
    st.builds(
        lambda name, selector, priority, preemption: rules(
            f"p{name}", selector, priority=priority, preemption=preemption
        ),
        st.integers(0, 99),
        st.sampled_from([ALL, LABELLED, NAMED, {**NAMED, "name": "api"}]),
        st.integers(-2, 2),
        st.sampled_from(["Always", "Never"]),
    ),
    max_size=6,
    unique_by=lambda each: str(each["metadata"]["name"]),
)


@given(_policies, st.data())
def test_a_claim_is_kept_unless_a_higher_priority_may_preempt(policies: list[Object], data: Any) -> None:
    matching = [each for each in policies if match_policy(each, WEB) > MISMATCH]
    claimed = data.draw(st.sampled_from(policies)) if policies else None

    chosen = choose(WEB, claimed, policies, [])

    held = priority_of(claimed) if claimed is not None else 0
    if not matching:
        assert chosen is None
    elif claimed is None or claimed not in matching:
        assert chosen is not None
        assert priority_of(chosen) == max(map(priority_of, matching))
    elif chosen is not claimed:
        assert chosen is not None
        assert chosen["spec"]["preemption"] == "Always"
        assert priority_of(chosen) > held
    else:
        above = [each for each in matching if priority_of(each) > held]
        assert all(each["spec"]["preemption"] == "Never" for each in above)


async def claimant(world: Fleet) -> tuple[str | None, str | None]:
    """Who the template and its binding say they belong to."""
    found = await world.admin.get(DEPLOYMENTS, "web", namespace="default")
    bound = await world.binding("web-deployment")
    notes = (each["metadata"].get("annotations") or {} for each in (found, bound))
    first, second = (note.get(POLICY_NAME) for note in notes)
    return first, second


@pytest.mark.long
def test_of_two_policies_the_higher_priority_wins_and_keeps_its_claim() -> None:
    async def story() -> list[tuple[str | None, str | None]]:
        seen = []
        async with fleet("east", lively=False) as world:
            for name, priority in (("low", 1), ("high", 5)):
                await world.admin.create(PROPAGATIONPOLICIES, rules(name, priority=priority))
            await world.admin.create(DEPLOYMENTS, deployment())
            await asyncio.sleep(2)
            seen.append(await claimant(world))
            await world.admin.create(PROPAGATIONPOLICIES, rules("higher", priority=9))
            await asyncio.sleep(2)
            seen.append(await claimant(world))
            await world.admin.create(PROPAGATIONPOLICIES, rules("taker", priority=9, preemption="Always"))
            await asyncio.sleep(2)
            seen.append(await claimant(world))
        return seen

    assert run_manual(story()) == [("high", "high"), ("high", "high"), ("taker", "taker")]


def test_a_deleted_policy_gives_its_templates_to_the_next_and_removes_nothing() -> None:
    async def story() -> tuple[tuple[str | None, str | None], Object, dict[str, int], Object]:
        async with fleet("east", lively=False) as world:
            for name, priority in (("low", 1), ("high", 5)):
                await world.admin.create(PROPAGATIONPOLICIES, rules(name, priority=priority))
            await world.admin.create(DEPLOYMENTS, deployment())
            await asyncio.sleep(2)
            await world.admin.delete(PROPAGATIONPOLICIES, "high", namespace="default")
            await asyncio.sleep(2)
            then = await claimant(world)
            await world.admin.delete(PROPAGATIONPOLICIES, "low", namespace="default")
            await asyncio.sleep(2)
            left = await world.admin.get(DEPLOYMENTS, "web", namespace="default")
            return then, left, await world.replicas(), await world.binding("web-deployment")

    then, left, replicas, binding = run_manual(story())
    assert then == ("low", "low")
    assert POLICY_ID not in (left["metadata"].get("labels") or {})
    assert POLICY_ID not in binding["metadata"]["labels"]
    assert replicas == {"east": 4}


def test_a_changed_policy_changes_its_bindings_and_lets_go_of_what_it_no_longer_means() -> None:
    async def story() -> tuple[Object, Object]:
        async with fleet("east", "west", lively=False) as world:
            await world.admin.create(PROPAGATIONPOLICIES, rules("web", NAMED))
            await world.admin.create(DEPLOYMENTS, deployment())
            await asyncio.sleep(2)
            placement = {"clusterAffinity": {"clusterNames": ["west"]}}
            await world.admin.patch(
                PROPAGATIONPOLICIES, "web", {"spec": {"placement": placement}}, namespace="default"
            )
            await asyncio.sleep(2)
            moved = await world.binding("web-deployment")
            assert await world.replicas() == {"west": 4}
            other = [{**NAMED, "name": "api"}]
            await world.admin.patch(
                PROPAGATIONPOLICIES, "web", {"spec": {"resourceSelectors": other}}, namespace="default"
            )
            await asyncio.sleep(2)
            return moved, await world.admin.get(DEPLOYMENTS, "web", namespace="default")

    moved, left = run_manual(story())
    assert moved["spec"]["clusters"] == [{"name": "west", "replicas": 4}]
    assert POLICY_ID not in (left["metadata"].get("labels") or {})


def test_a_cluster_wide_policy_claims_what_no_other_does() -> None:
    async def story() -> tuple[Object, Object]:
        async with fleet("east", lively=False) as world:
            await world.admin.create(CLUSTERPROPAGATIONPOLICIES, rules("wide", wide=True))
            await world.admin.create(DEPLOYMENTS, deployment())
            await asyncio.sleep(2)
            before = await world.binding("web-deployment")
            await world.admin.create(PROPAGATIONPOLICIES, rules("own", preemption="Always"))
            await asyncio.sleep(2)
            return before, await world.binding("web-deployment")

    before, after = run_manual(story())
    assert CLUSTER_POLICY_ID in before["metadata"]["labels"]
    assert POLICY_ID not in before["metadata"]["labels"]
    assert CLUSTER_POLICY_ID not in after["metadata"]["labels"]
    assert POLICY_ID in after["metadata"]["labels"]


def test_status_updates_of_a_template_do_not_touch_its_binding() -> None:
    async def story() -> tuple[int, int]:
        async with fleet("east") as world:
            await world.admin.create(PROPAGATIONPOLICIES, rules("web", NAMED))
            await world.admin.create(DEPLOYMENTS, deployment())
            await asyncio.sleep(1)
            early = (await world.binding("web-deployment"))["metadata"]["generation"]
            await asyncio.sleep(20)
            assert (await world.admin.get(DEPLOYMENTS, "web", namespace="default"))["status"][
                "readyReplicas"
            ] == 4
            return early, (await world.binding("web-deployment"))["metadata"]["generation"]

    early, late = run_manual(story())
    assert early == late


def test_a_suspended_scheduling_survives_the_detector() -> None:
    async def story() -> Object:
        async with fleet("east", lively=False) as world:
            await world.admin.create(PROPAGATIONPOLICIES, rules("web", NAMED))
            await world.admin.create(DEPLOYMENTS, deployment())
            await asyncio.sleep(1)
            held = {"spec": {"suspension": {"scheduling": True}}}
            await world.admin.patch(RESOURCEBINDINGS, "web-deployment", held, namespace="default")
            await world.admin.scale(DEPLOYMENTS, "web", 9, namespace="default")
            await asyncio.sleep(2)
            return await world.binding("web-deployment")

    spec = run_manual(story())["spec"]
    assert spec["replicas"] == 9
    assert spec["suspension"] == {"scheduling": True}
