"""Where volumes let a pod run, and which claims make it wait."""

from typing import Any

import pytest

from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import ZONE
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.volumes import (
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeNeeds,
    volume_needs,
    volume_terms,
)
from karpool.model.requirements import NodeTerm, value_set
from tests.model.build import Raw, pod

HOST = "kubernetes.io/hostname"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"


def using(*volumes: Raw, **more: Any) -> Pod:
    return pod("web-0", volumes=list(volumes), **more)


CLAIMED = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
EPHEMERAL = {"name": "tmp", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "zonal"}}}}


def claim(
    name: str = "data", *, meta: Raw | None = None, phase: str = "", **spec: Any
) -> PersistentVolumeClaim:
    return decode(
        {
            "metadata": {"name": name, "namespace": "default", **(meta or {})},
            "spec": spec,
            "status": {"phase": phase},
        },
        PersistentVolumeClaim,
    )


def bound(name: str = "data", **more: Any) -> PersistentVolumeClaim:
    return claim(name, phase="Bound", volumeName="pv-1", **more)


def volume(*terms: Raw, name: str = "pv-1", labels: Raw | None = None, **spec: Any) -> PersistentVolume:
    affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": list(terms)}}} if terms else {}
    return decode(
        {"metadata": {"name": name, "labels": labels}, "spec": {**affinity, **spec}}, PersistentVolume
    )


def zone_in(*zones: str, key: str = ZONE) -> Raw:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": list(zones)}]}


def in_zones(*zones: str, key: str = ZONE) -> NodeTerm:
    return NodeTerm(((key, value_set("In", zones)),))


