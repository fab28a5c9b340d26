"""`--device-shapes`: what drivers publish on new nodes, for `capacity`, `explain pod` and the estimator."""

import json

import pytest
import yaml

from karpool.cli.main import run
from karpool.cluster.cluster import Cluster
from karpool.estimator.plugins.interface import EstimateCode
from karpool.estimator.plugins.registry import PROVIDERS, PluginSettings
from karpool.estimator.question import EstimateQuestion
from karpool.model.karmada.replica_requirements import ReplicaRequirements
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import shape_of
from karpool.provisioning.device_shapes import device_shapes_of
from karpool.wire.requests import ReplicasRequest
from tests.cli.test_plans_know_resource_claims import CLASS, TEMPLATE, claiming, devices, node, pool
from tests.consolidation.cluster_objects import flat

WAITING = claiming("train", "", resourceClaimTemplateName="one")
WAITING["spec"].pop("nodeName", None)
WAITING["status"] = {"phase": "Pending"}
OBJECTS = [
    pool("web", types=("m5.large",)),
    node("other", "m5.large", pool="web"),
    CLASS,
    TEMPLATE,
    WAITING,
]


@pytest.fixture
def shapes(tmp_path):
    """A file that says of m5.large that a driver publishes one device there."""
    published = devices("any", 1)
    published["metadata"]["labels"] = {"node.kubernetes.io/instance-type": "m5.large"}
    path = tmp_path / "shapes.yaml"
    path.write_text(yaml.safe_dump(published))
    return path


@pytest.fixture
def ask(tmp_path, capsys):
    def command(*words):
        path = tmp_path / "prod.yaml"
        path.write_text(yaml.safe_dump_all(flat(*OBJECTS)))
        code = run([*words, "--snapshot", str(path), "-o", "json"], "karpool")
        shown = capsys.readouterr()
        return code, json.loads(shown.out) if shown.out else shown.err

    return command


def test_capacity_counts_nodes_that_the_file_describes(ask, shapes):
    words = ("capacity", "pod/train", "-n", "team")

    _, without = ask(*words)
    code, with_file = ask(*words, "--device-shapes", str(shapes))

    assert without["verdict"] != "fits after scale-up"
    assert (code, with_file["verdict"]) == (0, "fits after scale-up")


def test_explain_pod_says_that_a_node_can_come(ask, shapes):
    code, said = ask("explain", "pod", "team/train", "--device-shapes", str(shapes))

    assert code == 0
    assert [offer["name"] for offer in said["offers"] if offer["instanceTypes"]] == ["karpenter/web"]


def test_a_file_that_is_none_is_named(ask, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("kind: ResourceSlice")

    code, said = ask("capacity", "pod/train", "-n", "team", "--device-shapes", str(path))

    assert code == 1
    assert "--device-shapes" in said and str(path) in said and "instance-type" in said


@pytest.mark.parametrize("has_file", [True, False])
def test_the_estimator_counts_on_it(shapes, has_file):
    settings = PluginSettings(device_shapes=device_shapes_of(shapes if has_file else None))
    provider = PROVIDERS["karpenter", "packing"](settings)
    cluster = Cluster(provider.aspects, failures=settings.pool_failures)
    cluster.load(flat(*OBJECTS), 0.0)
    pod = decode(WAITING, Pod)
    request = ReplicasRequest("", ReplicaRequirements(shape_of(pod), "team"))

    answer = provider.estimate(EstimateQuestion(request, cluster.snapshot(0.0)))

    assert (answer.code is EstimateCode.SUCCESS and answer.value > 0) is has_file
