"""What a pod asks of its place, as one value."""

from typing import Any

import pytest

from karpool.model.errors import Invalid
from karpool.model.kubernetes.pod_shape import AffinityTerm, shape_of
from karpool.model.labels import LabelRequirement
from karpool.model.requirements import NodeTerm, value_set
from tests.model.build import Raw, container, pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def apart(term: Raw, **more: Any) -> AffinityTerm:
    made = pod("web", affinity={"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone", **term}]}}, **more)
    (found,) = shape_of(made).anti_affinity
    return found


def spread(**constraint: Any) -> Any:
    full = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **constraint}
    made = pod("web", meta={"labels": {"app": "web", "rev": "2"}}, topologySpreadConstraints=[full])
    (found,) = shape_of(made).spreads
    return found


def test_pods_that_differ_in_name_only_share_a_shape() -> None:
    first, second = (shape_of(pod(name, container(cpu="1"))) for name in ("a", "b"))

    assert first == second
    assert hash(first) == hash(second)


def test_the_order_of_resources_and_labels_does_not_matter() -> None:
    first = shape_of(pod("a", container(cpu="1", memory="1Gi"), meta={"labels": {"x": "1", "y": "2"}}))
    second = shape_of(
        pod("a", container(memory="1024Mi", cpu="1000m"), meta={"labels": {"y": "2", "x": "1"}})
    )

    assert first == second


def test_zero_requests_ask_for_nothing() -> None:
    assert shape_of(pod("a", container(cpu="0", pods="3", memory="1"))).requests == (("memory", 1),)


def test_a_missing_selector_selects_nothing_and_an_empty_one_everything() -> None:
    assert not apart({}).selector.matches({"app": "web"})
    assert apart({"labelSelector": {}}).selector.matches({"app": "web"})
    assert not spread().selector.matches({"app": "web"})
    assert spread(labelSelector={}).selector.matches({})


@pytest.mark.parametrize(
    ("term", "namespaces", "selects_namespaces"),
    [
        pytest.param({}, {"default"}, False, id="its own namespace"),
        pytest.param({"namespaces": ["a", "b"]}, {"a", "b"}, False, id="those it names"),
        pytest.param({"namespaceSelector": {}}, set(), True, id="all of them"),
        pytest.param(
            {"namespaces": ["a"], "namespaceSelector": {"matchLabels": {"t": "1"}}}, {"a"}, True, id="both"
        ),
        pytest.param({"namespaces": []}, {"default"}, False, id="an empty list is none"),
    ],
)
def test_in_which_namespaces_an_affinity_looks(
    term: Raw, namespaces: set[str], selects_namespaces: bool
) -> None:
    found = apart(term)

    assert found.namespaces == namespaces
    assert (found.namespace_selector is not None) is selects_namespaces


def test_label_keys_bring_the_pods_own_values_into_a_selector() -> None:
    labels = {"labels": {"rev": "2", "app": "web"}}
    term = {"labelSelector": {}, "matchLabelKeys": ["rev", "absent"], "mismatchLabelKeys": ["app"]}

    assert apart(term, meta=labels).selector.requirements == (
        LabelRequirement("rev", "In", frozenset("2")),
        LabelRequirement("app", "NotIn", frozenset(["web"])),
    )
    assert spread(labelSelector={}, matchLabelKeys=["rev"]).selector.matches({"rev": "2"})
    assert not spread(labelSelector={}, matchLabelKeys=["rev"]).selector.matches({"rev": "1"})


def test_spread_policies_have_the_defaults_of_kubernetes() -> None:
    plain = spread(labelSelector={})
    chosen = spread(
        labelSelector={}, minDomains=3, nodeAffinityPolicy="Ignore", nodeTaintsPolicy="Honor", maxSkew=2
    )

    assert (plain.min_domains, plain.honour_node_affinity, plain.honour_taints) == (1, True, False)
    assert (chosen.min_domains, chosen.honour_node_affinity, chosen.honour_taints, chosen.max_skew) == (
        3,
        False,
        True,
        2,
    )
    assert not spread(whenUnsatisfiable="ScheduleAnyway").required


@pytest.mark.parametrize(
    ("port", "host_network", "expected"),
    [
        ({"hostPort": 80}, False, {("0.0.0.0", "TCP", 80)}),
        ({"hostPort": 80, "protocol": "UDP", "hostIP": "10.0.0.1"}, False, {("10.0.0.1", "UDP", 80)}),
        ({"containerPort": 80}, False, set()),
        ({"containerPort": 80}, True, {("0.0.0.0", "TCP", 80)}),
    ],
)
def test_host_ports(port: Raw, host_network: bool, expected: set[tuple[str, str, int]]) -> None:
    made = pod("a", {"name": "c", "ports": [port]}, hostNetwork=host_network)

    assert shape_of(made).host_ports == expected


def test_node_affinity_keeps_its_alternatives() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    preference = {"weight": 7, "preference": terms[0]}
    made = pod(
        "a", affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}, PREFERRED: [preference]}}
    )

    found = shape_of(made)

    assert found.node_terms == tuple(NodeTerm((("zone", value_set("In", [zone])),)) for zone in "ab")
    assert found.preferred_nodes[0].weight == 7
    assert shape_of(pod("a")).node_terms is None


def test_only_required_rules_about_other_pods_are_topology() -> None:
    preferred = {"podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}]}}

    assert not shape_of(pod("a", affinity=preferred)).has_topology
    assert shape_of(pod("a", affinity=preferred)).preferred_anti_affinity[0].weight == 1
    assert shape_of(pod("a", affinity={"podAffinity": {REQUIRED: [{"topologyKey": "zone"}]}})).has_topology


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (
            {"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "z"}]},
            "spec.topologySpreadConstraints[0].maxSkew",
        ),
        ({"topologySpreadConstraints": [{"maxSkew": 1}]}, "spec.topologySpreadConstraints[0].topologyKey"),
        (
            {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "Never"}]},
            "spec.topologySpreadConstraints[0].whenUnsatisfiable",
        ),
        ({"affinity": {"podAffinity": {REQUIRED: [{}]}}}, "spec.affinity.podAffinity[0].topologyKey"),
        (
            {
                "affinity": {
                    "podAntiAffinity": {
                        REQUIRED: [
                            {
                                "topologyKey": "z",
                                "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]},
                            }
                        ]
                    }
                }
            },
            "spec.affinity.podAntiAffinity[0].labelSelector.matchExpressions[0].operator",
        ),
    ],
)
def test_a_pod_that_cannot_be_understood_is_named_with_the_field(spec: Raw, path: str) -> None:
    with pytest.raises(Invalid) as caught:
        shape_of(pod("a", **spec))

    assert caught.value.path == path


def test_an_error_seen_from_further_out_names_the_object() -> None:
    inner = Invalid("cpu", "x", "is wrong")

    assert str(inner.at("spec.limits").at("nodepool gpu")) == "nodepool gpu.spec.limits.cpu: 'x': is wrong"
    assert str(Invalid("", "x", "is wrong").at("field")) == "field: 'x': is wrong"
    assert str(inner.at("")) == "cpu: 'x': is wrong"
