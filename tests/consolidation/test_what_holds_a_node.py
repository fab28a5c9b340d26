"""Clusters in files, each with a node `held` that looks as if it could go; it stays, and the reason is said.

Each is asked of `karpool plan` and of `karpool explain node`; what the consolidator does with the same
objects in a living cluster is in `test_what_holds_a_node_in_a_living_cluster`.
"""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from karpool.cli.cluster_source import ClusterOptions
from karpool.cli.inspect.plan import PlannedCluster, load_planned_cluster
from karpool.cli.main import run
from karpool.consolidation.execution.validation import validate_all, what_if
from karpool.consolidation.planning.plan import Move, MoveKind
from karpool.consolidation.policy.settings import DEFAULTS

SNAPSHOTS = Path(__file__).parent / "snapshots"
HELD = {
    "resource-claims": ("pod_resource_claims", "pod team/trainer holds devices of resource claims"),
    "extended-resource-claims": ("pod_resource_claims", "pod team/trainer holds devices of resource claims"),
    "quantity-nan": ("pod_unreadable", "1 of its pods are invalid (pod team/"),
    "label-value": ("pod_unreadable", "1 of its pods are invalid (pod team/"),
    "malformed": ("pod_unreadable", "1 of its pods are invalid (pod team/"),
    "bare-share": ("pod_do_not_disrupt", "pod team/trainer holds a share of a GPU and has no owner"),
    "threshold": ("nodepool_unreadable", "consolidationThreshold: 7: must be a whole number from 1 to 3"),
    "static-pool": ("static", "nodepool general is static"),
    "overlay-price": ("not_cheaper", "costs less than $0.0038 per hour"),
    "overlays-contradict": ("nodepool_unreadable", "NodeOverlays one and two have the same weight"),
    "overlay-contradicts-itself": (
        "nodepool_unreadable",
        "priceAdjustment: '+1': contradicts spec.price",
    ),
    "buffer": ("buffer_pods", "capacity buffer team/headroom needs its capacity"),
    "buffer-of-a-workload": ("buffer_pods", "capacity buffer team/headroom needs its capacity"),
    "buffer-contradicts-itself": ("buffer_unreadable", "must have one of podTemplateRef and scalableRef"),
    "volume-limit": ("not_cheaper", "no new node for its pods costs less than $0.0960 per hour"),
    "volume-left-behind": ("not_cheaper", "no new node for its pods costs less than $0.0960 per hour"),
    "unhealthy": ("unhealthy", "its condition NetworkingReady is False"),
    "reservation": ("score", "score 0.00 < threshold 0.50 of nodepool general"),
    "until": ("pod_do_not_disrupt", "pod team/web asks not to be disturbed"),
}


def test_every_file_is_asked():
    assert {path.stem for path in SNAPSHOTS.glob("*.yaml")} == set(HELD)


@pytest.mark.parametrize("name", HELD)
def test_no_plan_takes_it_and_the_reason_is_said(name, capsys):
    reason, words = HELD[name]
    path = str(SNAPSHOTS / f"{name}.yaml")
    assert run(["plan", "--snapshot", path, "-o", "json"], "karpool") == 0
    plan = json.loads(capsys.readouterr().out)
    assert "held" not in [source["name"] for move in plan["moves"] for source in move["nodes"]]
    (kept,) = [node for node in plan["held"] if node["node"] == "held"]
    assert kept["why"][0]["code"] == reason
    assert words in kept["why"][0]["message"]


@pytest.mark.parametrize("name", HELD)
def test_the_node_is_explained_with_the_reason(name, capsys):
    assert run(["explain", "node", "held", "--snapshot", str(SNAPSHOTS / f"{name}.yaml")], "karpool") == 0
    assert HELD[name][1] in capsys.readouterr().out


@pytest.mark.parametrize("name", ["quantity-nan", "label-value", "malformed"])
def test_capacity_counts_no_room_beside_a_pod_that_nobody_can_read(name, tmp_path, capsys):
    def room(path: Path) -> tuple[int, int]:
        workload = tmp_path / "pod.yaml"
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}
        meta = {"name": "new", "namespace": "team"}
        raw = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
        workload.write_text(json.dumps(raw))
        assert run(["capacity", "-f", str(workload), "--snapshot", str(path), "-o", "json"], "karpool") == 0
        answer = json.loads(capsys.readouterr().out)
        (existing,) = [place for place in answer["places"] if place["name"] == "existing nodes"]
        return existing["room"], answer["unreadable_pods"]

    documents = (SNAPSHOTS / f"{name}.yaml").read_text().split("---\n")
    without = tmp_path / "without.yaml"
    pods = [text for text in documents if "kind: Pod\n" in text and "nodeName: held" in text]
    without.write_text("---\n".join(text for text in documents if text not in pods))
    (free, unreadable), (empty, none) = room(SNAPSHOTS / f"{name}.yaml"), room(without)
    assert (unreadable, none) == (1, 0)
    assert empty - free == 20, "all of the 2 CPU of `held`"


