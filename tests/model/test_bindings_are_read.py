from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.errors import Invalid
from karpool.model.karmada.affinity import ClusterAffinity, matcher
from karpool.model.karmada.binding import BindingKey, TargetCluster, head_of, read_binding
from karpool.model.karmada.member_cluster import MemberCluster, read_cluster
from karpool.model.karmada.placement import ReplicaStrategy, read_placement
from karpool.model.kubernetes.meta import decode

WEIGHTS = {
    "replicaScheduling": {
        "replicaSchedulingType": "Divided",
        "replicaDivisionPreference": "Weighted",
        "weightPreference": {"staticWeightList": [{"targetCluster": {"clusterNames": ["a"]}, "weight": 1}]},
    }
}


def weighted(weight: Any) -> dict[str, Any]:
    preference = {"staticWeightList": [{"targetCluster": {}, "weight": weight}]}
    scheduling = {**WEIGHTS["replicaScheduling"], "weightPreference": preference}
    return {"placement": {"replicaScheduling": scheduling}}


def spread(**constraint: Any) -> dict[str, Any]:
    return {"placement": {"spreadConstraints": [constraint]}}


def unreadable() -> dict[str, Any]:
    return {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}


def read(**spec: Any) -> Any:
    return read_binding({"metadata": {"namespace": "ns", "name": "b"}, "spec": spec})


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        pytest.param({"replicas": -1}, "spec.replicas", id="negative replicas"),
        pytest.param({"replicas": 2**31}, "spec.replicas", id="huge replicas"),
        pytest.param({"replicas": "many"}, "spec.replicas", id="replicas that are no number"),
        pytest.param(
            {"clusters": [{"name": "a", "replicas": -2}]}, "spec.clusters[0].replicas", id="a negative target"
        ),
        pytest.param({"placement": "here"}, "spec.placement", id="a placement that is no object"),
        pytest.param(
            weighted(0),
            "spec.placement.replicaScheduling.weightPreference.staticWeightList[0].weight",
            id="weights of zero",
        ),
        pytest.param(
            spread(spreadByField="moon"),
            "spec.placement.spreadConstraints[0].spreadByField",
            id="an unknown field",
        ),
        pytest.param(
            spread(spreadByField="cluster", minGroups=3, maxGroups=2),
            "spec.placement.spreadConstraints[0].maxGroups",
            id="more groups than allowed",
        ),
        pytest.param(
            spread(spreadByField="cluster", minGroups=-1),
            "spec.placement.spreadConstraints[0].minGroups",
            id="fewer groups than none",
        ),
        pytest.param(
            {"placement": {"clusterAffinity": {}, "clusterAffinities": [{"affinityName": "a"}]}},
            "spec.placement.clusterAffinities",
            id="both kinds of affinity",
        ),
        pytest.param(
            {"placement": {"clusterAffinities": [{"affinityName": "a"}, {"affinityName": "a"}]}},
            "spec.placement.clusterAffinities[1].affinityName",
            id="two groups of one name",
        ),
        pytest.param(
            {
                "placement": {
                    "clusterAffinity": {
                        "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}
                    }
                }
            },
            "spec.placement.clusterAffinity.labelSelector.matchExpressions[0].operator",
            id="a selector that cannot be read",
        ),
        pytest.param(
            {"placement": {"clusterTolerations": [{"key": "a", "operator": "Gt"}]}},
            "spec.placement.clusterTolerations[0].operator",
            id="a toleration by number",
        ),
        pytest.param(
            {
                "placement": {
                    **WEIGHTS,
                    "clusterAffinities": [{"affinityName": "a", "overflowAffinities": [{}]}],
                }
            },
            "spec.placement.clusterAffinities[0].overflowAffinities",
            id="overflow of static weights",
        ),
        pytest.param(
            {"replicaRequirements": {"resourceRequest": {"cpu": "lots"}}},
            "spec.replicaRequirements.resourceRequest.cpu",
            id="a request that is no quantity",
        ),
        pytest.param(
            {"components": [{"name": "a", "replicaRequirements": {"resourceRequest": {"cpu": "lots"}}}]},
            "spec.components[0].replicaRequirements.resourceRequest.cpu",
            id="a component's request",
        ),
    ],
)
def test_what_cannot_be_used_is_named(spec, path):
    with pytest.raises(Invalid) as refused:
        read(**spec)

    assert refused.value.path == path


def test_a_binding_is_read():
    found = read(
        resource={"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u"},
        replicas=3,
        replicaRequirements={"resourceRequest": {"cpu": "500m"}, "nodeClaim": {"nodeSelector": {"a": "b"}}},
        clusters=[
            {"name": "m1", "replicas": 2},
            {"name": "m2", "components": [{"name": "x", "replicas": 1}]},
        ],
        gracefulEvictionTasks=[{"fromCluster": "m3", "reason": "TaintUntolerated"}],
        suspension={"scheduling": True},
        placement=WEIGHTS,
    )

    assert found.key == BindingKey("ResourceBinding", "ns", "b")
    assert found.requirements.shape.requests == (("cpu", 500),)
    assert found.requirements.shape.node_selector == (("a", "b"),)
    assert found.targets == (TargetCluster("m1", 2), TargetCluster("m2", 0, (("x", 1),)))
    assert [target.to_json() for target in found.targets] == [
        {"name": "m1", "replicas": 2},
        {"name": "m2", "components": [{"name": "x", "replicas": 1}]},
    ]
    assert found.evicting == {"m3"}
    assert found.is_suspended
    assert found.placement.strategy is ReplicaStrategy.STATIC
    assert found.raw_placement == WEIGHTS


def test_null_is_absent_everywhere():
    found = read(clusters=None, components=None, placement=None, suspension=None, schedulePriority=None)

    assert found.targets == ()
    assert found.placement is read_placement({})


