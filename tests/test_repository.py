"""What the checkout itself promises: locked versions, links that lead somewhere, commands that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import karpool
from karpool.cli.main import commands

ROOT = Path(__file__).resolve().parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# Commands that bring up or save a cluster, or say something about the program itself. Any other reads one.
NOT_READING = {
    "apiserver",
    "apply",  # acts on what it reads, so never on a file
    "catalogue",  # shows what is shipped
    "cluster",
    "cluster-summary",
    "completion",
    "contract",  # its command that reads a cluster does
    "consolidator",
    "dashboard",  # watches, which no file can be
    "descheduler",
    "estimator",
    "explain",  # its commands do, each for its own kind of object
    "get",  # what controllers hold, which no file has
    "record",  # follows, which no file can be
    "gpu-agent",
    "gpu-scaler",
    "scheduler",
    "schema",  # of documents
    "simulate",  # brings up its own
    "snapshot",
    "support-bundle",  # holds one
    "up",
    "verify-policy",
    "version",
}


def requirements(text: str) -> Iterator[str]:
    """Each entry on one line, without comments."""
    plain = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    yield from (entry for entry in re.sub(r"\\\n\s*", " ", plain).splitlines() if entry.strip())


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_locks_pin_versions_and_hashes_and_name_no_index(lock: Path) -> None:
    text = lock.read_text()
    entries = list(requirements(text))

    assert entries
    for entry in entries:
        assert re.match(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==\S+ ", entry), entry
        assert "--hash=sha256:" in entry, entry
    assert "://" not in text and "--index" not in text and "--find-links" not in text


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
        assert (document.parent / target).exists(), target


SOURCES = sorted(
    path for folder in ("src", "tests", "bench", "e2e", "tools") for path in (ROOT / folder).rglob("*.py")
)
_PATH = re.compile(r"`((?:src|tests|bench|tools|e2e|docs|deploy|karpool|karpool_fleet)/[\w./-]+)`")
_MODULE = re.compile(r"`(karpool(?:_fleet)?(?:\.[a-z_]+)+)(?:\.[A-Z]\w*(?:\.\w+)?)?`")
# Names of protocols, API groups and entry points look like modules, and are none.
_NO_MODULE = re.compile(r"karpool\.(dev|estimator\.v1|scheduler\.plugins)\b")


def _is_there(name: str) -> bool:
    """A file or folder, a module, something that a module defines, or a public name."""
    path = ROOT / name
    source = ROOT / "src" / name.replace(".", "/")
    modules = (source, source.parent) if "/" not in name else (ROOT / "src" / name,)
    if name.removeprefix("karpool.") in dir(karpool):
        return True
    return path.exists() or source.is_dir() or any(module.with_suffix(".py").is_file() for module in modules)


def test_files_and_modules_that_texts_name_are_there() -> None:
    missing = [
        f"{text.relative_to(ROOT)}: {name}"
        for text in (*DOCUMENTS, *SOURCES)
        for words in [text.read_text()]
        for name in (*_PATH.findall(words), *_MODULE.findall(words))
        if not _NO_MODULE.match(name) and not _is_there(name)
    ]
    assert missing == []


def test_every_command_that_reads_a_cluster_takes_a_snapshot_file() -> None:
    context = click.Context(commands)
    for name in set(commands.list_commands(context)) - NOT_READING:
        command = commands.get_command(context, name)
        assert command is not None
        options = {option for param in command.params for option in param.opts}
        assert {"--snapshot", "--kubeconfig", "--context"} <= options, name
