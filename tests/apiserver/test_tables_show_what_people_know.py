"""Server-side printing."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from karpool_fleet.apiserver.kinds import crds
from karpool_fleet.apiserver.kinds.builtin import builtin_types
from karpool_fleet.apiserver.objects.types import ResourceType
from karpool_fleet.apiserver.printing.cell_text import duration
from karpool_fleet.apiserver.printing.json_paths import BadPath, compile_path
from karpool_fleet.apiserver.printing.tables import table

NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z
TYPES = {kind.kind: kind for kind in builtin_types()}


def row(kind: str, obj: dict[str, Any]) -> dict[str, Any]:
    """One object's cells by column name."""
    obj = {
        "metadata": {"name": "x", "creationTimestamp": "2025-12-31T23:00:00Z", **obj.pop("metadata", {})},
        **obj,
    }
    made = table(TYPES[kind], [obj], now=NOW)
    names = [column["name"] for column in made["columnDefinitions"]]
    return dict(zip(names, made["rows"][0]["cells"], strict=True))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (600, "10m"),
        (10_799, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (8 * 3600 + 60, "8h"),
        (48 * 3600, "2d"),
        (49 * 3600, "2d1h"),
        (9 * 86400, "9d"),
        (800 * 86400, "2y70d"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_ages_are_two_units_at_most(seconds: int, text: str) -> None:
    assert duration(seconds) == text


def container_status(
    name: str = "a", *, ready: bool = False, restarts: int = 0, **state: Any
) -> dict[str, Any]:
    return {"name": name, "ready": ready, "restartCount": restarts, "state": state}


PODS: list[Any] = [
    pytest.param({}, {"phase": "Pending"}, "0/1", "Pending", id="not scheduled"),
    pytest.param(
        {},
        {"phase": "Running", "containerStatuses": [container_status(ready=True, running={})]},
        "1/1",
        "Running",
        id="running",
    ),
    pytest.param(
        {},
        {"phase": "Running", "containerStatuses": [container_status(waiting={"reason": "CrashLoopBackOff"})]},
        "0/1",
        "CrashLoopBackOff",
        id="crashing",
    ),
    pytest.param(
        {},
        {"phase": "Succeeded", "containerStatuses": [container_status(terminated={"reason": "Completed"})]},
        "0/1",
        "Completed",
        id="completed",
    ),
    pytest.param(
        {},
        {"phase": "Failed", "containerStatuses": [container_status(terminated={"exitCode": 3})]},
        "0/1",
        "ExitCode:3",
        id="failed without a reason",
    ),
    pytest.param({}, {"phase": "Failed", "reason": "Evicted"}, "0/1", "Evicted", id="evicted"),
    pytest.param(
        {"initContainers": [{"name": "i"}, {"name": "j"}]},
        {
            "phase": "Pending",
            "initContainerStatuses": [
                container_status("i", terminated={"exitCode": 0}),
                container_status("j", running={}),
            ],
        },
        "0/1",
        "Init:1/2",
        id="initialising",
    ),
    pytest.param(
        {"initContainers": [{"name": "i", "restartPolicy": "Always"}]},
        {
            "phase": "Running",
            "initContainerStatuses": [{**container_status("i", ready=True, running={}), "started": True}],
            "containerStatuses": [container_status(ready=True, running={})],
        },
        "2/2",
        "Running",
        id="sidecar",
    ),
    pytest.param(
        {},
        {"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]},
        "0/1",
        "SchedulingGated",
        id="gated",
    ),
]


@pytest.mark.parametrize(("spec", "status", "ready", "word"), PODS)
def test_one_word_says_how_a_pod_is(
    spec: dict[str, Any], status: dict[str, Any], ready: str, word: str
) -> None:
    cells = row("Pod", {"spec": {"containers": [{"name": "a"}], **spec}, "status": status})

    assert (cells["Ready"], cells["Status"]) == (ready, word)


def test_a_pod_being_deleted_is_terminating_and_restarts_say_when() -> None:
    last = {"lastState": {"terminated": {"finishedAt": "2025-12-31T23:59:00Z"}}}
    status = {"phase": "Running", "containerStatuses": [{**container_status(restarts=3, running={}), **last}]}
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z"}

    cells = row("Pod", {"metadata": deleted, "spec": {"containers": [{}]}, "status": status})

    assert cells["Status"] == "Terminating"
    assert cells["Restarts"] == "3 (60s ago)"
    assert cells["Age"] == "60m"


def test_nodes() -> None:
    cells = row(
        "Node",
        {
            "metadata": {"labels": {"node-role.kubernetes.io/gpu": "", "node-role.kubernetes.io/a": ""}},
            "spec": {"unschedulable": True},
            "status": {"conditions": [{"type": "Ready", "status": "False"}]},
        },
    )

    assert (cells["Status"], cells["Roles"]) == ("NotReady,SchedulingDisabled", "a,gpu")


@pytest.mark.parametrize(
    ("kind", "obj", "expected"),
    [
        (
            "Service",
            {
                "spec": {
                    "type": "NodePort",
                    "clusterIP": "10.0.0.1",
                    "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}],
                }
            },
            {"Type": "NodePort", "Cluster-IP": "10.0.0.1", "Port(s)": "80:30080/TCP"},
        ),
        ("Service", {"spec": {"type": "LoadBalancer"}}, {"External-IP": "<pending>"}),
        ("StatefulSet", {"spec": {"replicas": 3}, "status": {"readyReplicas": 1}}, {"Ready": "1/3"}),
        (
            "DaemonSet",
            {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}, "status": {"numberReady": 2}},
            {"Ready": 2, "Node Selector": "a=b"},
        ),
        (
            "Job",
            {"spec": {"completions": 3}, "status": {"succeeded": 1, "startTime": "2025-12-31T23:59:00Z"}},
            {"Completions": "1/3", "Duration": "60s", "Status": "Running"},
        ),
        (
            "CronJob",
            {"spec": {"schedule": "@daily"}},
            {"Schedule": "@daily", "Suspend": "False", "Last Schedule": "<none>"},
        ),
        (
            "PodDisruptionBudget",
            {"spec": {"minAvailable": "50%"}, "status": {"disruptionsAllowed": 1}},
            {"Min Available": "50%", "Max Unavailable": "N/A", "Allowed Disruptions": 1},
        ),
        (
            "PersistentVolumeClaim",
            {
                "spec": {"volumeName": "v"},
                "status": {
                    "phase": "Bound",
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                },
            },
            {"Status": "Bound", "Capacity": "1Gi", "Access Modes": "RWO"},
        ),
        ("ConfigMap", {"data": {"a": "1"}, "binaryData": {"b": ""}}, {"Data": 2}),
        ("Lease", {"spec": {"holderIdentity": "me"}}, {"Holder": "me"}),
        ("PriorityClass", {"value": 5}, {"Value": 5, "Global-Default": False}),
        (
            "ResourceQuota",
            {"status": {"hard": {"cpu": "2", "limits.cpu": "4"}, "used": {"cpu": "1"}}},
            {"Request": "cpu: 1/2", "Limit": "limits.cpu: 0/4"},
        ),
        (
            "HorizontalPodAutoscaler",
            {
                "spec": {
                    "scaleTargetRef": {"kind": "Deployment", "name": "w"},
                    "maxReplicas": 3,
                    "metrics": [
                        {
                            "type": "Resource",
                            "resource": {"name": "cpu", "target": {"averageUtilization": 80}},
                        }
                    ],
                }
            },
            {"Reference": "Deployment/w", "Targets": "cpu: <unknown>/80%"},
        ),
        (
            "NetworkPolicy",
            {
                "spec": {
                    "podSelector": {
                        "matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]}]
                    }
                }
            },
            {"Pod-Selector": "a in (b,c)"},
        ),
        (
            "Ingress",
            {"spec": {"rules": [{"host": "a.example"}], "tls": [{}]}},
            {"Hosts": "a.example", "Ports": "80, 443"},
        ),
        (
            "ResourceClaim",
            {"status": {"allocation": {}, "reservedFor": [{}]}},
            {"State": "allocated,reserved"},
        ),
    ],
)
def test_columns_of_other_kinds(kind: str, obj: dict[str, Any], expected: dict[str, Any]) -> None:
    cells = row(kind, obj)

    assert {name: cells[name] for name in expected} == expected


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["replicas", "containers", "conditions", "ports", "type"]), inner, max_size=3
        )
    ),
    max_leaves=5,
)