def storage(
    name: str, mode: str = "WaitForFirstConsumer", *, default: bool = False, **more: Any
) -> StorageClass:
    meta: Raw = {"name": name}
    if default:
        meta["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
    return decode(
        {"metadata": meta, "volumeBindingMode": mode, "provisioner": "csi.example.com", **more}, StorageClass
    )


ZONAL = storage("zonal", allowedTopologies=[{"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}]}])
CLASSES = {each.name: each for each in (ZONAL, storage("anywhere"), storage("now", "Immediate"))}


def needs(
    made: Pod,
    *claims: PersistentVolumeClaim,
    volumes: tuple[PersistentVolume, ...] = (),
    classes: dict[str, StorageClass] = CLASSES,
) -> VolumeNeeds:
    return volume_needs(
        made, {each.metadata.key: each for each in claims}, {each.name: each for each in volumes}, classes
    )


def test_a_pod_without_claims_may_run_anywhere() -> None:
    assert needs(using({"name": "cfg", "configMap": {}}, {"name": "tmp", "emptyDir": {}})) == VolumeNeeds()
    assert needs(pod()) == VolumeNeeds()


def test_a_bound_volume_brings_its_node_affinity() -> None:
    found = needs(using(CLAIMED), bound(), volumes=(volume(zone_in("a"), zone_in("b")),))

    assert found == VolumeNeeds(terms=((in_zones("a"), in_zones("b")),))


def test_a_bound_volume_without_affinity_is_everywhere() -> None:
    assert needs(using(CLAIMED), bound(), volumes=(volume(),)) == VolumeNeeds()


def test_zone_labels_of_a_volume_name_one_or_several_zones() -> None:
    found = needs(using(CLAIMED), bound(), volumes=(volume(labels={ZONE: "a__b"}),))

    (alternatives,) = found.terms
    assert alternatives[0] == in_zones("a", "b")


def test_the_old_zone_label_also_matches_the_current_one_on_nodes() -> None:
    found = needs(using(CLAIMED), bound(), volumes=(volume(labels={OLD_ZONE: "a"}),))

    assert found.terms[0][:2] == (in_zones("a", key=OLD_ZONE), in_zones("a"))


def test_a_node_without_any_zone_label_suits_a_volume_with_one() -> None:
    found = needs(using(CLAIMED), bound(), volumes=(volume(labels={ZONE: "a"}),))

    last = found.terms[0][-1]
    assert all(wanted.admits(None) for _, wanted in last.labels)
    assert ZONE in dict(last.labels)


def test_affinity_and_labels_of_a_volume_both_hold() -> None:
    found = needs(using(CLAIMED), bound(), volumes=(volume(zone_in("a", key=HOST), labels={ZONE: "z"}),))

    assert len(found.terms) == 2


def test_each_volume_adds_its_own_condition() -> None:
    second = {"name": "logs", "persistentVolumeClaim": {"claimName": "logs"}}
    found = needs(
        using(CLAIMED, second),
        bound(),
        claim("logs", storageClassName="zonal"),
        volumes=(volume(zone_in("a")),),
    )

    assert found.terms == ((in_zones("a"),), (in_zones("a", "b"),))


def test_a_claim_that_waits_for_its_consumer_follows_its_class() -> None:
    assert needs(using(CLAIMED), claim(storageClassName="zonal")).terms == ((in_zones("a", "b"),),)
    assert needs(using(CLAIMED), claim(storageClassName="anywhere")) == VolumeNeeds()


def test_no_class_means_the_default_class() -> None:
    default = storage("std", default=True, allowedTopologies=ZONAL_TOPOLOGY)

    assert needs(using(CLAIMED), claim(), classes={"std": default}).terms == ((in_zones("c"),),)


ZONAL_TOPOLOGY = [{"matchLabelExpressions": [{"key": ZONE, "values": ["c"]}]}]


def test_the_old_annotation_names_a_class_too() -> None:
    made = claim(meta={"annotations": {"volume.beta.kubernetes.io/storage-class": "zonal"}})

    assert needs(using(CLAIMED), made).terms == ((in_zones("a", "b"),),)


def test_a_claim_with_a_selected_node_is_pinned_to_it() -> None:
    made = claim(
        meta={"annotations": {"volume.kubernetes.io/selected-node": "n1"}}, storageClassName="anywhere"
    )

    assert needs(using(CLAIMED), made).terms == (
        (NodeTerm(fields=(("metadata.name", value_set("In", ["n1"])),)),),
    )


LOCAL = {"local": storage("local", provisioner="kubernetes.io/no-provisioner")}


def local(name: str, host: str, **spec: Any) -> PersistentVolume:
    return volume(
        zone_in(host, key=HOST),
        name=name,
        **{
            "storageClassName": "local",
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            **spec,
        },
    )


def wants_local(size: str = "5Gi", **spec: Any) -> PersistentVolumeClaim:
    return claim(
        storageClassName="local",
        accessModes=["ReadWriteOnce"],
        resources={"requests": {"storage": size}},
        **spec,
    )


def test_static_volumes_offer_the_places_where_they_are() -> None:
    found = needs(
        using(CLAIMED), wants_local(), volumes=(local("pv-1", "n1"), local("pv-2", "n2")), classes=LOCAL
    )

    assert found.terms == ((in_zones("n1", key=HOST), in_zones("n2", key=HOST)),)


@pytest.mark.parametrize(
    "unsuited",
    [
        local("pv-2", "n2", capacity={"storage": "1Gi"}),
        local("pv-2", "n2", accessModes=["ReadOnlyMany"]),
        local("pv-2", "n2", storageClassName="other"),
        local("pv-2", "n2", volumeMode="Block"),
        local("pv-2", "n2", claimRef={"namespace": "default", "name": "other"}),
    ],
    ids=["too small", "access mode", "class", "volume mode", "taken"],
)
def test_volumes_that_the_claim_cannot_take_do_not_count(unsuited: PersistentVolume) -> None:
    found = needs(using(CLAIMED), wants_local(), volumes=(local("pv-1", "n1"), unsuited), classes=LOCAL)
    alone = needs(using(CLAIMED), wants_local(), volumes=(unsuited,), classes=LOCAL)

    assert found.terms == ((in_zones("n1", key=HOST),),)
    assert alone.waits == ("PersistentVolumeClaim default/data finds no free volume of StorageClass local",)


def test_a_volume_reserved_for_the_claim_counts() -> None:
    reserved = local("pv-1", "n1", claimRef={"namespace": "default", "name": "data"})

    assert needs(using(CLAIMED), wants_local(), volumes=(reserved,), classes=LOCAL).terms


def test_a_selector_of_the_claim_chooses_among_volumes() -> None:
    made = wants_local(selector={"matchLabels": {"disk": "ssd"}})

    assert needs(using(CLAIMED), made, volumes=(local("pv-1", "n1"),), classes=LOCAL).waits


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        pytest.param((), "PersistentVolumeClaim default/data does not exist", id="no claim"),
        pytest.param((bound(),), "PersistentVolume pv-1 does not exist", id="no volume"),
        pytest.param((claim(storageClassName="now"),), "default/data is not bound yet", id="immediate"),
        pytest.param((claim(storageClassName=""),), "default/data is not bound yet", id="no class at all"),
        pytest.param((claim(),), "default/data is not bound yet", id="no default class"),
        pytest.param(
            (claim(storageClassName="x"),), "wants StorageClass x, which does not exist", id="no such class"
        ),
        pytest.param(
            (claim(volumeName="pv-1", storageClassName="zonal"),),
            "is not bound yet",
            id="binding not completed",
        ),
        pytest.param((claim(phase="Lost", volumeName="pv-1"),), "has lost its volume pv-1", id="lost"),
        pytest.param(
            (bound(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"}),), "is being deleted", id="deleting"
        ),
    ],
)
def test_a_claim_that_cannot_be_used_yet_makes_the_pod_wait(
    claims: tuple[PersistentVolumeClaim, ...], reason: str
) -> None:
    found = needs(using(CLAIMED), *claims)

    assert len(found.waits) == 1
    assert reason in found.waits[0]


def test_a_waiting_pod_has_a_condition_that_nothing_satisfies() -> None:
    assert volume_terms(using(CLAIMED), {}, {}, {}) == ((),)


def test_the_annotation_of_the_binder_completes_a_binding() -> None:
    made = claim(meta={"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, volumeName="pv-1")

    assert needs(using(CLAIMED), made, volumes=(volume(zone_in("a")),)).terms == ((in_zones("a"),),)


def test_an_ephemeral_volume_has_a_claim_named_after_pod_and_volume() -> None:
    made = bound("web-0-tmp")

    assert needs(using(EPHEMERAL), made, volumes=(volume(zone_in("a")),)).terms == ((in_zones("a"),),)


def test_an_ephemeral_claim_that_is_not_there_yet_follows_its_template() -> None:
    assert needs(using(EPHEMERAL)).terms == ((in_zones("a", "b"),),)


def test_a_running_pod_leaves_its_ephemeral_volume_behind() -> None:
    found = needs(using(EPHEMERAL, nodeName="n1"), bound("web-0-tmp"), volumes=(volume(zone_in("a")),))

    assert found.terms == ((in_zones("a", "b"),),)


def test_a_foreign_claim_under_the_name_of_an_ephemeral_one_blocks() -> None:
    foreign = bound("web-0-tmp", meta={"ownerReferences": [{"uid": "other"}]})

    found = needs(using(EPHEMERAL, meta={"uid": "mine"}), foreign, volumes=(volume(),))

    assert found.waits == (
        "PersistentVolumeClaim default/web-0-tmp was not created for this pod; delete or rename it",
    )
