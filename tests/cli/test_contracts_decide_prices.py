"""`--contract` on the commands: the list price and what a node adds to the bill, side by side."""

import json
import re

import pytest
import yaml

from karpool.cli.main import run
from tests.consolidation.cluster_objects import flat, node, pod, pool

LARGE = 0.096


@pytest.fixture
def answer(tmp_path, capsys):
    def command(objects, contract, *words, expect=0):
        cluster, file = tmp_path / "prod.yaml", tmp_path / "contract.yaml"
        cluster.write_text(yaml.safe_dump_all(flat(*objects)))
        file.write_text(contract if isinstance(contract, str) else yaml.safe_dump(contract))
        code = run([*words, "--snapshot", str(cluster), "--contract", str(file)], "karpool")
        shown = capsys.readouterr()
        assert code == expect, shown.err
        return shown.err if expect else shown.out

    return command


def contract(**more):
    return {"format": "karpool-contract/1", **more}


def reserved(count):
    return contract(
        commitments=[{"name": "ri", "kind": "reservation", "types": ["m5.large"], "count": count}]
    )


HALF_EMPTY = (pool(), node("a"), node("b"), pod("a-1", "a"), pod("b-1", "b"))


def test_top_shows_the_list_price_and_what_a_node_adds_to_the_bill(answer):
    out = answer(HALF_EMPTY, contract(discounts=[{"name": "d", "families": ["m5"], "percent": 25}]), "top")

    assert "LIST $/H   $/H" in out
    assert "0.096      0.072" in out
    assert "bill $0.144 per hour, by the list $0.192" in out


def test_top_says_how_far_a_commitment_is_used(answer):
    found = json.loads(answer(HALF_EMPTY, reserved(3), "top", "-o", "json"))

    assert [each["list_price_per_hour"] for each in found["items"]] == [LARGE, LARGE]
    assert all(each["price_per_hour"] < 1e-6 for each in found["items"])
    assert found["bill"]["beyond"] == 0
    assert found["bill"]["uses"] == [{"name": "ri", "used": 2.0, "amount": 3.0, "unit": "machines"}]
    assert "ri: 2.000 of 3.000 machines used here" in answer(HALF_EMPTY, reserved(3), "top")


def test_a_node_inside_a_reservation_is_not_taken_away_for_nothing(answer):
    with_two = json.loads(answer(HALF_EMPTY, reserved(2), "plan", "-o", "json"))
    with_one = json.loads(answer(HALF_EMPTY, reserved(1), "plan", "-o", "json"))

    assert with_two["moves"] == []
    codes = {why["code"] for each in (*with_two["rejected"], *with_two["held"]) for why in each["why"]}
    assert "bill_does_not_fall" in codes
    (move,) = with_one["moves"]
    assert move["savings_per_hour"] == pytest.approx(LARGE)
    assert with_one["before"]["list_price_per_hour"] == pytest.approx(2 * LARGE)
    assert with_one["before"]["price_per_hour"] == pytest.approx(LARGE)
    assert with_one["after"]["price_per_hour"] == 0


def test_a_plan_shows_both_prices(answer):
    assert "LIST $/H" in answer(HALF_EMPTY, reserved(1), "plan")


def test_capacity_prices_new_nodes_as_contracted(answer, tmp_path):
    file = tmp_path / "web.yaml"
    template = {"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}
    workload = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "team"},
        "spec": {"containers": [template]},
    }
    file.write_text(yaml.safe_dump(workload))
    words = ("capacity", "-f", str(file), "--replicas", "4", "-o", "json")

    half = json.loads(answer(HALF_EMPTY, contract(discounts=[{"name": "d", "percent": 50}]), *words))
    whole = json.loads(answer(HALF_EMPTY, contract(), *words))

    assert half["new_nodes"] == whole["new_nodes"] > 0
    assert half["price_per_hour"] == pytest.approx(whole["price_per_hour"] / 2)


@pytest.mark.parametrize("command", [("top",), ("plan",)])
def test_a_mistake_in_a_contract_names_file_and_line(answer, command):
    text = "format: karpool-contract/1\ndiscounts:\n  - name: d\n    percent: -3\n"

    err = answer(HALF_EMPTY, text, *command, expect=1)

    assert "--contract" in err
    assert "contract.yaml" in err
    assert "line 4.discounts[0].percent" in err


def test_a_contract_is_checked_with_its_terms(tmp_path, capsys):
    file = tmp_path / "contract.yaml"
    plan = {"kind": "savings-plan", "perHour": 3, "percent": 20}
    entries = [{**plan, "name": "old", "end": "2020-12-31"}, {**plan, "name": "new", "start": "2021-01-01"}]
    file.write_text(yaml.safe_dump(contract(commitments=entries)))

    assert run(["contract", "check", str(file)], "karpool") == 0
    out = capsys.readouterr().out

    assert re.search(r"old +savings-plan +3 dollars +ended +- +2021-01-01T00:00:00Z", out)
    assert re.search(r"new +savings-plan +3 dollars +holds +2021-01-01T00:00:00Z", out)
    assert "$3.000 per hour is paid in any case" in out