@given(st.sampled_from(builtin_types()), JUNK, JUNK)
def test_a_strange_object_never_spoils_a_table(resource: ResourceType, spec: Any, status: Any) -> None:
    strange = {
        "metadata": {"name": "strange"},
        "spec": spec,
        "status": status,
        "data": spec,
        "subsets": status,
    }

    made = table(resource, [strange], now=NOW)

    assert len(made["rows"][0]["cells"]) == len(made["columnDefinitions"])


@pytest.mark.parametrize(
    ("include", "expected"), [("None", None), ("Metadata", "PartialObjectMetadata"), ("Object", "Pod")]
)
def test_rows_carry_what_was_asked_for(include: str, expected: str | None) -> None:
    obj = {"kind": "Pod", "metadata": {"name": "x"}, "spec": {}}

    made = table(TYPES["Pod"], [obj], now=NOW, include_object=include, api_version="meta.k8s.io/v1beta1")

    assert made["rows"][0].get("object", {}).get("kind") == expected
    assert made["apiVersion"] == "meta.k8s.io/v1beta1"


def widgets() -> ResourceType:
    crd = yaml.safe_load((Path(__file__).parent / "crds" / "widgets.yaml").read_text())
    return crds.resource_types(crd)[0]


def test_custom_columns_follow_their_paths() -> None:
    obj = {
        "metadata": {"name": "w", "creationTimestamp": "2025-12-31T23:58:55Z"},
        "spec": {"size": 3, "colours": ["red", "blue"]},
        "status": {"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]},
    }

    made = table(widgets(), [obj, {"metadata": {"name": "bare"}}], now=NOW)

    assert [column["name"] for column in made["columnDefinitions"]] == [
        "Name",
        "Size",
        "Ready",
        "Colours",
        "Age",
    ]
    assert [column["priority"] for column in made["columnDefinitions"]] == [0, 0, 0, 1, 0]
    assert made["rows"][0]["cells"] == ["w", 3, "True", "red,blue", "65s"]
    assert made["rows"][1]["cells"] == ["bare", None, None, None, None]


def test_a_value_of_the_wrong_type_is_left_out() -> None:
    obj = {"metadata": {"name": "w"}, "spec": {"size": "three", "colours": [{"a": [1, True]}]}}

    assert table(widgets(), [obj], now=NOW)["rows"][0]["cells"][1:4] == [None, None, "map[a:[1,true]]"]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".a", [{"b": [1, 2, 3], "c.d": "x"}]),
        (".a.b[0]", [1]),
        (".a.b[-1]", [3]),
        (".a.b[0:2]", [1, 2]),
        (".a.b[*]", [1, 2, 3]),
        (".a['c.d']", ["x"]),
        (r".a.c\.d", ["x"]),
        (".list[?(@.n>1)].n", [2]),
        ('.list[?(@.name=="one")].n', [1]),
        (".list[?(@.name)].name", ["one"]),
        ("{.a.b[1]}", [2]),
        (".missing.deep[0]", []),
    ],
)
def test_paths(path: str, found: list[Any]) -> None:
    obj = {"a": {"b": [1, 2, 3], "c.d": "x"}, "list": [{"name": "one", "n": 1}, {"n": 2}]}

    assert compile_path(path)(obj) == found


@pytest.mark.parametrize("path", ["a", ".a[", ".a[?(@.x==)]", ".a..b", ".a[x]", "." + "a" * 2000])
def test_paths_outside_the_subset_are_refused(path: str) -> None:
    with pytest.raises(BadPath):
        compile_path(path)


def test_a_path_cannot_keep_its_reader_busy() -> None:
    with pytest.raises(BadPath):
        compile_path(".a[?(@" + ".b" * 400 + "!)]")
