"""A cluster whose region is unknown says so: it never promises nothing."""

import msgspec
import pytest

from karpool.cluster.kinds import NODE_CLASS_KINDS, NODECLAIMS, NODEPOOLS, NODES
from karpool.cluster.market.market import Market
from karpool.estimator.plugins.framework import Framework
from karpool.estimator.plugins.interface import EstimateCode
from karpool.estimator.plugins.node_autoscaler import NodeAutoscalerEstimator
from karpool.estimator.providers.karpenter import KarpenterProvider
from karpool.estimator.question import EstimateQuestion
from karpool.manager.membership import FleetMembership
from karpool.model.errors import Invalid
from karpool.model.karmada.replica_requirements import Component, requirements
from karpool.model.karpenter.node_class import NodeClass
from karpool.wire.requests import ComponentSetsRequest, ReplicasRequest
from tests.estimator.pictures import Told
from tests.estimator.test_usage_of_pools import At

EC2, EKS_AUTO, AKS, GCE = NODE_CLASS_KINDS
POOL = {"metadata": {"name": "any"}, "spec": {"template": {"spec": {}}, "limits": {"cpu": "100"}}}
PLACES = {
    "node": (NODES, {"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "eu-west-1b"}}}),
    "claim": (
        NODECLAIMS,
        {
            "metadata": {"name": "c", "labels": {"topology.kubernetes.io/region": "eu-west-1"}},
            "status": {"providerID": "x"},
        },
    ),
    "class": (
        EC2,
        {"metadata": {"name": "default"}, "status": {"subnets": [{"zone": "eu-west-1a"}]}},
    ),
    "class of EKS Auto Mode": (
        EKS_AUTO,
        {
            "metadata": {"name": "default"},
            "status": {"subnets": [{"id": "subnet-1", "zone": "eu-west-1a", "zoneID": "euw1-az1"}]},
        },
    ),
    "pool": (
        NODEPOOLS,
        {
            "metadata": {"name": "other"},
            "spec": {
                "template": {
                    "spec": {
                        "requirements": [
                            {
                                "key": "topology.kubernetes.io/zone",
                                "operator": "In",
                                "values": ["eu-west-1c"],
                            }
                        ]
                    }
                }
            },
        },
    ),
}


def asked(picture, provider, request=None):
    request = request or ReplicasRequest("", requirements({"cpu": "1"}))
    question = EstimateQuestion(request, picture.snapshot())
    return Framework([NodeAutoscalerEstimator([provider])]).run_trusted(question)


def told(market=None):
    provider = KarpenterProvider(At())
    picture = Told(provider, market or Market())
    picture.put(NODEPOOLS, POOL)
    return picture, provider


def test_nobody_can_tell_and_says_why():
    picture, provider = told()

    found = asked(picture, provider)

    assert (found.code, found.answer) == (EstimateCode.UNKNOWN, -1)
    assert "region is unknown" in found.reasons[0]
    sets = ComponentSetsRequest("", (Component("one", 1, requirements({"cpu": "1"})),))
    assert asked(picture, provider, sets).answer == -1


def test_what_is_coming_counts_although_nobody_knows_what_could_be_bought():
    picture, provider = told()
    claim = {
        "metadata": {"name": "c", "labels": {"karpenter.sh/nodepool": "any"}},
        "status": {
            "providerID": "x",
            "conditions": [{"type": "Launched", "status": "True"}],
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        },
    }
    picture.put(NODECLAIMS, claim)

    found = asked(picture, provider)

    assert picture.cluster.market.region == ""
    assert (found.code, found.answer) == (EstimateCode.SUCCESS, 4)


@pytest.mark.parametrize("source", PLACES)
def test_whoever_names_it_is_believed(source):
    picture, provider = told()
    picture.put(*PLACES[source])

    assert picture.cluster.market.region == "eu-west-1"
    assert asked(picture, provider).answer > 0


AKS_SUBNET = "/subscriptions/1/resourceGroups/{}/providers/Microsoft.Network/virtualNetworks/v/subnets/s"


@pytest.mark.parametrize(
    ("kind", "spec", "region"),
    [
        (
            GCE,
            {"networkConfig": {"subnetwork": "projects/p/regions/europe-west4/subnetworks/s"}},
            "europe-west4",
        ),
        (GCE, {"networkConfig": {"subnetwork": "regions/europe-west4/subnetworks/s"}}, "europe-west4"),
        (GCE, {"networkConfig": {"subnetwork": "s"}}, ""),
        (GCE, {"networkConfig": None}, ""),
        (AKS, {"vnetSubnetID": AKS_SUBNET.format("MC_mine_my_cluster_westeurope")}, "westeurope"),
        (AKS, {"vnetSubnetID": AKS_SUBNET.format("mine_westeurope")}, ""),  # named by people
        (AKS, {"vnetSubnetID": AKS_SUBNET.format("MC_mine_my_cluster_nowhere")}, ""),
        (AKS, {}, ""),
        (EKS_AUTO, None, ""),
    ],
)
def test_a_class_whose_subnet_names_its_region_is_believed(kind, spec, region):
    picture, provider = told()
    picture.put(kind, {"metadata": {"name": "default"}, "spec": spec})

    assert picture.cluster.market.region == region
    assert (asked(picture, provider).answer > 0) == bool(region)


def test_classes_of_one_name_and_several_clouds_are_not_mixed_up():
    """A pool is narrowed by the class that it names, not by any of that name."""
    picture, _ = told()
    reference = {"group": "eks.amazonaws.com", "kind": "NodeClass", "name": "default"}
    picture.put(
        NODEPOOLS, {"metadata": {"name": "auto"}, "spec": {"template": {"spec": {"nodeClassRef": reference}}}}
    )
    for kind, zone in ((EKS_AUTO, "eu-west-1a"), (EC2, "eu-west-1b")):
        picture.put(kind, {"metadata": {"name": "default"}, "status": {"subnets": [{"zone": zone}]}})

    pool = picture.snapshot().pools["auto"]
    assert "eu-west-1a" in pool.requirements["topology.kubernetes.io/zone"]
    assert "eu-west-1b" not in pool.requirements["topology.kubernetes.io/zone"]


def test_a_cluster_without_pools_has_no_need_of_a_region():
    provider = KarpenterProvider(At())
    assert asked(Told(provider, Market()), provider).answer == 0


def test_a_region_that_was_asked_for_stands_in_until_the_cluster_names_its_own():
    picture, provider = told(Market(fallback_region="us-east-1"))
    assert picture.cluster.market.region == "us-east-1"
    assert asked(picture, provider).answer > 0

    for source, region in (("pool", "eu-west-1"), ("node", "eu-west-1")):
        picture.put(*PLACES[source])
        assert picture.cluster.market.region == region

    elsewhere = {"name": "late", "labels": {"topology.kubernetes.io/zone": "us-west-2a"}}
    picture.put(NODECLAIMS, {"metadata": elsewhere, "status": {"providerID": "y"}})
    assert picture.cluster.market.region == "eu-west-1"  # nodes know better than claims


def test_what_karmada_says_is_better_than_a_fallback_and_worse_than_the_cluster():
    market = Market(fallback_region="us-east-1")
    market.see_karmada_cluster("", ["nowhere", "us-west-2b"])
    assert market.region == "us-west-2"
    subnets = {"metadata": {"name": "n"}, "status": {"subnets": [{"zone": "eu-west-1a"}]}}
    market.see_node_class(msgspec.convert(subnets, NodeClass))
    assert market.region == "eu-west-1"
    market.see_karmada_cluster("us-west-2", [])
    assert market.region == "eu-west-1"


def test_a_region_that_nobody_sells_is_refused():
    with pytest.raises(Invalid, match="nowhere"):
        Market(fallback_region="nowhere")


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        ({"region": "eu-west-1", "zones": ["eu-west-1a", 7, None]}, ("eu-west-1", ("eu-west-1a",))),
        ({"region": ["odd"], "zones": {"a": 1}}, ("", ())),
        ("odd", ("", ())),
        (None, ("", ())),
    ],
)
def test_where_a_cluster_is_as_its_cluster_object_says(spec, place):
    membership = object.__new__(FleetMembership)
    membership._clusters = {"m": {"metadata": {"name": "m"}, "spec": spec}}

    assert membership.place_of("m") == place
    assert membership.place_of("another") == ("", ())
