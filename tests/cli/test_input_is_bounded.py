"""Whatever is named as input, no more of it is read than could be used."""

import io
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from karpool.cli.main import run
from karpool.kube.bounded_input import STDIN, read_bounded
from karpool.kube.config.kubeconfig_file import read_file
from karpool.kube.errors import ConfigError
from karpool.model import safe_yaml

MEMORY = 3 * 2**30  # numpy and its threads reserve much and use little


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        pytest.param(["apply", "/dev/zero", "--dry-run"], None, id="a plan"),
        pytest.param(["capacity", "-f", "-"], "/dev/zero", id="stdin"),
        pytest.param(["top", "--catalogue", "/dev/zero"], None, id="a catalogue"),
    ],
)
def test_input_without_end_is_refused_in_a_line(arguments: list[str], stdin: str | None) -> None:
    with Path(stdin or "/dev/null").open("rb") as source:
        result = subprocess.run(
            [sys.executable, "-m", "karpool.cli.main", *arguments],
            stdin=source,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=limited,
        )

    assert result.returncode == 1, result.stderr[-2000:]
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert "is larger than" in result.stderr


def test_a_kubeconfig_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="is larger than"):
        read_file(Path("/dev/zero"))


def test_exactly_the_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(OSError, match="is larger than 4 bytes"):
        read_bounded(path, 4)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"12345")))
    assert read_bounded(STDIN, 5) == b"12345"


def test_a_workload_from_stdin_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = tmp_path / "c.yaml"
    cluster.write_text(
        "apiVersion: v1\nkind: Node\nmetadata: {name: n}\nstatus: {allocatable: {cpu: '4', pods: '9'}}\n"
    )
    pod = b"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n"
    assert len(pod) < safe_yaml.SIZE_LIMIT
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pod)))

    assert run(["capacity", "-f", "-", "--snapshot", str(cluster)], "karpool") == 0
    assert "c.yaml: default/p fits now: 1 of 1 replicas" in capsys.readouterr().out
