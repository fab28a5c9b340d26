"""NodePools are refused where Karpenter refuses them, and mean what they mean to Karpenter."""

from pathlib import Path

import pytest
import yaml

from karpool.cluster.nodes.expected import counted_capacity
from karpool.cluster.nodes.node_facts import claim_facts
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import NodeClaim, NodePool, pool_of, requested, requirements_of
from karpool.model.kubernetes.meta import decode
from karpool.model.requirements import value_set
from karpool.model.taints import Taint
from tests.model.build import Raw, claim, pool, requires

FIXTURES = Path(__file__).parent / "fixtures"


def test_a_pool_offers_its_requirements_its_labels_and_its_own_name() -> None:
    found = pool_of(
        pool(
            "gpu",
            requires("karpenter.k8s.aws/instance-family", "In", "g5", "g6", "p5"),
            requires("karpenter.k8s.aws/instance-family", "NotIn", "p5"),
            requires("beta.kubernetes.io/arch", "In", "amd64"),
            requires("karpenter.k8s.aws/instance-generation", "Gt", "4"),
            labels={"team": "ml"},
        )
    )

    assert found.requirements == {
        "karpenter.k8s.aws/instance-family": value_set("In", ["g5", "g6"]),
        "kubernetes.io/arch": value_set("In", ["amd64"]),
        "karpenter.k8s.aws/instance-generation": value_set("Gte", ["5"]),
        "team": value_set("In", ["ml"]),
        "karpenter.sh/nodepool": value_set("In", ["gpu"]),
        "karpenter.k8s.aws/ec2nodeclass": value_set("In", ["default"]),
    }


def test_limits_are_counted_in_the_units_of_resources() -> None:
    found = pool_of(pool(limits={"cpu": "1.5", "memory": "1Gi", "nodes": "3", "nvidia.com/gpu": 8}))

    assert found.limits == {"cpu": 1500, "memory": 2**30, "nodes": 3, "nvidia.com/gpu": 8}


def test_a_plain_pool_has_the_defaults_of_karpenter() -> None:
    found = pool_of(pool())

    assert (found.weight, found.limits, found.is_static, found.deleting) == (0, {}, False, False)
    assert found.ready
    assert found.is_usable
    assert found.expire_after_seconds == 720 * 3600
    assert found.termination_grace_seconds is None
    assert found.disruption.consolidation_policy == "WhenEmptyOrUnderutilized"
    assert found.disruption.consolidate_after == "0s"
    assert found.disruption.budgets is None


def test_settings_are_read() -> None:
    found = pool_of(
        pool(
            weight=50,
            template={
                "expireAfter": "Never",
                "terminationGracePeriod": "1h30m",
                "taints": [{"key": "gpu", "value": "true", "effect": "NoSchedule"}],
                "startupTaints": [{"key": "starting", "effect": "NoExecute"}],
            },
            disruption={"consolidationPolicy": "Balanced", "consolidateAfter": "5m", "budgets": []},
        )
    )

    assert found.weight == 50
    assert found.expire_after_seconds is None
    assert found.termination_grace_seconds == 5400
    assert found.taints == (Taint(key="gpu", value="true", effect="NoSchedule"),)
    assert found.startup_taints == (Taint(key="starting", effect="NoExecute"),)
    assert found.disruption.budgets == []


@pytest.mark.parametrize(
    ("status", "ready"),
    [
        pytest.param(None, True, id="no status"),
        pytest.param({}, True, id="no conditions"),
        pytest.param({"conditions": [{"type": "Other", "status": "False"}]}, True, id="other conditions"),
        pytest.param({"conditions": [{"type": "Ready", "status": "True"}]}, True, id="ready"),
        pytest.param({"conditions": [{"type": "Ready", "status": "False"}]}, False, id="not ready"),
        pytest.param({"conditions": [{"type": "Ready", "status": "Unknown"}]}, False, id="unknown"),
    ],
)
def test_readiness(status: Raw | None, ready: bool) -> None:
    assert pool_of(pool(status=status)).ready is ready