def test_equal_placements_are_compiled_once():
    assert read_placement({"clusterAffinity": {"exclude": ["a"]}}) is read_placement(
        {"clusterAffinity": {"exclude": ["a"]}}
    )


@pytest.mark.parametrize(
    ("scheduling", "strategy"),
    [
        pytest.param(None, ReplicaStrategy.DUPLICATED, id="none"),
        pytest.param({"replicaSchedulingType": "Duplicated"}, ReplicaStrategy.DUPLICATED, id="duplicated"),
        pytest.param({}, ReplicaStrategy.STATIC, id="divided is the default"),
        pytest.param(
            {"replicaDivisionPreference": "Aggregated"}, ReplicaStrategy.AGGREGATED, id="aggregated"
        ),
        pytest.param(
            {
                "replicaDivisionPreference": "Weighted",
                "weightPreference": {"dynamicWeight": "AvailableReplicas"},
            },
            ReplicaStrategy.DYNAMIC,
            id="dynamic",
        ),
        pytest.param({"replicaDivisionPreference": "Random"}, ReplicaStrategy.UNSUPPORTED, id="unknown"),
    ],
)
def test_strategies(scheduling, strategy):
    assert read_placement({"replicaScheduling": scheduling}).strategy is strategy


# Affinities


def field(key: str, operator: str, values: Any = None) -> dict[str, Any]:
    return {"fieldSelector": {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}}


def label(key: str, operator: str) -> dict[str, Any]:
    return {"labelSelector": {"matchExpressions": [{"key": key, "operator": operator}]}}


@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        pytest.param({}, True, id="nothing said matches"),
        pytest.param({"clusterNames": ["m1", "m2"]}, True, id="named"),
        pytest.param({"clusterNames": ["m2"]}, False, id="others named"),
        pytest.param({"clusterNames": ["m1"], "exclude": ["m1"]}, False, id="excluded, whatever else"),
        pytest.param({"labelSelector": {"matchLabels": {"tier": "gold"}}}, True, id="label"),
        pytest.param({"labelSelector": {"matchLabels": {"tier": "iron"}}}, False, id="other label"),
        pytest.param(label("a b", "Exists"), False, id="bad key"),
        pytest.param(field("zone", "In", ["b", "x"]), True, id="any zone"),
        pytest.param(field("zone", "NotIn", ["b"]), False, id="no zone"),
        pytest.param(field("zone", "Gt", ["1"]), False, id="zones have no order"),
        pytest.param(field("provider", "NotIn", ["aws"]), True, id="an empty field is not in"),
        pytest.param(field("region", "In", ["eu"]), True, id="region"),
        pytest.param(field("region", "DoesNotExist"), False, id="has a region"),
    ],
)
def test_affinity(affinity, expected):
    member = MemberCluster("m1", {"tier": "gold"}, region="eu", zones=("a", "b"))

    assert matcher(decode(affinity, ClusterAffinity))(member) is expected


# Clusters


def test_a_cluster_is_read():
    found = read_cluster(
        {
            "metadata": {"name": "m1", "annotations": {"karpool.dev/price": "0.5"}},
            "spec": {
                "region": "eu",
                "taints": [{"key": "a", "effect": "NoExecute"}, {"key": "b", "effect": "PreferNoSchedule"}],
                "resourceModels": [{"grade": 1, "ranges": [{"name": "cpu", "min": "2", "max": "4"}]}],
            },
            "status": {
                "apiEnablements": [{"groupVersion": "v1", "resources": [{"name": "pods", "kind": "Pod"}]}],
                "conditions": [{"type": "Ready", "status": "False"}],
                "resourceSummary": {
                    "allocatable": {"cpu": "4"},
                    "allocated": {"cpu": "500m"},
                    "allocatableModelings": [
                        {"grade": 1, "count": 2},
                        {"grade": 1, "count": 1},
                        {"grade": 7, "count": 9},
                    ],
                },
            },
        }
    )

    assert [taint.key for taint in found.taints] == ["a"]
    assert ("v1", "Pod") in found.apis
    assert (found.is_ready, found.price, found.problems) == (False, 0.5, ())
    assert found.summary.free("cpu") == 3500
    assert [(grade.grade, grade.floor, grade.count) for grade in found.summary.grades] == [
        (1, {"cpu": 2000}, 3)
    ]


def test_what_cannot_be_read_of_a_cluster_is_named_and_the_rest_stands():
    found = read_cluster(
        {
            "metadata": {"name": "m1", "annotations": {"karpool.dev/price": "cheap"}},
            "spec": {"region": "eu", "taints": "none"},
            "status": {"resourceSummary": {"allocatable": {"cpu": "lots"}}},
        }
    )

    assert (found.name, found.region, found.summary, found.price) == ("m1", "eu", None, None)
    assert [problem.split(":")[0] for problem in found.problems] == [
        "spec.taints",
        "status.resourceSummary.allocatable.cpu",
        "metadata.annotations.karpool.dev/price",
    ]


# Anything at all

NAMES = st.sampled_from(
    """metadata spec status name namespace labels placement clusters replicas components resource suspension
    replicaScheduling weightPreference staticWeightList clusterAffinity clusterAffinities spreadConstraints
    minGroups taints zones resourceSummary allocatable conditions apiEnablements schedulePriority""".split()  # noqa: SIM905
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(NAMES, JUNK, max_size=5)


@given(OBJECTS)
def test_any_object_is_read_or_refused_and_its_head_is_always_known(raw):
    head_of(raw)
    try:
        read_binding(raw)
    except Invalid as error:
        assert len(str(error)) < 1000


@given(OBJECTS)
def test_any_object_makes_a_cluster(raw):
    assert isinstance(read_cluster(raw).problems, tuple)
