"""The manifests of deploy/ on the real API server: strict validation, Pod Security at its strictest."""

import copy
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.manifests import KUSTOMIZE, objects

from e2e.control_plane import ApiServer, api_server, etcd
from e2e.peers import Built

Object = dict[str, Any]
RUNNING = ("estimator", "scheduler", "descheduler", "consolidator", "gpu-scaler", "dashboard")


class Kubectl:
    def __init__(self, program: Path, server: ApiServer) -> None:
        self._command = [str(program), f"--kubeconfig={server.kubeconfig()}"]

    def run(self, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*self._command, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def kubectl(peers: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """A server of its own: what is installed here must not meet what the other stories install."""
    folder, kubernetes = tmp_path_factory.mktemp("installing"), peers["kubernetes"]
    with etcd(peers["etcd"], folder) as url, api_server(kubernetes, folder, url, "installing") as server:
        found = Kubectl(kubernetes.program("kubectl"), server)
        found("create", "namespace", "karmada-system")
        found("label", "namespace", "karmada-system", "pod-security.kubernetes.io/enforce=restricted")
        for name in ("member", "consolidator", "dashboard", "host", "estimator-access", "karmada-access"):
            done = found.run(
                "apply",
                "--server-side",
                "--force-conflicts",
                "--validate=strict",
                "-k",
                str(KUSTOMIZE / name),
            )
            assert done.returncode == 0, f"{name}: {done.stderr}"
            assert "Warning" not in done.stderr, f"{name}: {done.stderr}"
        yield found


def pod_of(folder: str) -> Object:
    (found,) = [each for each in objects(folder) if each["kind"] == "Deployment"]
    template = copy.deepcopy(found["spec"]["template"])
    meta = {
        "name": "one",
        "namespace": found["metadata"]["namespace"],
        "labels": template["metadata"]["labels"],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}


def created(kubectl: Kubectl, pod: Object) -> "subprocess.CompletedProcess[str]":
    return kubectl.run("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(pod))


@pytest.mark.parametrize("folder", RUNNING)
def test_pods_are_admitted_at_the_restricted_level(kubectl: Kubectl, folder: str) -> None:
    done = created(kubectl, pod_of(folder))
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr


def test_a_pod_that_may_do_more_is_not_admitted(kubectl: Kubectl) -> None:
    loose = pod_of("scheduler")
    del loose["spec"]["securityContext"]["seccompProfile"]
    done = created(kubectl, loose)
    assert done.returncode != 0 and 'violates PodSecurity "restricted:latest"' in done.stderr


_BINDINGS, _CLAIMS, _POOLS = (
    "work.karmada.io/resourcebindings",
    "karpenter.sh/nodeclaims",
    "karpenter.sh/nodepools",
)
# Verb, group and resource, and where it is not everywhere the namespace.
MAY = {
    "karmada-system:karpool-scheduler": [f"patch {_BINDINGS}", "get /services karmada-system"],
    "karmada-system:karpool-estimator": ["list /pods", f"watch {_POOLS}"],
    "karpool-system:karpool-consolidator": [f"delete {_CLAIMS}", "create /pods karpool-smart-pods"],
    "karpool-system:karpool-gpu-scaler": ["create /pods/binding", "delete /pods karpool-smart-pods"],
}
MAY_NOT = {
    "karmada-system:karpool-scheduler": [f"delete {_BINDINGS}", "get /services", "list /pods"],
    "karmada-system:karpool-estimator": [
        "patch /pods",
        "create /pods",
        "list /configmaps",
        f"watch {_BINDINGS}",
    ],
    "karpool-system:karpool-consolidator": [f"create {_CLAIMS}", "create /pods", "delete /nodes"],
    "karpool-system:karpool-gpu-scaler": ["delete /pods", f"delete {_CLAIMS}", "patch /nodes"],
}


def allowed(kubectl: Kubectl, account: str, asked: str) -> bool:
    verb, what, *where = asked.split()
    group, resource, *subresource = what.split("/")
    attributes = {"verb": verb, "group": group, "resource": resource, "namespace": "".join(where)}
    attributes["subresource"] = "".join(subresource)
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": f"system:serviceaccount:{account}", "resourceAttributes": attributes},
    }
    answer = json.loads(kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(review)))
    return bool(answer["status"]["allowed"])


@pytest.mark.parametrize("account", MAY)
def test_accounts_may_do_their_work_and_no_more(kubectl: Kubectl, account: str) -> None:
    assert [each for each in MAY[account] if not allowed(kubectl, account, each)] == []
    never = [*MAY_NOT[account], "get /secrets", "create rbac.authorization.k8s.io/clusterrolebindings"]
    assert [each for each in never if allowed(kubectl, account, each)] == []


def test_the_kind_of_scale_ups_is_served_with_its_columns(kubectl: Kubectl) -> None:
    kubectl("wait", "--for=condition=Established", "crd/scaleups.gpu.karpool.dev", "--timeout=120s")
    scale_up = {
        "apiVersion": "gpu.karpool.dev/v1alpha1",
        "kind": "ScaleUp",
        "metadata": {"name": "shared", "namespace": "karpool-smart-pods"},
        "spec": {"pool": "shared", "gpus": 1},
    }
    kubectl("create", "--validate=strict", "-f", "-", stdin=json.dumps(scale_up))
    assert kubectl("get", "sup", "-n", "karpool-smart-pods").splitlines()[0].split()[:3] == [
        "NAME",
        "POOL",
        "MODEL",
    ]
