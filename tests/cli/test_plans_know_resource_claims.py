"""`karpool plan` on a cluster in which devices of DRA drivers are given out."""

import json

import pytest
import yaml

from karpool.cli.main import run
from tests.consolidation.cluster_objects import flat, node, pod, pool


@pytest.fixture
def plan(tmp_path, capsys):
    def command(*objects):
        path = tmp_path / "prod.yaml"
        path.write_text(yaml.safe_dump_all(flat(*objects)))
        assert run(["plan", "--snapshot", str(path), "-o", "json"], "karpool") == 0
        return json.loads(capsys.readouterr().out)

    return command


@pytest.mark.parametrize("claims", [None, [{"name": "gpu", "resourceClaimTemplateName": "one"}]])
def test_a_pod_with_a_claim_keeps_its_node(plan, claims):
    web = pod("web", "big", cpu="100m")
    if claims:
        web["spec"]["resourceClaims"] = claims
    objects = pool("web", types=("m5.2xlarge", "m5.large")), node("big", "m5.2xlarge", pool="web"), web

    assert bool(plan(*objects)["moves"]) is not bool(claims)
