"""The plain manifests are the chart's: by its digest always, and by rendering it where there is a Helm."""

import shutil
import subprocess
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
import yaml
from tools import build_manifests
from tools.build_manifests import FOLDERS, HOST, STAMP, NoHelm, find_helm, render, template

from karpool import __version__
from karpool.gpu.records.scale_up_object import definition
from karpool.provisioning.placeholders.prerequisites import namespace, priority_class_of
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings
from tests.deploy.manifests import KUSTOMIZE, Object, folders, identity, objects, of_kind

AGAIN = "the chart changed: run python tools/build_manifests.py (needs helm)"
HELM = find_helm()
rendered = pytest.mark.skipif(
    HELM is None, reason="no helm on PATH or in KARPOOL_HELM: the chart was not rendered"
)
_ALL: Object = {name: {"enabled": True} for name in ("estimator", "scheduler", "descheduler", "gpuScaler")}


def test_the_manifests_were_made_from_this_chart() -> None:
    assert STAMP.read_text().strip() == build_manifests.stamp(), AGAIN


def test_the_chart_carries_the_version_of_the_program() -> None:
    chart = yaml.safe_load((build_manifests.CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == __version__
    images = {
        each["spec"]["template"]["spec"]["containers"][0]["image"]
        for folder in FOLDERS
        for each in of_kind(folder, "Deployment")
    }
    assert images == {f"karpool:{__version__}"}


def test_the_definition_of_scale_ups_is_the_programs_own() -> None:
    (found,) = objects("crds")
    ours = definition()
    assert (found["spec"], found["metadata"]["name"]) == (ours["spec"], ours["metadata"]["name"])


def test_what_smart_pods_need_is_what_the_program_would_make() -> None:
    found = {each["kind"]: each for each in objects("smart-pods")}
    settings = SmartPodSettings()
    made = namespace(settings)["metadata"]
    assert found["Namespace"]["metadata"]["name"] == made["name"]
    security = "pod-security.kubernetes.io/enforce"
    assert found["Namespace"]["metadata"]["labels"][security] == made["labels"][security]
    theirs = {
        key: value for key, value in found["PriorityClass"].items() if key not in ("apiVersion", "kind")
    }
    ours = priority_class_of(settings)
    assert theirs.pop("metadata")["name"] == ours.pop("metadata")["name"]
    assert theirs == ours


@rendered
@pytest.mark.parametrize("name", FOLDERS)
def test_rendering_the_chart_gives_the_manifests(name: str) -> None:
    assert HELM is not None
    text = (KUSTOMIZE / name / "manifests.yaml").read_text()
    assert build_manifests.text(render(HELM, FOLDERS[name])) == text, AGAIN


@pytest.mark.parametrize("folder", folders())
def test_nothing_is_there_twice(folder: str) -> None:
    names = [identity(each) for each in objects(folder)]
    assert len(set(names)) == len(names)


@pytest.mark.kubectl
def test_kubectl_builds_the_same_from_every_folder() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on PATH: kustomizations were read by us alone")
    for folder in ("member", "host"):
        done = subprocess.run(
            [kubectl, "kustomize", str(KUSTOMIZE / folder)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        found = {identity(each): each for each in yaml.safe_load_all(done.stdout)}
        assert found == {identity(each): each for each in objects(folder)}


# What the chart makes of other values


def rendering(values: Object, *arguments: str) -> list[Object]:
    assert HELM is not None
    return template(HELM, "-n", "elsewhere", *arguments, values=values)


def refusal(values: Object) -> str:
    with pytest.raises(NoHelm) as caught:
        rendering(values)
    return str(caught.value)


@rendered
def test_without_a_choice_nothing_runs() -> None:
    kinds = {each["kind"] for each in rendering({})}
    assert kinds == {"ClusterRole", "Role"}  # the reader's, bound to nobody


@rendered
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"estimatr": {"enabled": True}}, "estimatr"),
        ({"consolidator": {"policy": "Always"}}, "policy"),
        ({"consolidator": {"threshold": 9}}, "threshold"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"estimator": {"clusters": [{"name": "Not A Name"}]}}, "clusters"),
        ({"estimator": {"enabled": True}}, "estimator.tls.secretName is needed"),
        ({"scheduler": {"enabled": True}}, "scheduler.kubeconfig.secretName is needed"),
        (
            {"scheduler": {"enabled": True, "kubeconfig": {"secretName": "k"}}},
            "scheduler.estimators.tls.secretName is needed",
        ),
        (
            {"estimator": {"enabled": True}, "certManager": {"enabled": True}},
            "certManager.issuerRef is needed",
        ),
        ({"dashboard": {"enabled": True}}, "dashboard.token.secretName is needed"),
        (
            {"dashboard": {"enabled": True, "token": {"secretName": "t"}}},
            "dashboard.tls.secretName is needed",
        ),
        ({"dashboard": {"service": {"type": "Everywhere"}}}, "service"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_that_cannot_work_are_refused(values: Object, said: str) -> None:
    assert said in refusal(values)


@rendered
def test_certificates_follow_the_release_and_its_namespace() -> None:
    values = {
        **_ALL,
        "certManager": {"enabled": True, "issuerRef": {"name": "ca", "kind": "Issuer"}},
        "fullnameOverride": "capacity",
        "estimator": {"enabled": True, "clusters": [{"name": "m1"}, {"name": "m2"}]},
        "scheduler": {"enabled": True, "kubeconfig": {"secretName": "k"}},
        "descheduler": {"enabled": True, "kubeconfig": {"secretName": "k"}},
        "dashboard": {"enabled": True, "token": {"secretName": "k"}, "tls": {"hosts": ["fleet.example.com"]}},
    }
    found = rendering(values)
    certificates = {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "Certificate"}
    services = {
        f"{each['metadata']['name']}.elsewhere.svc"
        for each in found
        if each["kind"] == "Service" and any(port["name"] == "grpc" for port in each["spec"]["ports"])
    }
    assert set(certificates) == {"capacity-estimator", "capacity-estimator-client", "capacity-dashboard"}
    assert {"capacity-dashboard.elsewhere.svc", "fleet.example.com"} <= set(
        certificates["capacity-dashboard"]["dnsNames"]
    )
    assert len(services) == 2 and services <= set(certificates["capacity-estimator"]["dnsNames"])
    made = {certificate["secretName"] for certificate in certificates.values()}
    mounted = {name for each in found if each["kind"] == "Deployment" for name in secrets_of(each)}
    assert mounted - {"k"} == made


def secrets_of(deployment: Object) -> list[str]:
    volumes: list[Any] = deployment["spec"]["template"]["spec"]["volumes"]
    return [volume["secret"]["secretName"] for volume in volumes if "secret" in volume]


@rendered
def test_access_alone_has_no_pods_and_may_be_given_to_somebody_else() -> None:
    user = {"kind": "User", "name": "karpool", "apiGroup": "rbac.authorization.k8s.io"}
    found = rendering({**_ALL, "render": "access", "rbac": {"subjects": [user]}})
    bindings = [each for each in found if each["kind"].endswith("Binding")]
    assert bindings and all(binding["subjects"] == [user] for binding in bindings)
    assert not {"Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget"} & {
        each["kind"] for each in found
    }


@rendered
def test_a_component_overrides_what_is_set_for_all() -> None:
    values: Object = {
        "replicas": 1,
        "consolidator": {"enabled": True, "replicas": 3, "extraArgs": ["--no-replace"]},
        "gpuScaler": {"enabled": True},
        "image": {"repository": "r/karpool", "digest": "sha256:" + "0" * 64},
        "prometheusRule": {"enabled": True},
        "grafanaDashboards": {"enabled": True},
    }
    found = rendering(values)
    specs = {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "Deployment"}
    assert {name: spec["replicas"] for name, spec in specs.items()} == {
        "karpool-consolidator": 3,
        "karpool-gpu-scaler": 1,
    }
    container = specs["karpool-consolidator"]["template"]["spec"]["containers"][0]
    assert container["args"][-1] == "--no-replace" and container["image"].startswith("r/karpool@sha256:")
    # One replica and a budget of one would only look safe.
    budgets = [each["metadata"]["name"] for each in found if each["kind"] == "PodDisruptionBudget"]
    assert budgets == ["karpool-consolidator"]
    assert [each["kind"] for each in found].count("PrometheusRule") == 2
    boards = [each for each in found if each["kind"] == "ConfigMap"]
    assert len(boards) == 2 and all(
        yaml.safe_load(text) for board in boards for text in board["data"].values()
    )


@rendered
def test_a_catalogue_reaches_every_component_that_reads_prices() -> None:
    found = rendering(
        {
            "catalogue": {"configMapName": "prices"},
            "consolidator": {"enabled": True},
            "gpuScaler": {"enabled": True},
            "estimator": {"enabled": True, "clusters": [{"name": "m"}], "tls": {"insecure": True}},
            "dashboard": {"enabled": True, "token": {"secretName": "t"}, "tls": {"insecure": True}},
        }
    )
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in found
        if each["kind"] == "Deployment"
    }
    with_it = set()
    for name, pod in pods.items():
        flags = [each for each in pod["containers"][0]["args"] if each.startswith("--catalogue=")]
        mounted = [each["mountPath"] for each in pod["containers"][0]["volumeMounts"]]
        volumes = [each["configMap"]["name"] for each in pod["volumes"] if "configMap" in each]
        if flags or volumes:
            assert flags == ["--catalogue=/etc/karpool/catalogue/catalogue.yaml"] and volumes == ["prices"]
            assert "/etc/karpool/catalogue" in mounted
            with_it.add(name)
    assert with_it == set(pods)


def flags_of(found: list[Object]) -> set[str]:
    (deployment,) = [each for each in found if each["kind"] == "Deployment"]
    return set(deployment["spec"]["template"]["spec"]["containers"][0]["args"])


@pytest.mark.long
@rendered
def test_a_dashboard_shows_this_cluster_or_those_of_a_kubeconfig() -> None:
    base: Object = {"enabled": True, "token": {"secretName": "t"}, "tls": {"insecure": True}}
    here = rendering({"dashboard": {**base, "clusterName": "east"}})
    assert {"--cluster=east=", "--insecure-http"} <= flags_of(here)
    others = {**base, "kubeconfig": {"secretName": "k"}}
    remote = rendering({"dashboard": others, "reader": {"create": False}})
    assert "--all-contexts" in flags_of(remote)
    assert not [each for each in remote if "Role" in each["kind"]]  # they belong to those clusters
    chosen = flags_of(rendering({"dashboard": {**others, "contexts": ["a", "m=b"]}}))
    assert {"--cluster=a", "--cluster=m=b"} <= chosen and "--all-contexts" not in chosen
    (probe,) = {
        each["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["httpGet"]["scheme"]
        for each in remote
        if each["kind"] == "Deployment"
    }
    assert probe == "HTTP"


@rendered
def test_other_backends_and_autoscalers_bring_their_own_rights() -> None:
    found = rendering(
        {
            "gpuScaler": {"enabled": True, "backend": "capacity-buffer"},
            "estimator": {
                "enabled": True,
                "clusters": [{"name": "m"}],
                "tls": {"insecure": True},
                "nodeCapacityProviders": ["cluster-autoscaler"],
                "settings": {
                    "featureGates": {"SchedulingOvercommitProtection": False, "ResourceQuotaEstimate": True}
                },
            },
        }
    )

    def rights(component: str) -> set[tuple[str | None, str]]:
        return {
            (each["metadata"].get("namespace"), resource)
            for each in found
            if each["kind"] in ("Role", "ClusterRole") and component in each["metadata"]["name"]
            for rule in each["rules"]
            for resource in rule["resources"]
        }

    placeholders = {("karpool-smart-pods", "capacitybuffers"), ("karpool-smart-pods", "podtemplates")}
    assert placeholders <= rights("gpu-scaler")
    assert {("kube-system", "configmaps"), (None, "resourcequotas")} <= rights("estimator")
    assert (None, "ec2nodeclasses") not in rights("estimator")


def test_host_components_live_where_karmada_does() -> None:
    for folder in ("estimator", "scheduler", "descheduler"):
        assert {each["metadata"]["namespace"] for each in objects(folder)} == {HOST}


def test_no_link_leaves_the_chart() -> None:
    """Helm warns of each on every command."""
    assert [path for path in build_manifests.CHART.rglob("*") if path.is_symlink()] == []


def test_the_chart_says_who_made_it() -> None:
    chart = yaml.safe_load((build_manifests.CHART / "Chart.yaml").read_text())
    assert chart["home"].startswith("https://")
    assert chart["icon"].endswith(".svg")
    assert chart["sources"]
    assert chart["maintainers"]


_PAGE: Object = {
    "enabled": True,
    "token": {"secretName": "token"},
    "tls": {"secretName": "tls"},
    "ingress": {"enabled": True, "className": "nginx", "hosts": ["a.example.com"], "tlsSecretName": "a-tls"},
    "gateway": {"enabled": True, "parentRefs": [{"name": "public"}], "hosts": ["b.example.com"]},
}


@rendered
@pytest.mark.parametrize(("insecure", "port"), [(False, 443), (True, 80)])
def test_the_page_is_routed_to_where_it_is_served(insecure: bool, port: int) -> None:
    assert HELM is not None
    page = {**_PAGE, "tls": {"secretName": "" if insecure else "tls", "insecure": insecure}}
    found = {each["kind"]: each for each in template(HELM, values={"dashboard": page})}
    service = next(each for each in template(HELM, values={"dashboard": page}) if each["kind"] == "Service")
    assert [entry["port"] for entry in service["spec"]["ports"]] == [port]
    name = service["metadata"]["name"]
    ingress, route = found["Ingress"]["spec"], found["HTTPRoute"]["spec"]
    (rule,) = ingress["rules"]
    (path,) = rule["http"]["paths"]
    assert (rule["host"], path["path"]) == ("a.example.com", "/")
    assert path["backend"]["service"] == {"name": name, "port": {"number": port}}
    assert ingress["ingressClassName"] == "nginx"
    assert ingress["tls"] == [{"secretName": "a-tls", "hosts": ["a.example.com"]}]
    assert route["hostnames"] == ["b.example.com"]
    assert route["rules"][0]["backendRefs"] == [{"name": name, "port": port}]


@rendered
@pytest.mark.parametrize("missing", [("ingress", "hosts"), ("gateway", "hosts"), ("gateway", "parentRefs")])
def test_a_route_to_nowhere_is_refused(missing: tuple[str, str]) -> None:
    assert HELM is not None
    part, key = missing
    page = {**_PAGE, part: {**_PAGE[part], key: []}}
    with pytest.raises(NoHelm, match=f"dashboard.{part}.{key}"):
        template(HELM, values={"dashboard": page})


@rendered
def test_helm_test_asks_every_chosen_component_at_its_service() -> None:
    assert HELM is not None
    found = template(HELM, values={**build_manifests.VALUES, "serviceMonitor": {"enabled": False}})
    (pod,) = (each for each in found if each["kind"] == "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    script, *urls = pod["spec"]["containers"][0]["args"]
    compile(script, "test", "exec")
    asked = {
        (host.partition(".")[0], path)
        for _, host, path in (url.replace("//", "/").split("/") for url in urls)
    }
    hosts = {host.partition(":")[0] for host, _ in asked}
    assert hosts == {each["metadata"]["name"] for each in found if each["kind"] == "Service"}
    assert not [each for each in template(HELM) if each["kind"] == "Pod"]  # nothing is chosen, nothing to ask


@rendered
def test_what_helm_test_runs_tells_answers_from_silence() -> None:
    assert HELM is not None
    found = template(HELM, values=build_manifests.VALUES)
    (script,) = (each["spec"]["containers"][0]["args"][0] for each in found if each["kind"] == "Pod")
    server = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    Thread(target=server.serve_forever, daemon=True).start()
    answering = f"http://127.0.0.1:{server.server_port}/"
    try:
        for urls, silent in (([answering], 0), ([answering, "http://127.0.0.1:1/"], 1)):
            done = subprocess.run(
                [sys.executable, "-I", "-c", script, *urls], capture_output=True, check=False
            )
            assert done.returncode == silent
    finally:
        server.shutdown()
        server.server_close()
