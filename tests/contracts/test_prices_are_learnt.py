"""Prices that Prometheus or an annotation says: for what is sold, one for all nodes of a kind, or refused."""

import json

import pytest

from karpool.model.contracts.learnt_prices import (
    PriceAnswer,
    PricedNode,
    PriceSample,
    PriceSource,
    SoldAs,
    learnt_prices,
    read_answer,
)
from karpool.model.errors import Invalid
from karpool.provisioning.price_answers import price_asker

NOW = 1_800_000_000.0
M5 = SoldAs.of("m5.large", "us-east-1", "us-east-1a", "on-demand")


def vector(*series):
    result = [{"metric": labels, "value": [NOW, text]} for labels, text in series]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def node(name="a", offering=M5, *, listed=0.096, provider_id="aws:///us-east-1a/i-1", annotated=""):
    return PricedNode(name, provider_id, offering, listed, annotated)


def sample(price, instance_type="m5.large", provider_id="i-1"):
    return PriceSample(price, instance_type, provider_id)


def test_opencost_says_what_a_node_costs():
    labels = {"node": "a", "instance": "a", "instance_type": "m5.large", "provider_id": "i-1"}

    answer = read_answer(vector((labels, "0.07")), NOW)

    assert answer == PriceAnswer({"a": [sample(0.07)]})
    assert learnt_prices([node()], answer) == ({M5: 0.07}, ())


def test_scraped_without_honouring_labels_the_node_has_another_label():
    answer = read_answer(vector(({"instance": "opencost:9003", "exported_instance": "a"}, "0.07")), NOW)

    assert list(answer.samples) == ["a"]


@pytest.mark.parametrize("text", ["NaN", "-0.1", "+Inf", "1e9", "0", "0.1.2", "", "ten", "1" * 50])
def test_what_is_no_price_is_refused_and_said(text):
    answer = read_answer(vector(({"node": "a"}, text), ({"node": "b"}, "0.07")), NOW)

    assert list(answer.samples.get("a", ())) == []
    assert answer.samples["b"] == [PriceSample(0.07)]
    (remark,) = answer.remarks
    assert "node 'a'" in remark
    assert "must be USD per hour" in remark


def test_other_currencies_are_refused_named_or_not():
    named = read_answer(vector(({"node": "a", "currency": "EUR"}, "0.07")), NOW)
    prices, (remark,) = learnt_prices([node()], PriceAnswer({"a": [sample(14.4)]}))  # yen

    assert "prices are in USD" in named.remarks[0]
    assert prices == {}
    assert "another currency, or per month?" in remark


def test_an_answer_of_another_time_is_refused():
    answer = read_answer(vector(({"node": "a"}, "0.07")), NOW + 601)

    assert "601 s ago" in answer.remarks[0]
    assert not answer.samples.get("a")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>",
        b"[]",
        b"\xff\xfe",
        b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": 1}]}}',
        b'{"status": "error", "error": "parse error"}',
        b'{"status": "success", "data": {"resultType": "matrix", "result": []}}',
        b"[" * 100_000,
        b" " * (16 * 2**20 + 1),
    ],
)
def test_what_is_no_answer_is_an_error(data):
    with pytest.raises(Invalid):
        read_answer(data, NOW)


def test_only_a_few_remarks_are_kept():
    answer = read_answer(vector(*(({"node": str(number)}, "NaN") for number in range(9))), NOW)

    assert len(answer.remarks) == 6
    assert answer.remarks[-1] == "and 4 more"


def test_a_node_of_the_same_name_in_another_cluster_teaches_nothing():
    of_both = {"a": [sample(0.05, provider_id="i-2"), sample(0.07)]}

    assert learnt_prices([node()], PriceAnswer(of_both)) == ({M5: 0.07}, ())
    assert learnt_prices([node()], PriceAnswer({"a": of_both["a"][:1]})) == ({}, ())


def test_a_sample_of_another_type_is_refused():
    prices, (remark,) = learnt_prices([node()], PriceAnswer({"a": [sample(0.07, "m5.xlarge")]}))

    assert prices == {}
    assert "the node is m5.large" in remark