@pytest.mark.parametrize(
    "name", ["resource-claims", "quantity-nan", "label-value", "malformed", "unhealthy", "volume-limit"]
)
def test_without_the_pod_that_holds_it_the_node_goes(name, tmp_path, capsys):
    documents = (SNAPSHOTS / f"{name}.yaml").read_text().split("---\n")
    path = tmp_path / "without.yaml"
    path.write_text(
        "---\n".join(text for text in documents if "nodeName: held" not in text or "kind: Pod" not in text)
    )
    assert run(["plan", "--snapshot", str(path), "-o", "json"], "karpool") == 0
    plan = json.loads(capsys.readouterr().out)
    assert "held" in [source["name"] for move in plan["moves"] for source in move["nodes"]]


@pytest.mark.parametrize("name", HELD)
def test_a_plan_that_takes_it_is_refused_before_it_is_made_and_for_the_same_reason(name, tmp_path):
    """What `apply` and the consolidator ask before anything is done, of a move that somebody wrote down."""
    loaded, move = move_from_before(SNAPSHOTS / f"{name}.yaml", tmp_path)
    (why,) = validate_all([move], loaded.view, DEFAULTS, loaded.now).values()
    assert why and str(why[0].reason) == REFUSED.get(name, HELD[name][0])


# A move that sends pods to a node which is full by now is refused for want of room there.
REFUSED = {"volume-limit": "no_room", "volume-left-behind": "no_room"}


def planned_cluster(path: Path) -> PlannedCluster:
    return asyncio.run(load_planned_cluster(ClusterOptions(snapshot=path), ""))


def move_from_before(path: Path, folder: Path) -> tuple[PlannedCluster, Move]:
    """A cluster, and a move that takes `held`, whatever holds it; where there is no place for its pods, one
    made when there was."""
    loaded = planned_cluster(path)
    move = what_if(loaded.view, ["held"], DEFAULTS, loaded.now)
    if not isinstance(move, Move):
        before = planned_cluster(without_what_came_since(path, folder))
        move = what_if(before.view, ["held"], DEFAULTS, before.now)
    assert isinstance(move, Move)
    return loaded, move if move.pods else replace(move, kind=MoveKind.EMPTY)


def without_what_came_since(path: Path, folder: Path) -> Path:
    """The same cluster before claims, overlays and limits of volumes came."""
    came = {"NodeOverlay", "ResourceClaim", "CSINode", "VolumeAttachment"}
    documents = [raw for raw in yaml.safe_load_all(path.read_text()) if raw["kind"] not in came]
    for raw in documents:
        if raw["kind"] == "Pod":
            raw["spec"].pop("resourceClaims", None)
            for container in raw["spec"]["containers"]:
                container["resources"].pop("claims", None)
    earlier = folder / "earlier.yaml"
    earlier.write_text(yaml.safe_dump_all(documents))
    return earlier


# How many pods of 100m CPU fit on what is there, and what is said of new nodes. Room that a buffer keeps is
# for the next pod that comes; a pod that only may not be moved takes what it asks for.
ROOM = {
    "resource-claims": (27, ""),
    "extended-resource-claims": (27, ""),
    "quantity-nan": (10, ""),
    "label-value": (10, ""),
    "malformed": (10, ""),
    "bare-share": (49, ""),
    "threshold": (30, ""),
    "static-pool": (30, "is static: its size is fixed"),
    "overlay-price": (49, ""),
    "overlays-contradict": (49, "NodeOverlays one and two have the same weight"),
    "overlay-contradicts-itself": (49, "spec.priceAdjustment: '+1': contradicts spec.price"),
    "buffer": (25, ""),
    "buffer-of-a-workload": (25, ""),
    "buffer-contradicts-itself": (25, ""),
    "volume-limit": (25, ""),
    "volume-left-behind": (35, ""),
    "unhealthy": (25, ""),
    "reservation": (25, ""),
    "until": (25, ""),
}


@pytest.mark.parametrize("name", HELD)
def test_capacity_counts_what_is_left_and_says_which_pool_launches_nothing(name, tmp_path, capsys):
    room, words = ROOM[name]
    workload = tmp_path / "pod.yaml"
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}
    meta = {"name": "new", "namespace": "team"}
    raw = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
    workload.write_text(json.dumps(raw))
    path = str(SNAPSHOTS / f"{name}.yaml")
    assert run(["capacity", "-f", str(workload), "--snapshot", path, "-o", "json"], "karpool") == 0
    existing, pool = json.loads(capsys.readouterr().out)["places"]
    assert existing["room"] == room
    assert (pool["outlook"] == "never") == bool(words)
    assert words in " ".join(pool["reasons"])