@pytest.mark.parametrize(
    "unusable",
    [
        pool(replicas=0),
        pool(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        pool(status={"conditions": [{"type": "Ready", "status": "False"}]}),
    ],
    ids=["static", "deleting", "not ready"],
)
def test_pools_that_karpenter_does_not_grow(unusable: NodePool) -> None:
    assert not pool_of(unusable).is_usable


REQUIREMENTS = "spec.template.spec.requirements"
TOO_LONG = "v" * 64


@pytest.mark.parametrize(
    ("made", "path", "value"),
    [
        pytest.param(pool("p", requires("a", "in", "x")), f"{REQUIREMENTS}[0].operator", "in", id="operator"),
        pytest.param(pool("p", requires("a", "In")), f"{REQUIREMENTS}[0].values", [], id="In without values"),
        pytest.param(
            pool("p", requires("a", "Gt", "x")), f"{REQUIREMENTS}[0].values", ["x"], id="Gt of text"
        ),
        pytest.param(
            pool("p", requires("a", "Gt", "1.5")), f"{REQUIREMENTS}[0].values", ["1.5"], id="Gt of a fraction"
        ),
        pytest.param(
            pool("p", requires("a", "Lte", "1", "2")),
            f"{REQUIREMENTS}[0].values",
            ["1", "2"],
            id="Lte of two",
        ),
        pytest.param(
            pool("p", requires("a", "Gt", "-1")), f"{REQUIREMENTS}[0].values", ["-1"], id="Gt of a negative"
        ),
        pytest.param(
            pool("p", requires("a", "Exists", least=0)), f"{REQUIREMENTS}[0].minValues", 0, id="minValues 0"
        ),
        pytest.param(
            pool("p", requires("a", "Exists", least=51)),
            f"{REQUIREMENTS}[0].minValues",
            51,
            id="minValues 51",
        ),
        pytest.param(
            pool("p", requires("a", "In", "x", least=2)),
            f"{REQUIREMENTS}[0].minValues",
            2,
            id="too few values",
        ),
        pytest.param(pool("p", requires("a b", "Exists")), f"{REQUIREMENTS}[0].key", "a b", id="bad key"),
        pytest.param(
            pool("p", requires("a", "In", "${ZONE}")),
            f"{REQUIREMENTS}[0].values[0]",
            "${ZONE}",
            id="placeholder",
        ),
        pytest.param(
            pool("p", requires("a", "NotIn", TOO_LONG)),
            f"{REQUIREMENTS}[0].values[0]",
            TOO_LONG,
            id="long value",
        ),
        pytest.param(
            pool("p", requires("a", "Exists"), requires("karpenter.sh/nodepool", "In", "x")),
            f"{REQUIREMENTS}[1].key",
            "karpenter.sh/nodepool",
            id="the pool's own label",
        ),
        pytest.param(
            pool("p", requires("x.karpenter.sh/y", "Exists")),
            f"{REQUIREMENTS}[0].key",
            "x.karpenter.sh/y",
            id="domain",
        ),
        pytest.param(
            pool("p", requires("kubernetes.io/hostname", "In", "x")),
            f"{REQUIREMENTS}[0].key",
            "kubernetes.io/hostname",
            id="host name",
        ),
        pytest.param(
            pool("p", *[requires("a", "Exists")] * 101), REQUIREMENTS, 101, id="too many requirements"
        ),
        pytest.param(
            pool(labels={"karpenter.sh/x": "y"}),
            "spec.template.metadata.labels",
            "karpenter.sh/x",
            id="label domain",
        ),
        pytest.param(
            pool(labels={"team": TOO_LONG}),
            "spec.template.metadata.labels.team.value",
            TOO_LONG,
            id="label too long",
        ),
        pytest.param(
            pool(labels={f"l{n}": "" for n in range(101)}),
            "spec.template.metadata.labels",
            101,
            id="too many labels",
        ),
        pytest.param(pool(weight=0), "spec.weight", 0, id="weight 0"),
        pytest.param(pool(weight=101), "spec.weight", 101, id="weight 101"),
        pytest.param(pool(limits={"cpu": "lots"}), "spec.limits.cpu", "lots", id="limit"),
        pytest.param(pool(limits={"memory": "-1Gi"}), "spec.limits.memory", "-1Gi", id="negative limit"),
        pytest.param(
            pool(template={"expireAfter": "30d"}), "spec.template.spec.expireAfter", "30d", id="expireAfter"
        ),
        pytest.param(
            pool(template={"terminationGracePeriod": "-1h"}),
            "spec.template.spec.terminationGracePeriod",
            "-1h",
            id="terminationGracePeriod",
        ),
        pytest.param(
            pool(template={"taints": [{"key": "a", "effect": "NoScheduling"}]}),
            "spec.template.spec.taints[0].effect",
            "NoScheduling",
            id="taint effect",
        ),
        pytest.param(
            pool(template={"taints": [{"key": "", "effect": "NoSchedule"}]}),
            "spec.template.spec.taints[0].key",
            "",
            id="taint key",
        ),
        pytest.param(
            pool(
                template={
                    "taints": [{"key": "a", "effect": "NoSchedule"}],
                    "startupTaints": [{"key": "a", "value": "b", "effect": "NoSchedule"}],
                }
            ),
            "spec.template.spec.startupTaints[0].key",
            "a",
            id="the same taint twice",
        ),
    ],
)
def test_what_karpenter_would_refuse_is_named_with_field_and_value(
    made: NodePool, path: str, value: object
) -> None:
    with pytest.raises(Invalid) as caught:
        pool_of(made)

    assert caught.value.path == path
    assert caught.value.value == value


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        pytest.param(requires("a", "NotIn"), value_set("Exists"), id="NotIn of nothing excludes nothing"),
        pytest.param(requires("a", "Exists", "x"), value_set("Exists"), id="Exists ignores values"),
        pytest.param(requires("a", "DoesNotExist", "x"), value_set("DoesNotExist"), id="DoesNotExist, too"),
        pytest.param(
            requires("karpenter.sh/capacity-type", "In", "spot"),
            value_set("In", ["spot"]),
            id="capacity type",
        ),
        pytest.param(requires("a", "In", "x", "y", least=2), value_set("In", ["x", "y"], 2), id="minValues"),
        pytest.param(requires("a", "Lt", "0"), value_set("Lte", ["-1"]), id="Lt zero"),
    ],
)
def test_what_karpenter_accepts_is_accepted(entry: Raw, expected: object) -> None:
    found = pool_of(pool("p", entry))

    assert found.requirements[entry["key"]] == expected


