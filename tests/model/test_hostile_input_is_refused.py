"""Whatever is sent: an answer or Invalid, and no other exception."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster.nodes.expected import counted_capacity
from karpool.cluster.nodes.node_facts import claim_facts
from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.catalogue.files import read_catalogue
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import NodeClaim, NodePool, pool_of, requested, requirements_of
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import Node, allocatable
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import (
    PodDisruptionBudget,
    budget_of,
    eviction_cost,
    is_protected,
)
from karpool.model.kubernetes.pod_shape import shape_of
from karpool.model.kubernetes.volumes import (
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    volume_terms,
)
from karpool.model.kubernetes.workload import pod_template
from tests.model.build import Raw

FIXTURES = Path(__file__).parent / "fixtures"
RICH: dict[str, Raw] = {
    each["kind"]: each for each in yaml.safe_load_all((FIXTURES / "rich.yaml").read_text())
}
CUSTOM: Raw = yaml.safe_load((FIXTURES / "catalogue.yaml").read_text())


def read_pod(raw: Any) -> object:
    pod = decode(raw, Pod)
    return shape_of(pod), eviction_cost(pod), is_protected(pod, 5.0), read_volumes(pod=raw)


def read_claim(raw: Any) -> object:
    claim = decode(raw, NodeClaim)
    Catalogue("p", "r").learn(claim)
    return (
        counted_capacity(claim_facts(claim), None),
        requested(claim.spec),
        requirements_of(claim.spec.requirements or (), "spec.requirements"),
    )


def read_node(raw: Any) -> object:
    node = decode(raw, Node)
    return allocatable(node), Catalogue("p", "r").learn(node)


def read_volumes(**spoilt: Any) -> object:
    given_raw = {
        "pod": RICH["Pod"],
        "claim": RICH["PersistentVolumeClaim"],
        "volume": RICH["PersistentVolume"],
        "storage": RICH["StorageClass"],
        **spoilt,
    }
    claim = decode(given_raw["claim"], PersistentVolumeClaim)
    volume = decode(given_raw["volume"], PersistentVolume)
    storage = decode(given_raw["storage"], StorageClass)
    return volume_terms(
        decode(given_raw["pod"], Pod),
        {"shop/data": claim},
        {"pv-1": volume},
        {"local": storage, "fast": storage},
    )


READERS: dict[str, Callable[[Any], object]] = {
    "Pod": read_pod,
    "NodePool": lambda raw: pool_of(decode(raw, NodePool)),
    "NodeClaim": read_claim,
    "Node": read_node,
    "PodDisruptionBudget": lambda raw: budget_of(decode(raw, PodDisruptionBudget)),
    "StatefulSet": pod_template,
    "CronJob": pod_template,
    "PersistentVolumeClaim": lambda raw: read_volumes(claim=raw),
    "PersistentVolume": lambda raw: read_volumes(volume=raw),
    "StorageClass": lambda raw: read_volumes(storage=raw),
}

scalars = st.one_of(
    st.sampled_from(
        [None, True, "", "x", "1", "-1", "1.5Gi", "a b", "In", "Gt", "100%", "v" * 300, 0, -1, 2**31, 2**63]
    ),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=6),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def spoilt(raw: Raw, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(raw)
    holder: Any = changed
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    return changed


@pytest.mark.parametrize("kind", READERS)
def test_the_examples_are_good(kind: str) -> None:
    assert READERS[kind](RICH[kind]) is not None


@pytest.mark.parametrize("kind", READERS)
@settings(max_examples=120)
@given(data=st.data())
def test_one_spoilt_field_is_accepted_or_named(kind: str, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(list(places(RICH[kind]))))
    raw = spoilt(RICH[kind], path, data.draw(values))

    try:
        READERS[kind](raw)
    except Invalid as error:
        assert error.reason
        assert len(str(error)) < 1000


@pytest.mark.parametrize("kind", READERS)
def test_every_field_may_be_missing_or_null(kind: str) -> None:
    for path in places(RICH[kind]):
        if path:
            try:
                READERS[kind](spoilt(RICH[kind], path, None))
            except Invalid as error:
                assert error.reason


@settings(max_examples=120)
@given(data=st.data())
def test_a_spoilt_catalogue_is_accepted_or_named(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(list(places(CUSTOM))))
    raw = spoilt(CUSTOM, path, data.draw(values))

    try:
        read_catalogue(msgspec.json.encode(raw))
    except Invalid as error:
        assert error.reason


@given(st.binary(max_size=60))
def test_random_bytes_are_no_catalogue(data: bytes) -> None:
    with pytest.raises(Invalid):
        read_catalogue(data)


def nested(depth: int) -> Any:
    value: Any = "bottom"
    for _ in range(depth):
        value = {"spec": [value]}
    return value


@pytest.mark.long
@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("field", ["metadata", "spec", "status", "unknown"])
def test_deep_nesting_is_refused_or_ignored(kind: str, field: str) -> None:
    try:
        READERS[kind]({**RICH[kind], field: nested(5000)})
    except Invalid as error:
        assert len(str(error)) < 1000


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ({"spec": {"priority": 2**31}}, "spec.priority"),
        ({"spec": {"priority": "high"}}, "spec.priority"),
        (
            {"spec": {"containers": [{"ports": [{"hostPort": 2**40}]}]}},
            "spec.containers[0].ports[0].hostPort",
        ),
        ({"metadata": {"labels": {1: "a"}}}, "metadata.labels"),
        ({"metadata": {"labels": ["a"]}}, "metadata.labels"),
        ({"spec": []}, "spec"),
        ([], "Pod"),
        (None, "Pod"),
    ],
)
def test_the_wrong_type_is_named_with_its_place(raw: Any, path: str) -> None:
    with pytest.raises(Invalid) as caught:
        decode(raw, Pod)

    assert caught.value.path == path
    assert len(str(caught.value)) < 300