def test_nodes_of_a_kind_that_do_not_agree_teach_nothing():
    nodes = [node("a"), node("b", provider_id="")]

    prices, (remark,) = learnt_prices(nodes, PriceAnswer({"a": [sample(0.07)], "b": [sample(0.08)]}))
    nearly, _ = learnt_prices(nodes, PriceAnswer({"a": [sample(0.07)], "b": [sample(0.0702)]}))

    assert prices == {}
    assert "a says 0.07 and b says 0.08" in remark
    assert nearly == {M5: 0.0702}


def test_on_demand_is_learnt_for_the_region_and_spot_for_its_zone():
    spot = SoldAs.of("m5.large", "us-east-1", "us-east-1a", "spot")

    assert SoldAs.of("m5.large", "us-east-1", "us-east-1b", "on-demand") == M5
    assert SoldAs.of("m5.large", "us-east-1", "us-east-1b", "spot") != spot
    assert SoldAs.of("m5.large", "us-east-1", "us-east-1b", "") == M5


def test_what_is_reserved_teaches_nothing():
    reserved = SoldAs.of("m5.large", "us-east-1", "us-east-1a", "reserved")

    assert learnt_prices([node(offering=reserved)], PriceAnswer({"a": [sample(0.07)]})) == ({}, ())


def test_the_annotation_of_a_node_counts_before_prometheus():
    assert learnt_prices([node(annotated="0.06")], PriceAnswer({"a": [sample(0.07)]}))[0] == {M5: 0.06}
    prices, (remark,) = learnt_prices([node(annotated="cheap")], PriceAnswer({"a": [sample(0.07)]}))
    assert prices == {}
    assert "metadata.annotations" in remark


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def now(self):
        return NOW + self.seconds

    def monotonic(self):
        return self.seconds


def test_prometheus_is_asked_once_a_minute_and_forgotten_after_ten():
    clock, urls, answers = Clock(), [], [vector(({"node": "a"}, "0.07"))]

    def fetch(url):
        urls.append(url)
        if not answers:
            raise OSError("connection refused")
        return answers.pop()

    ask = price_asker(fetch, clock)
    source = PriceSource(prometheus="http://prometheus:9090/", query='cost{cluster="a"}')

    first = ask(source)
    assert first.samples == {"a": [PriceSample(0.07)]}
    assert urls == ["/api/v1/query?query=cost%7Bcluster%3D%22a%22%7D"]
    clock.seconds = 59.0
    assert ask(source) is first
    assert len(urls) == 1
    clock.seconds = 599.0
    assert ask(source) is first  # it is asked again, beside
    clock.seconds = 601.0
    silent = ask(source)
    assert silent.samples == {}
    assert "Prometheus at http://prometheus:9090/ does not say what nodes cost" in silent.remarks[0]
    assert ask(source) is silent


def test_a_prometheus_that_cannot_be_reached_is_said():
    def fetch(url):
        raise OSError("connection refused")

    answer = price_asker(fetch, Clock())(PriceSource(prometheus="http://prometheus:9090"))

    assert "connection refused" in answer.remarks[0]


def test_of_two_samples_of_a_node_the_dearer_counts():
    two = {"a": [sample(0.08), sample(0.07)]}

    assert learnt_prices([node()], PriceAnswer(two))[0] == {M5: 0.08}
    assert learnt_prices([node()], PriceAnswer({"a": two["a"][::-1]}))[0] == {M5: 0.08}


@pytest.mark.parametrize(("price", "is_likely"), [(0.479, True), (0.481, False)])
def test_five_times_the_list_is_the_most(price, is_likely):
    assert (M5 in learnt_prices([node()], PriceAnswer({"a": [sample(price)]}))[0]) is is_likely


def test_without_a_list_price_any_price_of_a_machine_is_believed():
    assert learnt_prices([node(listed=None)], PriceAnswer({"a": [sample(14.4)]}))[0] == {M5: 14.4}
