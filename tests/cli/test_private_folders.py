"""Folders go with their processes; one that was killed is cleaned up after, one that lives is left alone."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from karpool.cli.embedded.private_folder import private_folder

HOLD = """
import sys, tempfile
from pathlib import Path
from karpool.cli.embedded.private_folder import private_folder
tempfile.tempdir = sys.argv[1]
with private_folder("held-") as folder:
    (folder / "kubeconfig").write_text("secret")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_folder_is_gone_afterwards(tmp_path: Path) -> None:
    with private_folder("mine-") as folder:
        (folder / "kubeconfig").write_text("secret")
        assert folder.stat().st_mode & 0o777 == 0o700

    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    holding = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holding:
        assert holding.stdout is not None
        held = Path(holding.stdout.readline().strip())
        with private_folder("held-"):
            assert (held / "kubeconfig").exists()
        holding.kill()
        holding.wait()
        assert held.exists()

        with private_folder("held-"):
            assert not held.exists()


def test_folders_of_others_and_links_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / ".lock").touch()
    (tmp_path / "held-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "held-without-a-lock").mkdir()

    with private_folder("held-"):
        pass

    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "elsewhere",
        "held-link",
        "held-without-a-lock",
    ]