def test_capacity_cannot_tell_where_a_pod_with_a_resource_claim_fits(capsys):
    path = str(SNAPSHOTS / "resource-claims.yaml")
    assert run(["capacity", "pod/trainer", "-n", "team", "--snapshot", path], "karpool") == 3
    assert "cannot tell: resource claims: 0 of 1 replicas" in capsys.readouterr().out


def test_the_pod_of_a_node_that_stays_says_what_speaks_against_the_others(capsys):
    path = str(SNAPSHOTS / "volume-left-behind.yaml")
    assert run(["explain", "node", "held", "--snapshot", path], "karpool") == 0
    full = "1 node: too many volumes of ebs.csi.aws.com are attached (room for 0, asked 1)"
    assert f"pod team/web finds no place: {full}" in capsys.readouterr().out


BUFFER = {"podTemplateRef": {"name": "web"}, "replicas": 1}
BAD = [
    (
        "buffer",
        "CapacityBuffer",
        {"podTemplateRef": {"name": "web"}, "replicas": -1},
        "team/headroom: spec.replicas: -1:",
    ),
    ("buffer", "CapacityBuffer", {**BUFFER, "percentage": -10}, "team/headroom: spec.percentage: -10:"),
    ("buffer", "CapacityBuffer", {"podTemplateRef": {"name": "web"}}, "team/headroom: spec:"),
    (
        "buffer",
        "CapacityBuffer",
        {**BUFFER, "limits": {"cpu": "many"}},
        "team/headroom: spec.limits.cpu: 'many':",
    ),
    (
        "buffer",
        "CapacityBuffer",
        {"podTemplateRef": {"name": "gone"}, "replicas": 1},
        "team/headroom: spec.podTemplateRef.name: 'gone': PodTemplate team/gone does not exist; create it",
    ),
    (
        "buffer",
        "CapacityBuffer",
        {"scalableRef": {"apiGroup": "apps", "kind": "Deployment", "name": "gone"}, "percentage": 10},
        "team/headroom: spec.scalableRef.name: 'gone': Deployment team/gone does not exist; create it",
    ),
    ("buffer", "CapacityBuffer", {**BUFFER, "replicas": "two"}, "team/headroom: spec.replicas"),
    ("buffer", "CapacityBuffer", {**BUFFER, "replicas": 10**6}, "team/headroom: spec.replicas: 1000000:"),
    (
        "overlay-contradicts-itself",
        "NodeOverlay",
        {"price": "-1"},
        "NodeOverlay both cannot be understood: spec.price: '-1':",
    ),
    (
        "overlay-contradicts-itself",
        "NodeOverlay",
        {"price": "NaN"},
        "NodeOverlay both cannot be understood: spec.price: 'NaN':",
    ),
    (
        "overlay-contradicts-itself",
        "NodeOverlay",
        {"priceAdjustment": "-101%"},
        "spec.priceAdjustment: '-101%':",
    ),
    ("overlay-contradicts-itself", "NodeOverlay", {"weight": 10001}, "spec.weight: 10001:"),
    ("overlay-contradicts-itself", "NodeOverlay", {"capacity": {"cpu": "4"}}, "spec.capacity.cpu:"),
    (
        "threshold",
        "NodePool",
        {"consolidationThreshold": 0},
        "consolidationThreshold: 0: must be a whole number from 1 to 3",
    ),
    (
        "threshold",
        "NodePool",
        {"consolidationThreshold": 2.5},
        "consolidationThreshold: 2.5: must be a whole number from 1 to 3",
    ),
    (
        "threshold",
        "NodePool",
        {"consolidationThreshold": "two"},
        "consolidationThreshold: 'two': must be a whole number from 1 to 3",
    ),
    ("threshold", "NodePool", {"consolidationThreshold": 2, "budgets": [{"nodes": "many%"}]}, "many%"),
    ("threshold", "NodePool", {"consolidationThreshold": 2, "budgets": [{"nodes": "-1"}]}, "-1"),
    ("threshold", "NodePool", {"consolidationThreshold": True}, "consolidationThreshold: True: must be"),
    ("threshold", "NodePool", {"consolidationThreshold": [2]}, "consolidationThreshold: [2]: must be"),
    ("threshold", "NodePool", {"consolidationThreshold": 10**30}, "must be a whole number from 1 to 3"),
    ("overlay-contradicts-itself", "NodeOverlay", {"weight": -1}, "spec.weight: -1:"),
    ("overlay-contradicts-itself", "NodeOverlay", {"weight": "much"}, "spec.weight"),
    ("overlay-contradicts-itself", "NodeOverlay", {"price": "inf"}, "spec.price: 'inf':"),
    ("overlay-contradicts-itself", "NodeOverlay", {"price": []}, "spec.price"),
    ("overlay-contradicts-itself", "NodeOverlay", {"priceAdjustment": "10%"}, "spec.priceAdjustment: '10%':"),
    ("overlay-contradicts-itself", "NodeOverlay", {"capacity": {"example.com/x": "-1"}}, "example.com/x"),
]


