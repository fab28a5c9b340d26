"""A wheel, installed far from the checkout, has everything that README's commands need; builds repeat."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from tools import release

pytestmark = pytest.mark.long

EPOCH = 1_790_000_000


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    wheel = next(path for path in release.build_packages(folder, EPOCH) if path.suffix == ".whl")
    (source,) = folder.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def wheel(packages):
    return packages[0]


def test_the_wheel_says_what_it_is(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        (metadata,) = (file.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert f"Version: {release.version_of()}" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert "License-File: LICENSE" in metadata
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    for label in ("Homepage", "Documentation", "Source", "Issues", "Changelog"):
        assert f"Project-URL: {label}, https://" in metadata
    for version in ("3.11", "3.12", "3.13", "3.14"):
        assert f"Programming Language :: Python :: {version}" in metadata
    assert {"karpool/py.typed", "karpool_fleet/py.typed"} <= names
    assert "karpool_fleet/scenarios/consolidation-policies.yaml" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith(("tests/", "e2e/"))]


def test_every_file_of_the_packages_is_in_the_wheel(wheel):
    """Data files too: a command that misses one fails only where there is no checkout."""
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    source = release.ROOT / "src"
    tracked = subprocess.run(
        ["git", "-C", str(source), "ls-files", "karpool", "karpool_fleet"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert tracked
    assert [name for name in tracked if (source / name).is_file() and name not in names] == []


def test_building_again_gives_the_same_bytes(packages, tmp_path):
    for path in release.build_packages(tmp_path, EPOCH):
        first = next(package for package in packages if package.name == path.name)
        assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(first.read_bytes()).digest()


def test_commands_run_from_the_wheel_alone(wheel, tmp_path):
    """Dependencies are borrowed from this environment, Karpool is not."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    borrowed = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "borrowed.pth").write_text(
        f"{borrowed}\n"
    )  # its own .pth files, which name the checkout, stay unread
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed", str(wheel)],
        check=True,
        env=environment,
        capture_output=True,
    )
    where = subprocess.run(
        [python, "-c", "import karpool, karpool_fleet; print(karpool.__file__, karpool_fleet.__file__)"],
        check=True,
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    ).stdout
    assert str(release.ROOT) not in where
    release.try_commands(tmp_path / "venv/bin", tmp_path, release.version_of(), whole=False)


def test_archives_hold_what_links_lead_to_and_nothing_of_this_machine(tmp_path):
    chart = dict(release.files_below(release.CHART, release.CHART))
    first = release.archive(tmp_path / "a.tgz", "karpool", chart, EPOCH).read_bytes()
    assert release.archive(tmp_path / "b.tgz", "karpool", chart, EPOCH).read_bytes() == first
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        entries = tar.getmembers()
    assert all(
        entry.isfile() and (entry.uid, entry.uname, entry.mtime) == (0, "", EPOCH) for entry in entries
    )
    names = {entry.name for entry in entries}
    assert {"karpool/Chart.yaml", "karpool/files/scaleups.yaml", "karpool/files/alerts/gpu.yaml"} <= names


def test_the_image_context_has_what_the_recipe_copies():
    names = set(release.image_files())
    copied = [
        word
        for line in (release.ROOT / "deploy/Containerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    ]
    assert copied
    for word in copied:
        assert word in names or any(name.startswith(f"{word}/") for name in names), word
    assert not any(name.startswith("src/karpool_fleet") for name in names)


def test_the_statement_names_every_file_with_its_digest(tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    statement = release.provenance([tmp_path / "a"], "0.1.0", "f" * 40)
    assert statement["subject"] == [{"name": "a", "digest": {"sha256": hashlib.sha256(b"a").hexdigest()}}]
    assert json.dumps(statement)
    materials = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert {material["uri"] for material in materials} >= {"requirements/runtime.txt", "requirements/dev.txt"}


def test_versions_agree_and_are_described():
    release.check_versions(release.version_of(), "")


def test_a_tag_needs_a_date_in_the_changelog(tmp_path):
    for name in ("src/karpool/__init__.py", "deploy/helm/karpool/Chart.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((release.ROOT / name).read_text())
    version = release.version_of(tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(f"## {version} (unreleased)\n\n- x\n")
    with pytest.raises(release.NotReleasable, match="date"):
        release.check_versions(version, f"v{version}", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(f"## {version} (2026-12-01)\n\n- x\n")
    release.check_versions(version, f"v{version}", tmp_path)


@pytest.mark.parametrize("tag", ["v9.9.9", "0.1.0", "latest"])
def test_a_tag_of_another_version_is_refused(tag):
    with pytest.raises(release.NotReleasable, match="tag"):
        release.check_versions(release.version_of(), tag)


def test_a_version_without_notes_is_refused(tmp_path):
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.0.0\n\n## 0.9.0\n\n- x\n")
    assert release.notes_of("0.9.0", tmp_path) == "- x\n"
    for version in ("1.0.0", "2.0.0"):
        with pytest.raises(release.NotReleasable, match=version):
            release.notes_of(version, tmp_path)


def test_a_damaged_file_is_noticed(tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(b'y').hexdigest()}  x\n")
    with pytest.raises(release.NotReleasable, match="SHA256SUMS"):
        release.verify(Path(tmp_path))
