"""Builds a release and verifies it by installing it: python tools/release.py [--tag v0.1.0] [--out dist]

Wheel, source archive, chart, image context, archive and manifest of the kubectl plugin, bill of materials,
release notes, checksums and a statement of provenance. The same commit gives the same bytes: dates are
those of the commit. A tag must be the version's and name the commit that is checked out.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HOME = "https://github.com/karpool-dev/karpool"
CHART = ROOT / "deploy" / "helm" / "karpool"
IMAGE_FILES = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "requirements/runtime.txt",
    "src/karpool",
    "deploy/Containerfile",
    "deploy/image/assemble",
)
_BUILDER = f"{HOME}/blob/main/tools/release.py"


class NotReleasable(Exception):
    """What is wrong, and what to do."""


def say(text: str) -> None:
    sys.stderr.write(f"release: {text}\n")


def version_of(root: Path = ROOT) -> str:
    match = re.search(r'^__version__ = "(.+)"$', (root / "src/karpool/__init__.py").read_text(), re.MULTILINE)
    if match is None:
        raise NotReleasable("src/karpool/__init__.py names no __version__")
    return match.group(1)


def check_versions(version: str, tag: str, root: Path = ROOT) -> None:
    """Everything that states a version states this one."""
    if tag and tag != f"v{version}":
        raise NotReleasable(
            f"the tag is {tag}, and the version {version}; tag v{version} or change __version__"
        )
    chart = (root / "deploy/helm/karpool/Chart.yaml").read_text()
    for key in ("version", "appVersion"):
        if not re.search(rf'^{key}: "?{re.escape(version)}"?$', chart, re.MULTILINE):
            raise NotReleasable(f"deploy/helm/karpool/Chart.yaml: {key} is not {version}")
    notes_of(version, root)
    if tag and f"## {version} (unreleased)" in (root / "CHANGELOG.md").read_text():
        raise NotReleasable(f"CHANGELOG.md calls {version} unreleased; put the date of the release there")


def notes_of(version: str, root: Path = ROOT) -> str:
    """The part of the changelog about a version."""
    changelog = (root / "CHANGELOG.md").read_text()
    match = re.search(
        rf"^## \[?{re.escape(version)}\]?[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if match is None or not match.group(1).strip():
        raise NotReleasable(f"CHANGELOG.md has no section {version}")
    return match.group(1).strip() + "\n"


def git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReleasable(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def check_tag(tag: str) -> None:
    if git("rev-parse", f"{tag}^{{commit}}") != git("rev-parse", "HEAD"):
        raise NotReleasable(f"{tag} is not the commit that is checked out; git checkout {tag}")
    if changed := git("status", "--porcelain", "--untracked-files=no"):
        raise NotReleasable(f"there are changes that are not committed:\n{changed}")


def build_packages(out: Path, epoch: int) -> list[Path]:
    """The wheel and the source archive."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(out)]
    run(command, cwd=ROOT, env=environment)
    return sorted(out.glob("karpool-*"))


def archive(target: Path, top: str, files: Mapping[str, Path], epoch: int) -> Path:
    """A tar.gz that only depends on names, contents and who may execute."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in sorted(files.items()):
            entry = tarfile.TarInfo(f"{top}/{name}")
            content = path.read_bytes()  # follows links: an archive must not lead outside
            entry.size, entry.mtime = len(content), epoch
            entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            tar.addfile(entry, io.BytesIO(content))
    with target.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as file:
        file.write(packed.getvalue())
    return target


def files_below(folder: Path, base: Path) -> Iterator[tuple[str, Path]]:
    """Also what links lead to."""
    for where, _, names in os.walk(folder, followlinks=True):
        for path in (Path(where, name) for name in names):
            if "__pycache__" not in path.parts:
                yield path.relative_to(base).as_posix(), path


def image_files(root: Path = ROOT) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for name in IMAGE_FILES:
        path = root / name
        files |= dict(files_below(path, root)) if path.is_dir() else {name: path}
    return files


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def provenance(artefacts: Iterable[Path], version: str, commit: str, root: Path = ROOT) -> dict[str, Any]:
    """An in-toto statement: these files came from this commit, these locks, by this program."""
    locks = sorted((root / "requirements").glob("*.txt"))
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": sha256(path)}} for path in artefacts],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{HOME}/release/v1",
                "externalParameters": {"version": version},
                "resolvedDependencies": [
                    {"uri": f"git+{HOME}", "digest": {"gitCommit": commit}},
                    *(
                        {"uri": f"requirements/{lock.name}", "digest": {"sha256": sha256(lock)}}
                        for lock in locks
                    ),
                ],
            },
            "runDetails": {"builder": {"id": _BUILDER}},
        },
    }


def build(out: Path, tag: str, *, plugin: bool = True) -> list[Path]:
    version = version_of()
    check_versions(version, tag)
    if tag:
        check_tag(tag)
    commit, epoch = git("rev-parse", "HEAD"), int(git("log", "-1", "--format=%ct"))
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    say(f"karpool {version} of {commit[:12]} into {out}")
    artefacts = build_packages(out, epoch)
    chart = dict(files_below(CHART, CHART))
    artefacts.append(archive(out / f"karpool-chart-{version}.tgz", "karpool", chart, epoch))
    artefacts.append(
        archive(out / f"karpool-image-{version}.tar.gz", f"karpool-{version}", image_files(), epoch)
    )
    if plugin:
        artefacts += _plugin(out, version, epoch)
    bill = out / f"karpool-{version}.cdx.json"
    bill.write_text(run([sys.executable, str(ROOT / "tools/sbom.py")], cwd=ROOT))
    notes = out / "NOTES.md"
    notes.write_text(notes_of(version))
    artefacts += [bill, notes]
    statement = out / f"karpool-{version}.provenance.json"
    statement.write_text(json.dumps(provenance(artefacts, version, commit), indent=1) + "\n")
    artefacts.append(statement)
    sums = "".join(f"{sha256(path)}  {path.name}\n" for path in sorted(artefacts))
    (out / "SHA256SUMS").write_text(sums)
    return [*artefacts, out / "SHA256SUMS"]


def _plugin(out: Path, version: str, epoch: int) -> list[Path]:
    """The kubectl plugin for this machine's architecture: it brings what it needs."""
    say("collecting what the kubectl plugin needs")
    uri = f"{HOME}/releases/download/v{version}/kubectl-karpool-linux-{_architecture()}.tar.gz"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "KARPOOL_DIST": str(out)}
    run([str(ROOT / "deploy/krew/build"), HOME, uri], cwd=ROOT, env=environment)
    return [out / f"kubectl-karpool-linux-{_architecture()}.tar.gz", out / "karpool.yaml"]


