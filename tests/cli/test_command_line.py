"""The command line: exit codes, help without loading everything, results on stdout, the rest on stderr."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from karpool.cli.completion import for_kubectl
from karpool.cli.main import commands, run
from karpool.cli.output.text import columns
from karpool.model.catalogue.files import load_shipped
from tests.cli.example_fleet import example_fleet

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump_all(example_fleet(load_shipped("us-east-1"))))
    return path


@pytest.mark.parametrize(
    "asked", ["run(['--help'], 'karpool')", "print(for_kubectl(commands, ['']))"], ids=["help", "completion"]
)
def test_commands_are_listed_without_loading_them(asked: str) -> None:
    script = (
        "import sys; from karpool.cli.main import commands, run;"
        f"from karpool.cli.completion import for_kubectl; code = {asked};"
        "sys.exit(code or any(name in sys.modules for name in ('numpy', 'aiohttp', 'structlog')))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert {"apiserver", "completion", "snapshot", "top", "up", "version"} <= set(result.stdout.split())


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["nosuch"], id="unknown command"),
        pytest.param(["top", "--nosuch"], id="unknown flag"),
        pytest.param(["top", "-o", "xml"], id="unknown form"),
        pytest.param(["top", "--snapshot", "nosuch.gz"], id="missing file"),
        pytest.param(["apiserver"], id="missing flag"),
        pytest.param(["top", "--request-timeout", "soon"], id="bad duration"),
        pytest.param(["completion", "tcsh"], id="unknown shell"),
    ],
)
def test_wrong_usage_is_2_and_says_so_on_stderr(arguments: list[str], capsys: Capture) -> None:
    assert run(arguments, "karpool") == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Error: " in captured.err


def test_a_file_and_a_live_cluster_cannot_be_asked_at_once(manifest: Path, capsys: Capture) -> None:
    assert run(["top", "--snapshot", str(manifest), "--context", "prod"], "karpool") == 2
    assert "--snapshot" in capsys.readouterr().err


def test_a_failure_is_1_and_names_the_way_out(tmp_path: Path, capsys: Capture) -> None:
    assert run(["top", "--kubeconfig", str(tmp_path / "nosuch")], "karpool") == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "--kubeconfig" in captured.err


def test_a_file_that_is_no_snapshot_is_refused_in_one_line(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "broken.gz"
    path.write_bytes(b"\x1f\x8bnot really gzip")

    assert run(["top", "--snapshot", str(path)], "karpool") == 1

    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(path) in error


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["tpo"], "'tpo' is not a command; did you mean top?", id="mistyped"),
        pytest.param(["get", "move"], "did you mean moves?", id="mistyped below a command"),
        pytest.param(["get", "x"], "there are moves, promises, scale-ups", id="like nothing"),
    ],
)
def test_whoever_mistypes_a_command_is_told_which_there_are(
    words: list[str], says: str, capsys: Capture
) -> None:
    assert run(words, "karpool") == 2
    assert says in capsys.readouterr().err


def test_usage_is_shown_as_kubectl_users_call_it(capsys: Capture) -> None:
    assert run(["top", "--help"], "kubectl karpool") == 0
    assert "Usage: kubectl karpool top" in capsys.readouterr().out


def test_top_reads_a_manifest_and_adds_up(manifest: Path, capsys: Capture) -> None:
    assert run(["top", "--snapshot", str(manifest), "-o", "json"], "karpool") == 0
    nodes = json.loads(capsys.readouterr().out)
    assert run(["top", "pools", "--snapshot", str(manifest), "-o", "yaml"], "karpool") == 0
    pools = yaml.safe_load(capsys.readouterr().out)

    assert nodes["kind"] == "NodeUsageList"
    assert len(nodes["items"]) == 7
    for resource in ("cpu", "memory", "nvidia.com/gpu"):
        for side in ("requested", "allocatable"):
            assert sum(each[side][resource] for each in nodes["items"]) == sum(
                pool[side][resource] for pool in pools["items"]
            )
    assert sum(node["requested"]["nvidia.com/gpu"] for node in nodes["items"]) == 1


def test_pools_without_nodes_are_shown_too(manifest: Path, capsys: Capture) -> None:
    with manifest.open("a") as file:
        file.write("---\napiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: spare}\n")

    assert run(["top", "pools", "--snapshot", str(manifest)], "karpool") == 0

    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line}
    assert rows["spare"] == ["0", "-", "-", "-", "0/0", "0.000"]
    assert rows["gpu"][0] == "1"


def test_top_shows_people_a_table_and_the_pod_that_waits(manifest: Path, capsys: Capture) -> None:
    assert run(["top", "--snapshot", str(manifest)], "karpool") == 0

    out = capsys.readouterr().out
    assert out.splitlines()[0].split()[:3] == ["NAME", "POOL", "TYPE"]
    assert "7 nodes, 1 pod pending, $" in out


def test_an_unknown_price_is_said_and_not_guessed(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": "bare"},
                "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
            }
        )
    )

    assert run(["top", "--snapshot", str(path)], "karpool") == 0
    out = capsys.readouterr().out
    assert "the price of some nodes is unknown" in out
    assert out.splitlines()[1].endswith("?")


def test_a_bad_object_is_reported_and_the_rest_is_shown(manifest: Path, capsys: Capture) -> None:
    with manifest.open("a") as file:
        file.write("---\napiVersion: v1\nkind: Node\nmetadata: {name: odd}\n")
        file.write("status: {allocatable: {cpu: lots, pods: '1'}}\n")

    assert run(["top", "--snapshot", str(manifest)], "karpool") == 0

    captured = capsys.readouterr()
    assert "7 nodes" in captured.out
    assert "skipped: Node odd: status.allocatable.cpu: 'lots'" in captured.err


def test_a_pod_that_cannot_be_read_holds_its_node_in_top(manifest: Path, capsys: Capture) -> None:
    with manifest.open("a") as file:
        file.write("---\napiVersion: v1\nkind: Node\nmetadata: {name: last}\n")
        file.write("status: {allocatable: {cpu: '4', memory: 1761280Mi, pods: '10'}}\n")
        file.write("---\napiVersion: v1\nkind: Pod\nmetadata: {name: odd, namespace: a}\n")
        file.write("spec: {nodeName: last, containers: [{resources: {requests: {cpu: NaN}}}]}\n")

    assert run(["top", "--snapshot", str(manifest)], "karpool") == 0

    captured = capsys.readouterr()
    (line,) = [line for line in captured.out.splitlines() if line.startswith("last ")]
    assert line.split()[5:] == ["4/4", "100%", "1.68Ti/1.68Ti", "100%", "-", "1/1", "?"]
    assert "1 pod invalid: nothing counts as free on their nodes" in captured.out
    assert "skipped: Pod a/odd: " in captured.err


def test_an_answer_about_nothing_says_where(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n")

    assert run(["top", "--snapshot", str(path)], "karpool") == 0
    assert capsys.readouterr().out == "no nodes in empty.yaml\n"


@pytest.mark.long
@pytest.mark.parametrize("nodes", [1, 5000], ids=["before the end", "in the middle"])
def test_a_reader_that_leaves_is_no_error(tmp_path: Path, nodes: int) -> None:
    items = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{each}"}} for each in range(nodes)]
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    command = f"{sys.executable} -m karpool.cli.main top --snapshot {path} | head -1"
    script = f"set -o pipefail; {command}"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)

    assert (result.returncode, result.stderr) == (0, "")


def test_a_document_that_is_no_object_is_reported_and_the_rest_is_shown(
    manifest: Path, capsys: Capture
) -> None:
    with manifest.open("a") as file:
        file.write("---\n- 1\n- 2\n")

    assert run(["top", "--snapshot", str(manifest)], "karpool") == 0

    captured = capsys.readouterr()
    assert "7 nodes" in captured.out
    assert captured.err.startswith("skipped: document ") and "has no kind" in captured.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "contains no token", id="nothing"),
        pytest.param(b"two words", "contains no token", id="two words"),
        pytest.param(b"first\nsecond", "contains no token", id="two lines"),
        pytest.param(b"\xff\xfe\x00", "cannot be read as text", id="binary"),
    ],
)
def test_a_token_that_no_client_could_send_is_refused(
    tmp_path: Path, capsys: Capture, content: bytes, words: str
) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    kubeconfig = tmp_path / "kubeconfig"

    arguments = ["apiserver", "--write-kubeconfig", str(kubeconfig), "--token-file", str(path)]
    assert run(arguments, "karpool") == 1

    error = capsys.readouterr().err
    assert error.startswith(f"error: token file {path}: ") and words in error
    assert not kubeconfig.exists()


def test_a_pipe_is_refused_before_it_is_waited_for(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    assert run(["top", "--snapshot", str(path)], "karpool") == 1
    assert "is not a regular file" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_the_command(shell: str, capsys: Capture) -> None:
    assert run(["completion", shell], "karpool") == 0
    assert "_KARPOOL_COMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "offered", "directive"),
    [
        pytest.param(["ap"], {"apiserver"}, ":4", id="a command"),
        pytest.param(["top", "po"], {"pools"}, ":4", id="an argument"),
        pytest.param(["top", "--snap"], {"--snapshot"}, ":4", id="a flag"),
        pytest.param(["top", "-o", "w"], {"wide"}, ":4", id="a value"),
        pytest.param(["top", "--snapshot", ""], set(), ":0", id="a file"),
        pytest.param([], {"top", "snapshot", "version"}, ":4", id="anything"),
    ],
)
def test_kubectl_is_told_what_may_follow(words: list[str], offered: set[str], directive: str) -> None:
    *lines, last = for_kubectl(commands, words).splitlines()

    assert offered <= {line.partition("\t")[0] for line in lines}
    assert last == directive
    assert bool(lines) == bool(offered)


def test_columns_line_up() -> None:
    assert (
        columns(["A", "LONGER"], [["x", "y"], ["wide one", ""]])
        == "A          LONGER\nx          y\nwide one"
    )
