"""`karpool plan` and `karpool explain node` on files: what goes, what it saves, and what holds the rest."""

import json

import pytest
import yaml

from karpool.cli.main import run
from karpool.kube.clock import RealClock
from karpool.model.kubernetes.times import rfc3339
from tests.consolidation.cluster_objects import flat, node, pod, pool

LARGE, XLARGE = 0.096, 0.192


@pytest.fixture
def plan(tmp_path, capsys):
    """The exit code, stdout and stderr of `karpool plan` on a cluster."""

    def command(*objects, more=(), command=("plan",)):
        path = tmp_path / "prod.yaml"
        path.write_text(yaml.safe_dump_all(flat(*objects)))
        code = run([*command, "--snapshot", str(path), *more], "karpool")
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return command


@pytest.fixture
def as_json(plan):
    def command(*objects, more=(), command=("plan",)):
        code, out, _ = plan(*objects, more=[*more, "-o", "json"], command=command)
        assert code == 0
        return json.loads(out)

    return command


def two_half_empty(**pool_settings):
    """The pods of either node fit on the other."""
    return (
        pool(**pool_settings),
        node("a"),
        node("b"),
        pod("a-1", "a"),
        pod("b-1", "b"),
        pod("b-2", "b", cpu="600m"),
    )


def test_a_plan_says_what_goes_what_it_saves_and_where_each_pod_goes(as_json):
    found = as_json(*two_half_empty())

    assert found["kind"] == "ConsolidationPlan"
    assert found["cluster"] == "prod.yaml"
    (move,) = found["moves"]
    assert [each["name"] for each in move["nodes"]] == ["a"]
    assert move["savings_per_hour"] == pytest.approx(LARGE)
    assert move["savings_per_month"] == pytest.approx(LARGE * 730)
    assert [(each["pod"], each["node"]) for each in move["pods"]] == [("team/a-1", "b")]
    assert (found["before"]["nodes"], found["after"]["nodes"]) == (2, 1)
    assert found["after"]["price_per_hour"] == pytest.approx(LARGE)


def test_a_node_that_stays_names_the_pod_that_holds_it(as_json):
    held = {"karpenter.sh/do-not-disrupt": "true"}
    found = as_json(
        pool(), node("a"), node("b"), pod("a-1", "a", annotations=held), pod("b-1", "b", annotations=held)
    )

    reasons = {each["node"]: each["why"][0] for each in found["held"]}
    assert reasons["a"]["code"] == "pod_do_not_disrupt"
    assert reasons["a"]["object"] == "pod team/a-1"
    assert found["moves"] == []


def test_a_score_below_the_threshold_is_a_rejected_move_with_its_numbers(as_json):
    """A replacement saves a quarter of the pool's cost, for 10 of the 14 that its nodes disturb."""
    stays = {"karpenter.sh/do-not-disrupt": "true"}
    objects = (
        pool(consolidationPolicy="Balanced"),
        node("a", "m5.xlarge"),
        node("b"),
        node("c"),
        [pod(f"a-{number}", "a", cpu="200m") for number in range(9)],
        pod("b-1", "b", cpu="1900m", annotations=stays),
        pod("c-1", "c", cpu="1900m", annotations=stays),
    )

    strict, lax = (as_json(*objects, more=["--threshold", k]) for k in ("2", "3"))

    assert strict["moves"] == []
    (rejected,) = strict["rejected"]
    assert rejected["move"]["score"] == pytest.approx(0.25 / (10 / 14))
    assert rejected["why"][0]["code"] == "score"
    assert "score 0.35 < threshold 0.50 of nodepool general" in rejected["why"][0]["message"]
    (move,) = lax["moves"]
    assert [each["options"][0]["instance_type"] for each in move["new_nodes"]] == ["m5.large"]
    assert move["savings_per_hour"] == pytest.approx(XLARGE - LARGE)
    assert {each["new_node"] for each in move["pods"]} == {0}


