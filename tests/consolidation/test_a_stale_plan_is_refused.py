"""`karpool apply` makes a plan's moves only while every one of them would be decided again."""

import asyncio
import json
from dataclasses import replace

import pytest
import yaml
from click.testing import CliRunner

from karpool.cli.exit_codes import CommandFailed
from karpool.cli.main import run
from karpool.cli.options.cluster import ClusterOptions
from karpool.cli.run.apply import ApplyOptions, applied, apply
from karpool.consolidation.planning.plan_file import parse_plan, read_plan
from karpool.model.errors import Invalid
from tests.consolidation.cluster_objects import flat, node, pod, pool


def cluster(*more, **pool_settings):
    return flat(
        pool(**pool_settings),
        node("a"),
        node("b"),
        node("c"),
        pod("a-1", "a"),
        pod("b-1", "b"),
        pod("c-1", "c", cpu="900m", annotations={"karpenter.sh/do-not-disrupt": "true"}),
        *more,
    )


@pytest.fixture
def write(tmp_path):
    def file(objects, name="cluster.yaml"):
        path = tmp_path / name
        path.write_text(yaml.safe_dump_all(objects))
        return ClusterOptions(snapshot=path)

    return file


MADE = {}


@pytest.fixture
def planned(write, capsys):
    """A plan of a cluster, as `karpool plan` saves it. Made once for each cluster."""

    def saved(objects, *more):
        key = json.dumps(objects), more
        if key not in MADE:
            options = write(objects)
            assert run(["plan", "--snapshot", str(options.snapshot), "-o", "json", *more], "karpool") == 0
            MADE[key] = capsys.readouterr().out.encode()
        return parse_plan(MADE[key])

    return saved


class Executor:
    def __init__(self):
        self.made = []

    async def __call__(self, cluster, moves, settings, seen):
        self.made += [move.names for move in moves]


def apply_options(**how):
    return ApplyOptions(**{"max_age_seconds": 0.0, **how})


def attempt(saved, options, **how):
    executor = Executor()
    found = asyncio.run(applied(saved, options, apply_options(**how), execute=executor))
    return executor.made, found


def test_a_plan_of_an_unchanged_cluster_is_carried_out(planned, write):
    saved = planned(cluster())

    made, found = attempt(saved, write(cluster()))

    assert sorted(made) == [("a",), ("b",)]
    assert found.unchanged


def test_what_does_not_touch_the_plan_does_not_make_it_stale(planned, write):
    saved = planned(cluster())
    elsewhere = pod("new", "c", cpu="10m")

    made, found = attempt(saved, write(cluster(elsewhere)))

    assert made
    assert not found.unchanged


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(lambda: cluster(pod("late", "a")), "team/late was added to the node", id="a new pod"),
        pytest.param(
            lambda: [each for each in cluster() if each["metadata"]["name"] != "a"],
            "node a no longer exists",
            id="a node that is gone",
        ),
        pytest.param(
            lambda: cluster(pod("big", "c", cpu="1000m")),
            "fit only on b",
            id="no room any more",
        ),
        pytest.param(
            lambda: cluster(budgets=[{"nodes": "0"}]), "budget 0 of nodepool general", id="a budget"
        ),
        pytest.param(
            lambda: cluster(annotations={"karpool.dev/consolidation-stop": "true"}),
            "stopped",
            id="the switch",
        ),
        pytest.param(lambda: reborn("a"), "another NodeClaim than planned", id="a node of the same name"),
        pytest.param(
            lambda: cluster(consolidationPolicy="WhenEmpty"), "WhenEmpty", id="another policy of the pool"
        ),
    ],
)
def test_a_plan_that_would_not_be_made_again_is_refused_and_says_why(planned, write, capsys, change, words):
    saved = planned(cluster())

    with pytest.raises(CommandFailed, match="the plan is stale"):
        attempt(saved, write(change()))

    assert words in capsys.readouterr().out


def reborn(name):
    changed = cluster()
    for each in changed:
        if each["metadata"].get("uid") == f"uid-{name}":
            each["metadata"]["uid"] = "another"
    return changed


def test_partial_leaves_out_what_does_not_hold(planned, write):
    saved = planned(cluster())

    made, found = attempt(saved, write(cluster(pod("late", "a"))), partial=True)

    assert made == [("b",)]
    assert len(found.refused) == 1


def test_strict_refuses_any_change(planned, write):
    saved = planned(cluster())

    with pytest.raises(CommandFailed, match="the cluster has changed"):
        attempt(saved, write(cluster(pod("new", "c", cpu="10m"))), strict=True)


@pytest.mark.parametrize("age", [3601, -600], ids=["too old", "from the future"])
def test_the_age_of_a_plan_counts(planned, write, age):
    saved = planned(cluster())
    other = replace(saved, plan=replace(saved.plan, made_at=saved.plan.made_at - age))

    with pytest.raises(CommandFailed, match="the plan is"):
        attempt(other, write(cluster()), max_age_seconds=3600.0)


def test_budgets_count_whatever_the_plan_was_made_with(planned, write):
    saved = planned(cluster(budgets=[{"nodes": "0"}]), "--ignore-budgets")
    assert saved.plan.moves

    with pytest.raises(CommandFailed, match="stale"):
        attempt(saved, write(cluster(budgets=[{"nodes": "0"}])))


def test_the_policy_that_was_asked_for_is_asked_again(planned, write):
    saved = planned(cluster(consolidationPolicy="WhenEmpty"), "--policy", "WhenEmptyOrUnderutilized")

    made, _ = attempt(saved, write(cluster(consolidationPolicy="WhenEmpty")))

    assert made


@pytest.mark.parametrize("flags", [{"policy": "Whatever"}, {"threshold": 9}, {"spot_to_spot": "perhaps"}])
def test_flags_that_cannot_be_read_refuse_the_plan(planned, write, flags):
    saved = replace(planned(cluster()), flags=flags)

    with pytest.raises(Invalid):
        attempt(saved, write(cluster()))


def test_a_move_that_a_file_says_twice_is_made_once(planned, write):
    saved = planned(cluster())
    twice = replace(saved, plan=replace(saved.plan, moves=saved.plan.moves * 2))

    made, _ = attempt(twice, write(cluster()))

    assert sorted(made) == sorted(set(made))


@pytest.mark.parametrize("change", ["id", "nodes"])
def test_a_plan_that_contradicts_itself_is_refused(planned, write, change):
    saved = planned(cluster())
    one, other = saved.plan.moves
    other = replace(other, **{change: getattr(one, change)})
    wrong = replace(saved, plan=replace(saved.plan, moves=(one, other)))

    with pytest.raises(Invalid, match="occurs twice"):
        attempt(wrong, write(cluster()))


def test_a_dry_run_changes_nothing(planned, write, tmp_path):
    executor = Executor()

    asyncio.run(
        applied(
            planned(cluster()),
            write(cluster()),
            apply_options(dry_run=True),
            execute=executor,
        )
    )

    assert executor.made == []


def test_a_comparison_cannot_be_applied(write, tmp_path, capsys):
    options = write(cluster())
    more = ["--threshold", "1", "--threshold", "2", "-o", "json"]
    assert run(["plan", "--snapshot", str(options.snapshot), *more], "karpool") == 0
    path = tmp_path / "plan.json"
    path.write_text(capsys.readouterr().out)

    with pytest.raises(Invalid, match="one --policy"):
        read_plan(path)


def test_the_command_takes_a_file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"kind": "Pod"}))

    answer = CliRunner().invoke(apply, [str(path)])

    assert isinstance(answer.exception, Invalid)
    assert "save one with karpool plan -o json" in str(answer.exception)