def test_the_machines_of_one_cluster_use_up_what_another_counts_on(answer, tmp_path, capsys):
    south, file = tmp_path / "south.yaml", tmp_path / "contract.yaml"
    south.write_text(yaml.safe_dump_all(flat(*HALF_EMPTY)))
    file.write_text(yaml.safe_dump(reserved(2)))
    words = ["contract", "machines", str(file), "--name", "south", "--snapshot", str(south)]
    assert run(words, "karpool") == 0
    elsewhere = yaml.safe_load(capsys.readouterr().out)

    alone = json.loads(answer(HALF_EMPTY, reserved(2), "top", "-o", "json"))
    together = json.loads(answer(HALF_EMPTY, {**reserved(2), **elsewhere}, "top", "-o", "json"))
    text = answer(HALF_EMPTY, {**reserved(2), **elsewhere}, "top")

    assert all(item["price_per_hour"] < 1e-6 for item in alone["items"])
    assert [item["price_per_hour"] for item in together["items"]] == [LARGE, LARGE]
    assert "bill $0.192 per hour, by the list $0.192" in text
    assert "ri: 2.000 of 2.000 machines used, 2.000 by other clusters alone" in text


def test_a_commitment_that_has_ended_is_not_there(answer):
    def ending(day):
        whole = reserved(2)
        whole["commitments"][0]["end"] = day
        return json.loads(answer(HALF_EMPTY, whole, "top", "-o", "json"))

    assert [item["price_per_hour"] for item in ending("2020-01-01")["items"]] == [LARGE, LARGE]
    assert all(item["price_per_hour"] < 1e-6 for item in ending("2100-01-01")["items"])


def test_capacity_shows_the_list_price_beside_what_new_nodes_add(answer, tmp_path):
    """Three machines are reserved, two run: of the new ones the first is paid for, the others are not."""
    file = tmp_path / "web.yaml"
    container = {"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}
    metadata = {"name": "web", "namespace": "team"}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    file.write_text(yaml.safe_dump(document))
    only_large = (pool(types=("m5.large",)), *HALF_EMPTY[1:])

    words = ("capacity", "-f", str(file), "--replicas", "5")
    found = json.loads(answer(only_large, reserved(3), *words, "-o", "json"))
    text = answer(only_large, reserved(3), *words)

    assert found["new_nodes"] == 3
    assert found["list_price_per_hour"] == pytest.approx(3 * LARGE)
    assert found["price_per_hour"] == pytest.approx(2 * LARGE)
    assert "LIST $/H" in text
    assert "$0.192 per hour (by the list $0.288)" in text


OVERLAY = {
    "apiVersion": "karpenter.sh/v1alpha1",
    "kind": "NodeOverlay",
    "metadata": {"name": "half"},
    "spec": {
        "requirements": [
            {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m5.large"]}
        ],
        "priceAdjustment": "-50%",
    },
}


@pytest.mark.long
@pytest.mark.parametrize("with_contract", [False, True])
def test_top_plan_and_capacity_price_by_overlays_alike(tmp_path, capsys, with_contract):
    cluster, file, workload = (tmp_path / f"{name}.yaml" for name in ("prod", "contract", "web"))
    cluster.write_text(yaml.safe_dump_all(flat(pool(types=("m5.large",)), *HALF_EMPTY[1:], OVERLAY)))
    file.write_text(yaml.safe_dump(contract(discounts=[{"name": "none", "families": ["c5"], "percent": 1}])))
    container = {"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}
    metadata = {"name": "web", "namespace": "team"}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    workload.write_text(yaml.safe_dump(document))
    more = ["--contract", str(file)] if with_contract else []

    def answered(*words):
        assert run([*words, "--snapshot", str(cluster), *more, "-o", "json"], "karpool") == 0
        return json.loads(capsys.readouterr().out)

    top, plan = answered("top"), answered("plan")
    capacity = answered("capacity", "-f", str(workload), "--replicas", "4")

    assert [item["price_per_hour"] for item in top["items"]] == [LARGE / 2] * 2
    assert [item["list_price_per_hour"] for item in top["items"]] == [LARGE] * 2
    assert plan["before"]["price_per_hour"] == pytest.approx(LARGE)
    assert capacity["price_per_hour"] == pytest.approx(capacity["new_nodes"] * LARGE / 2)
    assert capacity["list_price_per_hour"] == pytest.approx(capacity["new_nodes"] * LARGE)