def test_policies_are_compared_side_by_side(plan):
    more = ["--policy", "WhenEmpty", "--policy", "WhenEmptyOrUnderutilized", "--policy", "Balanced"]
    _, out, _ = plan(*two_half_empty(), more=[*more, "--threshold", "1", "--threshold", "2"])

    lines = out.splitlines()
    assert [line.split("   ")[0] for line in lines[1:5]] == [
        "WhenEmpty",
        "WhenEmptyOrUnderutilized",
        "Balanced k=1",
        "Balanced k=2",
    ]
    assert lines[1].split()[1] == "0"
    assert lines[2].split()[1] == "1"


def test_a_comparison_is_a_document_of_its_own(as_json):
    found = as_json(*two_half_empty(), more=["--threshold", "1", "--threshold", "2"])

    assert found["kind"] == "ConsolidationComparison"
    assert [(each["label"], each["flags"]["threshold"]) for each in found["items"]] == [
        ("Balanced k=1", 1),
        ("Balanced k=2", 2),
    ]


def test_the_annotation_gives_balanced_to_older_versions(as_json):
    annotations = {"karpool.dev/consolidation-policy": "Balanced", "karpool.dev/consolidation-threshold": "3"}

    found = as_json(*two_half_empty(annotations=annotations))

    assert found["pools"][0]["policy"] == "Balanced (k=3)"
    assert found["moves"][0]["score"] is not None


def test_one_pool_that_cannot_be_read_does_not_stop_the_others(plan):
    broken = pool("broken", annotations={"karpool.dev/consolidation-threshold": "many"})
    other = (broken, node("x", pool="broken"), pod("x-1", "x", cpu="1900m"))

    code, out, _ = plan(*two_half_empty(), *other, more=["-o", "json"])

    found = json.loads(out)
    assert code == 0
    assert [each["name"] for move in found["moves"] for each in move["nodes"]] == ["a"]
    held = {each["node"]: each["why"][0]["message"] for each in found["held"]}
    assert "karpool.dev/consolidation-threshold" in held["x"]


def test_the_switch_stops_everything_and_says_so(plan):
    switch = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "karpool-consolidation", "namespace": "karpool-system"},
        "data": {"stop": "true"},
    }

    _, out, _ = plan(*two_half_empty(), switch)

    assert out.startswith("STOPPED: ")
    assert "nothing to move" in out


