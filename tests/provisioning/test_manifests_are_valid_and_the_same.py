"""Any ask becomes a pod that the API server takes, that fits where it should, and that is read back whole."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import DO_NOT_DISRUPT
from karpool.model.kubernetes.api_resources import PODS
from karpool.model.kubernetes.meta import OwnerReference, decode
from karpool.model.kubernetes.pod import Pod, effective_requests
from karpool.model.kubernetes.pod_shape import shape_of
from karpool.model.labels import check_labels
from karpool.model.requirements import ValueSet, conflict
from karpool.model.taints import NO_SCHEDULE, Taint, Toleration, untolerated
from karpool.provisioning.names import digest, label_value
from karpool.provisioning.node_request import NodeCandidate, NodeRequest, RequestPurpose, unit
from karpool.provisioning.placeholders.prerequisites import ensure_prerequisites
from karpool.provisioning.placeholders.smart_pod import (
    ORIGINAL_REQUEST,
    SmartPodSettings,
    placeholder_of,
    pod_name,
    smart_pod,
)
from karpool_fleet.apiserver.kinds.bundled_crds import KARPENTER, bundled_crds
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from tests.provisioning.acting import ACCELERATED, SETTINGS, ask

TEXT = st.text(max_size=120)
VALUES = st.text("abcdefgh-.2", min_size=1, max_size=8).map(lambda text: f"x{text}x")
AMOUNTS = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.integers(0, 10**6),
        "memory": st.integers(0, 2**50),
        "nvidia.com/gpu": st.integers(0, 16),
    },
)


@st.composite
def value_sets(draw: st.DrawFn) -> ValueSet:
    values = frozenset(draw(st.sets(VALUES, min_size=1, max_size=3)))
    low = draw(st.integers(-2, 50))
    return draw(
        st.sampled_from(
            (
                ValueSet(values),
                ValueSet(values, complement=True),
                ValueSet(complement=True),
                ValueSet(),
                ValueSet(complement=True, at_least=low),
                ValueSet(complement=True, at_most=low),
                ValueSet(values, True, low, low + 5),
            )
        )
    )


KEYS = st.sampled_from(("example.com/a", "example.com/b", "tier"))
CONSTRAINTS = st.dictionaries(KEYS, value_sets(), max_size=3)
OWNER = OwnerReference(
    api_version="gpu.karpool.dev/v1alpha1", kind="ScaleUp", name="s", uid="u", controller=True
)


@st.composite
def asks(draw: st.DrawFn) -> NodeRequest:
    count = draw(st.integers(1, 3))
    return NodeRequest(
        request=draw(st.from_regex(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", fullmatch=True)),
        epoch=draw(st.integers(0, 10**9)),
        units=tuple(unit(draw(AMOUNTS)) for _ in range(count)),
        candidates=(NodeCandidate(),),
        purpose=draw(st.sampled_from(RequestPurpose)),
        pool=draw(TEXT),
        model=draw(TEXT),
        about=draw(st.text(max_size=3000)),
        demand=tuple(draw(st.lists(TEXT, max_size=100))),
        owner=draw(st.sampled_from((None, OWNER))),
        requirements=draw(CONSTRAINTS),
        deadline=draw(st.none() | st.floats(0, 2**33)),
        avoid=draw(st.sampled_from(({}, {"role": "worker"}))),
    )


@st.composite
def candidates(draw: st.DrawFn) -> NodeCandidate:
    some = st.lists(VALUES, max_size=3, unique=True).map(tuple)
    return NodeCandidate(draw(some), draw(some), draw(some), draw(some), requirements=draw(CONSTRAINTS))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[NodeRequest, NodeCandidate]:
    one, candidate = draw(asks()), draw(candidates())
    if conflict(one.requirements, candidate.constraints, frozenset(candidate.constraints)):
        with pytest.raises(Invalid, match="no value in common"):
            smart_pod(one, candidate, 0, SETTINGS)
        candidate = replace(candidate, requirements={})
    return one, candidate


@pytest.mark.long
@settings(max_examples=60)
@given(pairs())
def test_every_manifest_is_valid_bounded_and_the_same_each_time(
    pair: tuple[NodeRequest, NodeCandidate],
) -> None:
    one, candidate = pair
    for index in range(len(one.units)):
        manifest = smart_pod(one, candidate, index, SETTINGS)
        assert json.dumps(manifest) == json.dumps(smart_pod(one, candidate, index, SETTINGS))
        metadata = manifest["metadata"]
        check_labels(metadata["labels"])
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", metadata["name"])
        assert len(metadata["annotations"][ORIGINAL_REQUEST].encode()) < 4096
        assert sum(len(key) + len(text.encode()) for key, text in metadata["annotations"].items()) < 16_384
        json.loads(metadata["annotations"][ORIGINAL_REQUEST])


@settings(max_examples=60)
@given(pairs())
def test_it_asks_for_exactly_the_unit_and_limits_only_devices(
    pair: tuple[NodeRequest, NodeCandidate],
) -> None:
    one, candidate = pair
    manifest = smart_pod(one, candidate, 0, SETTINGS)
    pod = decode(manifest, Pod)
    assert effective_requests(pod) == dict(one.units[0].resources)
    resources = manifest["spec"]["containers"][0]["resources"]
    assert set(resources["limits"]) <= {"nvidia.com/gpu"}
    assert resources["limits"].items() <= resources["requests"].items()
    shape_of(pod)


@settings(max_examples=60)
@given(pairs())
def test_what_is_written_is_read_back_and_what_is_altered_is_not_ours(
    pair: tuple[NodeRequest, NodeCandidate],
) -> None:
    one, candidate = pair
    index = len(one.units) - 1
    manifest = smart_pod(one, candidate, index, SETTINGS)
    manifest["metadata"] |= {"uid": "u-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    found = placeholder_of(decode(manifest, Pod), SETTINGS.namespace)
    assert found is not None
    assert (found.request, found.epoch, found.index, found.purpose) == (
        one.request,
        one.epoch,
        index,
        one.purpose,
    )
    assert found.candidate == candidate.key
    if one.deadline is not None:
        assert found.deadline == int(one.deadline)
    assert placeholder_of(decode(manifest, Pod), "elsewhere") is None
    for key in manifest["metadata"]["labels"]:
        if key.startswith("provisioning.karpool.dev/") and not key.endswith("/candidate"):
            altered = {**manifest["metadata"]["labels"], key: "7777777"}
            changed = {**manifest, "metadata": {**manifest["metadata"], "labels": altered}}
            assert placeholder_of(decode(changed, Pod), SETTINGS.namespace) is None
    renamed = {**manifest, "metadata": {**manifest["metadata"], "name": "my-own-pod"}}
    assert placeholder_of(decode(renamed, Pod), SETTINGS.namespace) is None


@settings(max_examples=60)
@given(pairs(), st.dictionaries(KEYS, VALUES))
def test_its_affinity_admits_exactly_the_nodes_that_the_constraints_admit(
    pair: tuple[NodeRequest, NodeCandidate], labels: Mapping[str, str]
) -> None:
    one, candidate = pair
    pod = decode(smart_pod(one, candidate, 0, SETTINGS), Pod)
    constraints = one.constraints(candidate)
    # Labels that only candidates constrain: give the node a value that is among them.
    node = {
        key: next(iter(sorted(wanted.values)), "x") for key, wanted in constraints.items() if wanted.values
    }
    node |= labels
    expected = all(wanted.admits(node.get(key)) for key, wanted in constraints.items())
    (term,) = shape_of(pod).node_terms or (None,)
    admitted = term is None or all(wanted.admits(node.get(key)) for key, wanted in term.labels)
    assert admitted == expected


@given(TEXT, TEXT)
def test_label_values_of_different_texts_differ(one: str, other: str) -> None:
    check_labels({"k": label_value(one), "j": label_value(other)})
    assert (label_value(one) == label_value(other)) == (one == other)
    assert label_value(one) == label_value(one)


def test_names_are_pinned_because_restarts_depend_on_them() -> None:
    one = ask("scaleup-abc", epoch=7)
    assert pod_name(one, 3) == f"smart-gpu-nvidia-a100-sxm4-80g-{digest('scaleup-abc')}-7-3"
    assert pod_name(one, 3) == "smart-gpu-nvidia-a100-sxm4-80g-10f9d905c5-7-3"
    assert (
        label_value("NVIDIA A100-SXM4-80GB") == f"NVIDIA-A100-SXM4-80GB-{digest('NVIDIA A100-SXM4-80GB', 8)}"
    )


def test_the_fields_of_the_design_hold_where_they_are_not_revised() -> None:
    given_ = Toleration(key="team", operator="Equal", value="ml", effect=NO_SCHEDULE)
    manifest = smart_pod(ask(owner=OWNER, tolerations=(given_,)), ACCELERATED, 0, SETTINGS)
    meta, spec = manifest["metadata"], manifest["spec"]
    design = {key: text for key, text in meta["labels"].items() if key.startswith("tensor-fusion.ai/")}
    assert design == {
        "tensor-fusion.ai/component": "smart-scheduler",
        "tensor-fusion.ai/gpu-model": label_value("NVIDIA A100-SXM4-80GB"),
        "tensor-fusion.ai/pool": "shared",
        "tensor-fusion.ai/trigger-type": "gpu-scaling",
    }
    annotations = meta["annotations"]
    assert annotations["tensor-fusion.ai/created-by"] == "intelligent-scheduling-controller"
    assert annotations["tensor-fusion.ai/purpose"] == "trigger-karpenter-scaling"
    assert annotations["tensor-fusion.ai/cleanup-after"] == "node-ready"
    assert annotations["tensor-fusion.ai/gpu-model"] == "NVIDIA A100-SXM4-80GB", "as the vendor writes it"
    assert annotations[DO_NOT_DISRUPT] == "true"
    assert json.loads(annotations[ORIGINAL_REQUEST])["demand"] == ["uid-1"]
    assert meta["ownerReferences"] == [
        {
            "apiVersion": "gpu.karpool.dev/v1alpha1",
            "kind": "ScaleUp",
            "name": "s",
            "uid": "u",
            "controller": True,
        }
    ]
    assert "finalizers" not in meta
    expected = {
        "restartPolicy": "Never",
        "schedulerName": "default-scheduler",
        "preemptionPolicy": "Never",
        "priorityClassName": "karpool-smart-pod",
        "terminationGracePeriodSeconds": 0,
        "activeDeadlineSeconds": 2700,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
    assert {key: spec[key] for key in expected} == expected
    assert "nodeSelector" not in spec
    (container,) = spec["containers"]
    assert (container["name"], container["image"]) == ("gpu-trigger", "registry.k8s.io/pause:3.9")
    assert container["resources"]["requests"] == {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "1"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    tolerations = [decode(each, Toleration) for each in spec["tolerations"]]
    for taint in ("nvidia.com/gpu=true:NoSchedule", "team=ml:NoSchedule"):
        key, _, rest = taint.partition("=")
        value, _, effect = rest.partition(":")
        assert untolerated([Taint(key=key, value=value, effect=effect)], tolerations) is None
    assert untolerated([Taint(key="other", effect=NO_SCHEDULE)], tolerations) is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"request": ""}, "must not be empty"),
        ({"request": "has space"}, "letters, digits"),
        ({"epoch": -1}, "must not be negative"),
        ({"units": ()}, "from 1 to"),
        ({"candidates": ()}, "nothing to try"),
    ],
)
def test_an_ask_that_cannot_be_named_or_tried_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        replace(ask(), **changes)


@pytest.mark.parametrize("priority", [0, -999, -(2**25), -(2**31)])
def test_a_priority_that_would_harm_somebody_is_refused(priority: int) -> None:
    with pytest.raises(Invalid, match="must be above"):
        SmartPodSettings(priority=priority)


def test_the_api_server_takes_strange_models_and_pools() -> None:
    texts = ["NVIDIA A100-SXM4-80GB", "", "ÄÖ \u202e \x00 '\"\\", "-", "." * 80, "a" * 300, "\ud800"]

    async def main() -> None:
        async with EmbeddedCluster("east", clock=LoopClock(), crds=bundled_crds(KARPENTER)) as cluster:
            client = cluster.client("desk")
            assert await ensure_prerequisites(client, SETTINGS) == []
            for number, text in enumerate(texts):
                one = ask(f"r-{number}", model=text, pool=text, about=text, demand=(text,))
                await client.create(PODS, smart_pod(one, ACCELERATED, 0, SETTINGS))
            found = (await client.list(PODS, into=Pod)).items
            assert all(placeholder_of(each, SETTINGS.namespace) is not None for each in found)
            assert len(found) == len(texts)

    run_manual(main())