def test_real_world_features_in_one_file() -> None:
    documents = yaml.safe_load_all((FIXTURES / "pools.yaml").read_text())
    pools = [pool_of(decode(document, NodePool)) for document in documents]

    assert [each.name for each in pools] == ["general", "gpu-spot", "fixed"]
    assert pools[1].weight == 60
    assert pools[1].requirements["karpenter.k8s.aws/instance-category"].min_values == 2
    assert pools[1].requirements["topology.kubernetes.io/zone"] == value_set(
        "In", ["eu-west-1a", "eu-west-1b"]
    )
    assert pools[2].is_static


def test_a_claim_goes_from_asked_for_to_a_node() -> None:
    asked = claim({"karpenter.sh/nodepool": "general"})
    launched = claim(conditions={"Launched": "True", "Registered": "Unknown"})
    registered = claim(conditions={"Launched": "True", "Registered": "True", "Initialized": "Unknown"})
    done = claim(conditions={"Launched": "True", "Registered": "True", "Initialized": "True"})

    assert asked.pool_name == "general"
    assert [each.is_launched for each in (asked, launched, registered, done)] == [False, True, True, True]
    assert [each.is_registered for each in (asked, launched, registered, done)] == [False, False, True, True]
    assert [each.is_initialized for each in (asked, launched, registered, done)] == [
        False,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "leaving",
    [
        claim(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        claim(conditions={"InstanceTerminating": "True"}),
    ],
)
def test_a_claim_that_is_leaving_is_deleting(leaving: NodeClaim) -> None:
    assert leaving.is_deleting


def test_the_requirements_of_a_claim_may_name_its_pool() -> None:
    made = claim(requirements=[requires("karpenter.sh/nodepool", "In", "general")])

    found = requirements_of(made.spec.requirements or (), "spec.requirements")

    assert found == {"karpenter.sh/nodepool": value_set("In", ["general"])}


def test_the_resources_of_a_claim() -> None:
    made = claim(
        status={"capacity": {"cpu": "8", "memory": "15155Mi"}, "providerID": "aws:///a/i-1"},
        resources={"requests": {"cpu": "3150m", "pods": "6"}},
    )

    assert counted_capacity(claim_facts(made), None) == {"cpu": 8000, "memory": 15155 * 2**20}
    assert requested(made.spec) == {"cpu": 3150, "pods": 6}
    assert made.provider_id == "aws:///a/i-1"
    assert counted_capacity(claim_facts(claim()), None) == {}
    assert requested(claim().spec) == {}


def test_a_bad_capacity_is_named() -> None:
    with pytest.raises(Invalid, match=r"status\.capacity\.cpu: 'eight'"):
        counted_capacity(claim_facts(claim(status={"capacity": {"cpu": "eight"}})), None)