@pytest.mark.parametrize(("name", "kind", "spec", "words"), BAD)
def test_what_contradicts_itself_is_named_with_field_and_value_and_nothing_goes(
    name, kind, spec, words, tmp_path, capsys
):
    documents = list(yaml.safe_load_all((SNAPSHOTS / f"{name}.yaml").read_text()))
    (bad,) = [raw for raw in documents if raw["kind"] == kind]
    if kind == "NodePool":
        bad["spec"]["disruption"] |= spec
    else:
        kept = {"requirements"} if kind == "NodeOverlay" else {"provisioningStrategy"}
        bad["spec"] = {key: bad["spec"][key] for key in kept & bad["spec"].keys()} | spec
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    assert run(["plan", "--snapshot", str(path), "-o", "json"], "karpool") == 0
    plan = json.loads(capsys.readouterr().out)
    assert "held" not in [source["name"] for move in plan["moves"] for source in move["nodes"]]
    (kept_node,) = [node for node in plan["held"] if node["node"] == "held"]
    assert words in kept_node["why"][0]["message"]
    # The same is said to `apply` and before every step of a move that was decided before.
    loaded, move = move_from_before(path, tmp_path)
    (why,) = validate_all([move], loaded.view, DEFAULTS, loaded.now).values()
    assert why and words in why[0].detail


CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "spare", "namespace": "team"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 1}}]}},
    "status": {
        "allocation": {
            "devices": {"results": [{"request": "gpu", "driver": "d", "pool": "held", "device": "gpu-0"}]},
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["held"]}]}
                ]
            },
        }
    },
}
BROKEN_CLAIM = CLAIM | {
    "metadata": {"name": "broken", "namespace": "other"},
    "status": {"allocation": {"devices": "all"}},
}


def slice_on(node: str) -> dict:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-gpus"},
        "spec": {"driver": "d", "nodeName": node, "pool": {"name": node, "generation": 1}, "devices": []},
    }


def reasons_of_held(objects, path, capsys) -> list[str]:
    """What keeps the node whose pod was taken away; nothing when it goes."""
    documents = yaml.safe_load_all((SNAPSHOTS / "quantity-nan.yaml").read_text())
    others = [raw for raw in documents if raw.get("spec", {}).get("nodeName") != "held"]
    path.write_text(yaml.safe_dump_all([*others, *objects]))
    assert run(["plan", "--snapshot", str(path), "-o", "json"], "karpool") == 0
    held = json.loads(capsys.readouterr().out)["held"]
    return [why["message"] for node in held if node["node"] == "held" for why in node["why"]]


def test_a_claim_that_cannot_be_read_frees_no_node(tmp_path, capsys):
    path = tmp_path / "cluster.yaml"
    holds = ["resource claim team/spare holds devices of this node and belongs to no pod"]
    may_hold = ["resource claim other/broken is invalid and may hold devices of this node"]
    assert reasons_of_held([CLAIM], path, capsys) == holds
    assert reasons_of_held([CLAIM, BROKEN_CLAIM], path, capsys) == holds
    assert reasons_of_held([BROKEN_CLAIM], path, capsys) == may_hold
    assert reasons_of_held([BROKEN_CLAIM, slice_on("held")], path, capsys) == may_hold
    # Its devices are those of nodes that have some.
    assert reasons_of_held([BROKEN_CLAIM, slice_on("another")], path, capsys) == []


def test_of_a_pool_that_cannot_be_read_nobody_says_that_it_is_not_there(tmp_path, capsys):
    documents = list(yaml.safe_load_all((SNAPSHOTS / "static-pool.yaml").read_text()))
    (pool,) = [raw for raw in documents if raw["kind"] == "NodePool"]
    pool["spec"]["replicas"] = "two"
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    assert run(["explain", "node", "held", "--snapshot", str(path)], "karpool") == 0
    assert "its nodepool general does not exist, or cannot be read" in capsys.readouterr().out
