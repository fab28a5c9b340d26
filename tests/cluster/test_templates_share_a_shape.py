"""Pods of one template are compiled once; anything that changes the shape makes another template."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import shape_of
from karpool.packing.tables.shape_table import ShapeTable

amounts = st.sampled_from([None, {"cpu": "1"}, {"cpu": "1000m"}, {"cpu": "2", "memory": "1Gi"}])
resources = st.none() | st.fixed_dictionaries({"requests": amounts})
ports = st.sampled_from([None, [{"containerPort": 80}], [{"containerPort": 80, "hostPort": 80}]])
containers = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b"]), "resources": resources, "ports": ports},
        optional={"restartPolicy": st.just("Always")},
    ),
    max_size=2,
)
selector = st.sampled_from([None, {"matchLabels": {"app": "web"}}, {"matchExpressions": []}])
term = st.fixed_dictionaries({"topologyKey": st.sampled_from(["zone", "host"]), "labelSelector": selector})
required = "requiredDuringSchedulingIgnoredDuringExecution"
node_term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
affinity = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "nodeAffinity": st.just({required: {"nodeSelectorTerms": [node_term]}}),
        "podAffinity": term.map(lambda each: {required: [each]}),
        "podAntiAffinity": term.map(lambda each: {required: [each]}),
    },
)
statuses = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b"])},
        optional={"allocatedResources": amounts, "resources": resources},
    ),
    max_size=1,
)
conditions = st.sampled_from(
    [None, [{"type": "Ready", "status": "True"}], [{"type": "PodResizePending", "reason": "Infeasible"}]]
)
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {
                "name": st.sampled_from(["p", "q"]),
                "namespace": st.sampled_from(["default", "other"]),
                "labels": st.sampled_from([None, {"app": "web"}]),
            }
        ),
        "spec": st.fixed_dictionaries(
            {"containers": containers},
            optional={
                "nodeName": st.sampled_from(["n", "m"]),
                "initContainers": containers,
                "overhead": amounts,
                "resources": resources,
                "priority": st.integers(0, 1),
                "hostNetwork": st.booleans(),
                "nodeSelector": st.just({"disk": "ssd"}),
                "tolerations": st.just([{"operator": "Exists"}]),
                "affinity": affinity,
                "topologySpreadConstraints": term.map(lambda each: [{"maxSkew": 1, **each}]),
            },
        ),
        "status": st.fixed_dictionaries(
            {},
            optional={
                "containerStatuses": statuses,
                "initContainerStatuses": statuses,
                "conditions": conditions,
            },
        ),
    }
).map(lambda raw: decode(raw, Pod))


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(st.lists(pods, min_size=1, max_size=6))
def test_a_remembered_shape_is_the_pods_own(given_pods):
    table = ShapeTable()

    for pod in given_pods:
        assert table[table.intern_pod(pod, lambda _: None)] == shape_of(pod)


@settings(max_examples=30, deadline=None)
@given(pods)
def test_name_and_node_make_no_other_template(pod):
    table, checked = ShapeTable(), []
    moved = msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, name="another"),
        spec=msgspec.structs.replace(pod.spec, node_name="elsewhere"),
    )

    table.intern_pod(pod, checked.append)
    table.intern_pod(moved, checked.append)

    assert checked == [pod]
