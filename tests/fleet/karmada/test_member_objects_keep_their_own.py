"""What the member wrote stays, what Karmada wrote follows the manifest; clusters are matched by affinity."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.kube.api.decoding import Object
from karpool_fleet.karmada.propagation.affinity import matches_cluster
from karpool_fleet.karmada.propagation.bindings import BindingRef, replaced
from karpool_fleet.karmada.propagation.names import (
    MANAGED,
    RETAIN_REPLICAS,
    binding_name,
    work_name,
)
from karpool_fleet.karmada.propagation.retention import has_drifted, may_write, retained
from karpool_fleet.karmada.propagation.works import (
    marked_manifest,
    new_work,
    plain_manifest,
    shares_of_completions,
)

_maps = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xyz"), max_size=3)


def marked(labels: dict[str, str], annotations: dict[str, str], **spec: Any) -> Object:
    meta = {"name": "web", "namespace": "default", "uid": "u1", "generation": 2}
    template: Object = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**meta, "labels": labels, "annotations": annotations},
        "spec": spec,
    }
    return marked_manifest("east", template, plain_manifest(template), {}, {})


@given(_maps, _maps, _maps, _maps)
def test_foreign_labels_stay_and_dropped_ones_go(
    first: dict[str, str], second: dict[str, str], own: dict[str, str], notes: dict[str, str]
) -> None:
    before, after = marked(first, {}), marked(second, {})
    there = {**before, "metadata": {**before["metadata"], "resourceVersion": "7"}}
    there["metadata"]["labels"] = {**before["metadata"]["labels"], **{f"own-{k}": v for k, v in own.items()}}
    there["metadata"]["annotations"] = {**before["metadata"]["annotations"], **notes}

    wanted = retained(after, there)

    kept = {key: value for key, value in wanted["metadata"]["labels"].items() if "/" not in key}
    assert kept == {**{f"own-{k}": v for k, v in own.items()}, **second}
    assert {k: v for k, v in wanted["metadata"]["annotations"].items() if "/" not in k} == notes
    assert wanted["metadata"]["resourceVersion"] == "7"
    assert wanted["metadata"]["labels"][MANAGED] == "true"
    assert not has_drifted(wanted, wanted)
    assert has_drifted(wanted, there) is (before["metadata"]["labels"] != after["metadata"]["labels"])


def test_defaults_are_no_drift_and_changes_are() -> None:
    manifest = marked({}, {}, replicas=2, template={"spec": {"containers": [{"name": "c"}]}})
    defaulted = {"spec": {"containers": [{"name": "c", "imagePullPolicy": "Always"}], "dnsPolicy": "x"}}
    there = {**manifest, "spec": {"replicas": 2, "template": defaulted, "paused": False}}

    assert not has_drifted(retained(manifest, there), there)
    there = {**there, "spec": {**there["spec"], "replicas": 3}}
    assert has_drifted(retained(manifest, there), there)


def test_replicas_stay_where_the_template_says_so() -> None:
    manifest = marked({RETAIN_REPLICAS: "true"}, {}, replicas=2)
    there = {**manifest, "spec": {"replicas": 9}}
    assert retained(manifest, there)["spec"]["replicas"] == 9


def test_only_what_is_ours_may_be_written() -> None:
    manifest = marked({}, {})
    assert may_write(manifest, manifest)
    assert not may_write(manifest, {"metadata": {"name": "web"}})


@given(
    st.recursive(
        st.integers(0, 3),
        lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        max_leaves=9,
    ),
    st.recursive(
        st.integers(0, 3),
        lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        max_leaves=9,
    ),
)
def test_a_patch_makes_one_value_of_another(old: Any, new: Any) -> None:
    def merged(value: Any, patch: Any) -> Any:
        if not isinstance(patch, dict):
            return patch
        result = dict(value) if isinstance(value, dict) else {}
        for key, each in patch.items():
            if each is None:
                result.pop(key, None)
            else:
                result[key] = merged(result.get(key), each)
        return result

    assert merged(old, replaced(old, new)) == new


@given(st.integers(0, 50), st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_completions_are_divided_without_loss(completions: int, replicas: list[int]) -> None:
    targets: list[Object] = [{"name": f"m{i}", "replicas": each} for i, each in enumerate(replicas)]
    shares = shares_of_completions({"kind": "Job", "spec": {"completions": completions}}, targets)
    if sum(replicas):
        assert sum(shares.values()) == completions
        assert all(shares[target["name"]] == 0 for target in targets if not target["replicas"])
    else:
        assert shares == {}


def test_names_are_upstreams() -> None:
    assert binding_name("ClusterRole", "system:Admin") == "system.admin-clusterrole"
    assert work_name("Deployment", "web", "a") != work_name("Deployment", "web", "b")
    assert work_name("Role", "a:B", "x").startswith("a.b-")


def test_a_work_leads_back_to_its_binding() -> None:
    template: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "namespace": "n", "uid": "u"},
    }
    ref = BindingRef("n", "a-configmap")
    binding: Object = {
        "metadata": {"labels": {ref.id_label: "id"}},
        "spec": {"conflictResolution": "Overwrite"},
    }
    work = new_work("east", template, plain_manifest(template), ref=ref, binding=binding, notes={})
    assert work["metadata"]["namespace"] == "karmada-es-east"
    assert work["metadata"]["labels"][ref.id_label] == "id"
    assert work["metadata"]["annotations"] == ref.annotations()
    manifest = work["spec"]["workload"]["manifests"][0]
    assert manifest["metadata"]["annotations"]["work.karmada.io/conflict-resolution"] == "overwrite"


def expression(key: str, operator: str, *values: str) -> Object:
    return {"key": key, "operator": operator, "values": list(values)}


CLUSTER: Object = {
    "metadata": {"name": "east", "labels": {"env": "prod"}},
    "spec": {"region": "eu", "zones": ["a", "b"]},
}


@pytest.mark.parametrize(
    ("affinity", "matches"),
    [
        pytest.param(None, True, id="none"),
        pytest.param({}, True, id="empty"),
        pytest.param({"clusterNames": ["east"]}, True, id="named"),
        pytest.param({"clusterNames": ["west"]}, False, id="another named"),
        pytest.param({"clusterNames": ["east"], "exclude": ["east"]}, False, id="excluded"),
        pytest.param({"labelSelector": {"matchLabels": {"env": "prod"}}}, True, id="labels"),
        pytest.param({"labelSelector": {"matchLabels": {"env": "dev"}}}, False, id="other labels"),
        pytest.param(
            {"labelSelector": {"matchExpressions": [expression("env", "Gt", "1")]}}, False, id="bad selector"
        ),
        pytest.param(
            {"fieldSelector": {"matchExpressions": [expression("zone", "In", "b")]}}, True, id="zone"
        ),
        pytest.param(
            {"fieldSelector": {"matchExpressions": [expression("zone", "NotIn", "b")]}},
            False,
            id="not that zone",
        ),
        pytest.param(
            {"fieldSelector": {"matchExpressions": [expression("zone", "Exists")]}}, True, id="any zone"
        ),
        pytest.param(
            {"fieldSelector": {"matchExpressions": [expression("region", "In", "us")]}}, False, id="region"
        ),
        pytest.param(
            {"fieldSelector": {"matchExpressions": [expression("provider", "NotIn", "acme")]}},
            True,
            id="an empty field is not in anything",
        ),
    ],
)
def test_a_cluster_is_matched(affinity: Object | None, matches: bool) -> None:
    assert matches_cluster(affinity, CLUSTER) is matches
