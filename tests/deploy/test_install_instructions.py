"""What docs/install.md tells people to type is there, and works as far as it can without a fleet."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest
import yaml
from tools.build_manifests import CHART, find_helm, template

from karpool.cli.main import commands
from karpool.kube.config import kubeconfig
from karpool.wire.server_tls import check_authority, check_pair
from tests.deploy.manifests import DEPLOY, KUSTOMIZE, ROOT, of_kind
from tests.deploy.test_pods_are_restricted import container

TEXT = (ROOT / "docs" / "install.md").read_text()
_BLOCKS = re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", TEXT, re.MULTILINE | re.DOTALL)
LINES = [
    line.strip()
    for _, language, block in _BLOCKS
    if not language
    for line in block.splitlines()
    if line.strip()
]
_SERVER = "karmada-scheduler-estimator-member1.karmada-system.svc"


def starting(*words: str) -> list[list[str]]:
    found = [shlex.split(re.sub(r"\$\(.*\)", "substituted", line)) for line in LINES]
    return [each for each in found if tuple(each[: len(words)]) == words]


def test_every_command_is_of_a_kind_that_is_looked_at() -> None:
    first = {line.split()[0] for line in LINES}
    assert first == {"podman", "helm", "kubectl", ".venv/bin/karpool", "openssl", "sha256sum", "cosign"}


def test_folders_that_are_applied_exist() -> None:
    applied = [words[words.index("-k") + 1] for words in starting("kubectl") if "-k" in words]
    assert len(applied) == 3
    applied += re.findall(r"`kubectl apply -k (\S+)`", TEXT)
    assert all((ROOT / each / "kustomization.yaml").is_file() for each in applied)


@pytest.mark.skipif(
    find_helm() is None, reason="no helm on PATH or in KARPOOL_HELM: the chart was not rendered"
)
def test_helm_renders_what_is_installed(tmp_path: Path) -> None:
    helm = find_helm()
    assert helm is not None
    (values,) = [block for _, language, block in _BLOCKS if language == "yaml"]
    for words in starting("helm"):
        assert ROOT / "deploy" / "helm" / "karpool" == CHART and str(CHART.relative_to(ROOT)) in words
        flags = [
            word
            for word in words[1:]
            if word not in ("upgrade", "--install", "--create-namespace", "--reuse-values")
        ]
        set_ = [
            part for index, each in enumerate(flags) if each == "--set" for part in flags[index : index + 2]
        ]
        given = yaml.safe_load(values) if "-f" in flags else {"consolidator": {"enabled": True}}
        found = template(helm, *set_, values=given)
        assert "Deployment" in {each["kind"] for each in found}


def test_karpool_commands_take_their_arguments() -> None:
    for words in starting(".venv/bin/karpool"):
        with commands.make_context("karpool", words[1:]) as context:
            name, *rest = [*context._protected_args, *context.args]
            command = commands.get_command(context, name)
            assert command is not None
            try:
                with command.make_context(name, rest, parent=context):
                    pass
            except click.BadParameter as error:
                assert "does not exist" in error.message  # the file is an example


def test_the_certificates_made_as_told_are_ones_that_both_sides_accept(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on PATH: the commands for certificates were not run")
    made = starting("openssl")
    assert len(made) == 6
    for words in made:
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    for name in ("server", "client", "dashboard"):
        certificate, key = (tmp_path / f"{name}.{end}" for end in ("crt", "key"))
        check_pair(("crt", certificate, certificate.read_bytes()), ("key", key, key.read_bytes()))
    check_authority("ca", tmp_path / "ca.crt", (tmp_path / "ca.crt").read_bytes())
    command = ["openssl", "verify", "-CAfile", "ca.crt", "-verify_hostname", _SERVER, "server.crt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    services = {each["metadata"]["name"] for each in of_kind("estimator", "Service")}
    assert _SERVER.split(".", maxsplit=1)[0] in services


def test_secrets_that_are_made_are_those_that_are_mounted() -> None:
    made = {
        words[words.index("generic") + 1]: {
            part.removeprefix("--from-file=").removeprefix("--from-literal=").split("=")[0]
            for part in words
            if part.startswith("--from-")
        }
        for words in starting("kubectl", "-n", "karmada-system", "create", "secret")
    }
    mounted = {
        volume["secret"]["secretName"]
        for folder in ("estimator", "scheduler", "descheduler")
        for each in of_kind(folder, "Deployment")
        for volume in each["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    }
    assert set(made) == mounted - {"member1-kubeconfig"}  # which Karmada makes
    assert all(
        {"tls.crt", "tls.key", "ca.crt"} == keys for name, keys in made.items() if name.endswith("tls")
    )
    assert "--kubeconfig=/etc/karpool/kubeconfig/kubeconfig" in container("scheduler")["args"]
    assert all(
        {"kubeconfig", "ca.crt", "token"} == keys for name, keys in made.items() if name.endswith("config")
    )


def test_the_secrets_of_the_dashboard_are_those_that_its_manifest_mounts() -> None:
    made = {
        words[words.index("secret") + 2]
        for words in starting("kubectl", "-n", "karpool-system", "create")
        if "secret" in words
    }
    (deployment,) = of_kind("dashboard", "Deployment")
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert made == {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
    assert "--token-file=/etc/karpool/token/token" in container("dashboard")["args"]


def test_the_kubeconfig_of_the_secret_reads_its_token_and_authority_from_files(tmp_path: Path) -> None:
    text = (DEPLOY / "kubeconfig.yaml").read_text()
    (tmp_path / "kubeconfig").write_text(text.replace("/etc/karpool/kubeconfig", str(tmp_path)))
    (tmp_path / "token").write_text("secret")
    (tmp_path / "ca.crt").write_text("authority")
    found = kubeconfig.load(tmp_path / "kubeconfig")
    assert found.server == "https://karmada-apiserver.karmada-system.svc:5443"
    assert found.user.token_file == tmp_path / "token" and found.user.token == ""


def test_every_role_in_the_table_is_one_that_there_is() -> None:
    named = set(
        re.findall(r"`(karpool-[a-z-]+)`", TEXT[TEXT.index("\n## Roles") : TEXT.index("\n## Certificates")])
    )
    there = {
        each["metadata"]["name"]
        for path in KUSTOMIZE.glob("*/manifests.yaml")
        for each in of_kind(path.parent.name, "ClusterRole")
    }
    assert named <= there
    assert there - named == {name for name in there if name.endswith("-events")}
