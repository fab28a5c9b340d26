"""The pages as a site: one title each, links and anchors that lead somewhere, nothing that cannot be reached,
and no command or flag that does not exist."""

import re
from pathlib import Path

import click
import pytest

from karpool.cli.main import commands
from tests.docs.shown_commands import PAGES, ROOT

DOCS = ROOT / "docs"
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
# Of other programs, or of every program.
OTHERS = {"--set", "--build-arg", "--flag", "--help", "--expendable-pods-priority-cutoff"} | {
    "--enable-cluster-resource-modeling",  # of karmada-controller-manager
    "--cluster-status-update-frequency",
}
_PROGRAMS = (
    "helm",
    "kubectl",
    "podman",
    "git",
    "pip",
    "pip-audit",
    "python",
    "make",
    "pytest",
    "openssl",
    "buildah",
)


def prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: Path) -> list[tuple[Path, str]]:
    """Inside the tree: page and anchor."""
    found = [link.partition("#") for link in _LINK.findall(prose(page)) if "://" not in link]
    return [((page.parent / path).resolve() if path else page, anchor) for path, _, anchor in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_one_title_and_its_links_lead_somewhere(page: Path) -> None:
    text = prose(page)
    assert page.read_text().startswith("# ") and len(re.findall(r"^# ", text, re.MULTILINE)) == 1
    for target, anchor in links(page):
        assert target.exists(), target
        assert not anchor or anchor in anchors(target), f"{target.name}#{anchor}"


def test_every_page_is_reached_from_the_index() -> None:
    listed = [target for target, _ in links(DOCS / "README.md")]
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} == {page.name for page in listed}


def _options(command: click.Command) -> set[str]:
    own = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            own |= _options(inner)
    return own


def test_what_is_named_in_passing_exists() -> None:
    """Commands that stand alone are executed; these stand in sentences and tables."""
    names = set(commands.list_commands(click.Context(commands)))
    known = _options(commands) | OTHERS
    for page in PAGES:
        for code in re.findall(r"`([^`\n]+)`", prose(page)):
            if code.split(maxsplit=1)[0] in _PROGRAMS:
                continue
            unknown = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", code)) - known
            assert not unknown, f"{page.name}: {code}"
            if match := re.match(r"karpool ([a-z][a-z-]+)", code):
                assert match[1] in names, f"{page.name}: {code}"