def refused(claim, at):
    """Karpenter's event about a claim that could not be launched."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "NodeClaim", "name": claim},
        "reason": "InsufficientCapacityError",
        "message": "no capacity",
        "lastTimestamp": at,
    }


def waiting_claim(name, type_):
    requirements = [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [type_]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
    ]
    labels = {"karpenter.sh/nodepool": "general"}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": name, "labels": labels},
        "spec": {"requirements": requirements},
    }


@pytest.mark.parametrize(
    ("minutes_ago", "bought"), [(1, ["m5.xlarge"]), (60, ["m5.large"])], ids=["just now", "long ago"]
)
def test_no_replacement_is_planned_into_a_stock_out(as_json, minutes_ago, bought):
    at = rfc3339(RealClock().now() - 60 * minutes_ago)
    objects = (
        pool(),
        node("a", "m5.2xlarge"),
        [pod(f"a-{number}", "a", cpu="200m") for number in range(3)],
        waiting_claim("general-x", "m5.large"),
        refused("general-x", at),
    )

    found = as_json(*objects)

    assert [each["options"][0]["instance_type"] for each in found["moves"][0]["new_nodes"]] == bought


@pytest.mark.parametrize("form", ["table", "wide", "yaml", "html"])
def test_every_form_names_the_move(plan, form):
    code, out, _ = plan(*two_half_empty(), more=["-o", form])

    assert code == 0
    assert "team/a-1" in out


def test_a_cluster_without_anything_is_an_answer(plan):
    code, out, _ = plan(pool())

    assert code == 0
    assert out.startswith("nothing to move")


def test_flags_that_leave_nothing_are_wrong_usage(plan):
    code, _, err = plan(*two_half_empty(), more=["--no-delete", "--no-replace"])

    assert code == 2
    assert "cannot be combined" in err


def explain(name):
    return {"command": ("explain", "node", name)}


def test_a_node_that_goes_is_explained_with_its_score_and_pods(plan):
    objects = two_half_empty(consolidationPolicy="Balanced")

    code, out, _ = plan(*objects, **explain("a"))

    assert code == 0
    assert out.startswith("a goes")
    assert "threshold 0.50 (k: 2, savings 50.0%" in out
    assert "team/a-1" in out


def test_a_node_that_is_held_is_explained_with_what_if(plan):
    held = {"karpenter.sh/do-not-disrupt": "true"}
    objects = (pool(), node("a", annotations=held), node("b"), pod("a-1", "a"), pod("b-1", "b", cpu="1900m"))

    _, out, _ = plan(*objects, **explain("a"))

    assert out.startswith("a stays")
    assert "karpenter.sh/do-not-disrupt forbids it" in out


def test_an_explanation_is_a_document(as_json):
    found = as_json(*two_half_empty(), **explain("b"))

    assert found["kind"] == "NodeExplanation"
    assert found["node"] == "b"
    assert found["what_if"]["pods"]


def test_a_node_that_is_not_there_is_a_failure_with_a_way_out(plan):
    code, _, err = plan(*two_half_empty(), **explain("zz"))

    assert code == 1
    assert "node zz is not in prod.yaml" in err


_NODE = ("explain", "node", "a")
_MARS = ["--region", "mars"]


@pytest.mark.parametrize(
    ("command", "flags", "said"),
    [
        (_NODE, ["--policy", "WhenEmpty", "--threshold", "2"], "--threshold is for --policy Balanced"),
        (_NODE, _MARS, "no catalogue is shipped for it; `karpool catalogue regions` lists"),
        (("plan",), _MARS, "no catalogue is shipped for it; `karpool catalogue regions` lists"),
    ],
)
def test_flags_that_mean_nothing_are_wrong_usage(plan, command, flags, said):
    code, out, err = plan(*two_half_empty(), more=flags, command=command)
    assert (code, out) == (2, "")
    assert said in err


def test_thresholds_are_compared_with_another_policy_in_one_run(plan):
    flags = ["--policy", "WhenEmptyOrUnderutilized", "--threshold", "1", "--threshold", "3"]
    code, out, _ = plan(*two_half_empty(), more=flags)
    assert code == 0
    for label in ("WhenEmptyOrUnderutilized", "Balanced k=1", "Balanced k=3"):
        assert label in out


def test_a_threshold_alone_means_balanced_for_a_node_as_for_a_plan(plan):
    code, out, _ = plan(*two_half_empty(), more=["--threshold", "1"], command=("explain", "node", "a"))
    assert code == 0
    assert "threshold 1.00 (k: 1" in out


@pytest.mark.long
def test_a_file_without_nodes_is_doubted(plan):
    code, out, err = plan(pool())
    assert (code, err) == (0, "there are no nodes in prod.yaml; is that the cluster you mean?\n")
    assert out.startswith("nothing to move")


def test_names_are_not_broken_in_the_report(plan):
    _, out, _ = plan(*two_half_empty(), more=["-o", "html"])
    assert '<td class="w">a</td>' in out
    assert "Rejected moves" not in out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--rate", "5"], "--rate: '5': must be nodes per time, like 5/1h"),
        (["--maintenance-window", "nonsense"], "--maintenance-window: 'nonsense': must be a cron schedule"),
        (["--metrics-bind-address", "here"], "--metrics-bind-address: 'here': must be host:port"),
        (["--policy", "WhenEmpty", "--threshold", "1"], "--threshold is for --policy Balanced"),
    ],
)
def test_the_consolidator_refuses_flags_by_name(flags, said, capsys):
    assert run(["consolidator", *flags], "karpool") == 2
    assert said in capsys.readouterr().err


def test_a_claim_without_a_node_is_told_from_a_node_that_does_not_exist(plan):
    both = flat(*two_half_empty())
    left = [each for each in both if each["kind"] != "Node"]
    claim = next(each for each in left if each["kind"] == "NodeClaim")["metadata"]["name"]
    code, _, err = plan(*left, command=("explain", "node", claim))
    assert code == 1
    assert f"{claim} is a NodeClaim without a node" in err
    code, _, err = plan(*left, command=("explain", "node", "nobody"))
    assert code == 1
    assert "node nobody is not in prod.yaml; see kubectl get nodes" in err