def _architecture() -> str:
    machine = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


# Verifying


def verify(out: Path, *, again: bool = True) -> None:
    """Sums, contents, bytes that repeat, and the wheel installed into an empty environment far from here."""
    for line in (out / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        if sha256(out / name) != digest:
            raise NotReleasable(f"{name} is not what SHA256SUMS says")
    version = version_of()
    (wheel,) = out.glob("karpool-*.whl")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if again:
            say("building a second time, to compare")
            (folder / "again").mkdir()
            for path in build_packages(folder / "again", int(git("log", "-1", "--format=%ct"))):
                if sha256(path) != sha256(out / path.name):
                    raise NotReleasable(f"{path.name} is not the same when it is built again")
        say("installing the wheel into an empty environment")
        run([sys.executable, "-m", "venv", str(folder / "venv")])
        pip = [
            str(folder / "venv/bin/python"),
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
        ]
        run([*pip, "--require-hashes", "-r", str(ROOT / "requirements/runtime.txt")])
        run([*pip, "--no-deps", str(wheel)])
        try_commands(folder / "venv/bin", folder, version)
        _try_chart(out / f"karpool-chart-{version}.tgz", folder)


def try_commands(programs: Path, folder: Path, version: str, *, whole: bool = True) -> None:
    """What README shows and needs no cluster, in a folder that holds nothing else."""
    place = folder / "elsewhere"
    place.mkdir()
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    environment |= {"HOME": str(place), "KUBECONFIG": str(place / "none")}
    tour = ["up", "--once"] if whole else ["up", "--once", "--chapter", "burst"]
    for words, expected in (
        (["version"], version),
        (["--help"], "simulate"),
        (["completion", "bash"], "complete"),
        (["verify-policy"], ""),
        (["catalogue", "show", "m7i.large", "--region", "us-east-1"], "m7i.large"),
        (["simulate", "--list"], "consolidation-policies"),
        (["simulate", "out-in-and-out-again", "--check"], ""),
        (["simulate", "trace", "--duration", "5m"], "pods"),
        (tour, ""),
    ):
        say(f"karpool {' '.join(words)}")
        output = run([str(programs / "karpool"), *words], cwd=place, env=environment)
        if expected not in output:
            raise NotReleasable(f"karpool {' '.join(words)} does not say {expected!r}:\n{output}")
    run([str(programs / "kubectl-karpool"), "version"], cwd=place, env=environment)
    run([str(programs / "python"), "-c", "import karpool; karpool.simulate; karpool.open_cluster"], cwd=place)


def _try_chart(chart: Path, folder: Path) -> None:
    helm = os.environ.get("KARPOOL_HELM") or shutil.which("helm")
    if helm is None:
        say("the chart was not linted: there is no helm (KARPOOL_HELM names one)")
        return
    with tarfile.open(chart) as tar:
        tar.extractall(folder / "chart", filter="data")
    run([helm, "lint", "--strict", str(folder / "chart/karpool")])


def run(command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise NotReleasable(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--tag", default="", help="build what this tag names, v and the version")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--no-plugin", action="store_true", help="without the archive of the kubectl plugin")
    given = parser.parse_args()
    try:
        artefacts = build(given.out, given.tag, plugin=not given.no_plugin)
        verify(given.out)
    except NotReleasable as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    for path in artefacts:
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
