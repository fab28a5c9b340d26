"""A cluster whose region is not known says so: it never promises nothing."""

import pytest

from karpool.cluster.kinds import NODECLAIMS, NODECLASSES, NODEPOOLS, NODES
from karpool.cluster.market.market import Market
from karpool.estimator.plugins.framework import Framework
from karpool.estimator.plugins.interface import EstimateCode
from karpool.estimator.plugins.node_autoscaler import NodeAutoscalerEstimator
from karpool.estimator.providers.karpenter import KarpenterProvider
from karpool.estimator.question import EstimateQuestion
from karpool.manager.membership import FleetMembership
from karpool.model.errors import Invalid
from karpool.model.karmada.replica_requirements import Component, requirements
from karpool.wire.requests import ComponentSetsRequest, ReplicasRequest
from tests.estimator.pictures import Told
from tests.estimator.test_usage_of_pools import At

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
        NODECLASSES,
        {"metadata": {"name": "default"}, "status": {"subnets": [{"zone": "eu-west-1a"}]}},
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
    assert "region is not known" in found.reasons[0]
    sets = ComponentSetsRequest("", (Component("one", 1, requirements({"cpu": "1"})),))
    assert asked(picture, provider, sets).answer == -1


@pytest.mark.parametrize("source", PLACES)
def test_whoever_names_it_is_believed(source):
    picture, provider = told()
    picture.put(*PLACES[source])

    assert picture.cluster.market.region == "eu-west-1"
    assert asked(picture, provider).answer > 0


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
    market.see_zones(["eu-west-1a"])
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
