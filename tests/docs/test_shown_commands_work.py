"""Every command that README and docs show is executed, page by page, in one folder and on one cluster.

Those that serve are stopped after a moment, unless a later one asks them something; scenarios are played for
minutes instead of days; `make` targets and programs of the tree must exist. Whatever needs more than this
machine is marked on its page with the reason.
"""

import asyncio
import base64
import gc
import importlib
import io
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

import pytest
import structlog

import karpool.cli
from karpool.cli.exit_codes import NO
from karpool.cli.main import run
from karpool.manager import shutdown
from karpool.manager.stop import Stop
from karpool_fleet.simulation import ready_scenarios
from tests.docs.served import Served, grpcurl
from tests.docs.shown_commands import PAGES, ROOT, Shown, Stage, pipelines, shown_on
from tests.docs.world import NODE, WAITING, World

T = TypeVar("T")
KUBECTL = shutil.which("kubectl")
SERVING_SECONDS = 0.5
LEFT_OUT = 6  # the image (Podman, a registry), the fleet of real systems, the audit (a service), a release
# Ports that are free whoever else runs here.
ANYWHERE = {
    "apply": ("--dry-run",),  # nobody here takes nodes away, and it would wait for that
    "estimator": ("--server-port=0", "--metrics-bind-address=0", "--health-probe-bind-address=0"),
    "scheduler": ("--metrics-bind-address=0", "--health-probe-bind-address=0"),
    "cluster-summary": ("--metrics-bind-address=0", "--health-probe-bind-address=0"),
    "descheduler": ("--metrics-bind-address=0", "--health-probe-bind-address=0"),
    "consolidator": ("--metrics-bind-address=0", "--health-probe-bind-address=0"),
    "gpu-scaler": ("--metrics-bind-address=0", "--health-probe-bind-address=0"),
    "dashboard": ("--port=0",),
}
# What people came for, as the answer words it; by page and command.
_GUIDES = "personas.md"
ANSWERS = {
    (_GUIDES, "karpool top pools --snapshot prod.karpool.gz --sort-by .pricePerHour"): (
        r"general +3 ",
        r"prod: 3 nodes, \d+ pods? pending, \$0\.\d+ per hour",
    ),
    (_GUIDES, "karpool plan --snapshot prod.karpool.gz"): (
        r"1 node away, 0 new",
        r"\$0\.192 per hour \(\$140 per month\)",
        r"0 pods",
    ),
    (_GUIDES, "karpool plan --snapshot prod.karpool.gz --threshold 1 --threshold 2 --threshold 3"): (
        r"Balanced k=1 +1 +1 ",
        r"Balanced k=3 +1 +1 ",
    ),
    (_GUIDES, f"karpool explain node {NODE} --snapshot prod.karpool.gz"): (rf"{re.escape(NODE)} stays",),
    (_GUIDES, "karpool explain binding default/web-deployment --context karmada"): (
        r"member1: score 0, room for 98 more\n +general-estimator: 98, counts \(after 2 promised\)",
        r"result: \{member1:1\}",
    ),
    (_GUIDES, "karpool get promises --context karmada --cluster-name member1"): (
        r"member1 +shop/web-deployment +\d+",
        "1 cluster, says karmada",
    ),
    (_GUIDES, "karpool capacity -f deployment.yaml --replicas 20 --context member1"): (
        r"existing nodes +now +20 ",
        "default/web fits now: 20 of 20 replicas",
    ),
    (_GUIDES, "karpool top gpus --context prod"): (
        r"gpu-b +gpu-b-gpu-0 +L4 ",
        "1 device on 1 node, 1 with no holder",
    ),
    (_GUIDES, "karpool get scale-ups --context prod"): ("no scale-ups in prod",),
    (_GUIDES, "karpool explain pod web-7d9c5b8f4-x2x7k -n shop"): (
        "pod shop/web-7d9c5b8f4-x2x7k fits nowhere, and no new node would take it",
        "too little cpu even when empty .* request less, or use larger nodes",
    ),
    (_GUIDES, "karpool capacity deployment/web -n shop"): ("shop/web fits now: 2 of 2 replicas",),
}
WITH_COMMANDS = [page for page in PAGES if any(True for _ in shown_on(page))]


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One for each page: what a page does to its cluster is nobody else's."""
    found = World(tmp_path_factory.mktemp("docs"))
    yield found
    found.stop()


@pytest.fixture
def served(world: World) -> Iterator[Served]:
    found = Served(world.folder)
    yield found
    found.stop()


def briefly(main: Callable[[Stop], Awaitable[T]], *, loop_factory: object = None) -> T:
    """As `run_until_signalled`, with a signal that comes by itself."""

    async def watched() -> T:
        stop = Stop()
        asyncio.get_running_loop().call_later(SERVING_SECONDS, stop.set)
        try:
            return await main(stop)
        finally:
            await asyncio.sleep(0.05)  # TLS says goodbye; a process that ends has no need to

    return asyncio.run(watched())


@pytest.fixture(autouse=True)
def here(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(world.folder)
    monkeypatch.setenv("KUBECONFIG", str(world.folder / "config"))
    monkeypatch.setattr(ready_scenarios, "FOLDER", world.folder / "scenarios")
    # All are imported before anything is patched, or they would keep the patched one for good. Those that
    # import it when they run take it from `shutdown`.
    names = [module.name for module in pkgutil.walk_packages(karpool.cli.__path__, "karpool.cli.")]
    for module in [shutdown, *map(importlib.import_module, names)]:
        if hasattr(module, "run_until_signalled"):
            monkeypatch.setattr(module, "run_until_signalled", briefly)
    logging, thresholds = structlog.get_config(), gc.get_threshold()
    yield
    structlog.configure(**logging)
    gc.set_threshold(*thresholds)


def karpool_says(words: tuple[str, ...], given: str) -> tuple[int, str, str]:
    arguments = [word for word in words if word not in ("-w", "--watch")]  # which would not end
    command = next((word for word in words if not word.startswith("-")), "")
    arguments += ANYWHERE.get(command, ())
    out, err = io.TextIOWrapper(io.BytesIO(), write_through=True), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        code = run(arguments, "karpool")
    return code, out.buffer.getvalue().decode(), err.getvalue()


def kubectl_says(words: tuple[str, ...], given: str) -> tuple[int, str, str]:
    if KUBECTL is None:
        pytest.skip("no kubectl on PATH; install one to execute what this page shows")
    ours = {"kube.yaml": "config"}  # the server that a page started a line before has ended
    command = [KUBECTL, *(ours.get(word, word) for word in words if word != "--watch")]  # which would not end
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=20, check=False)
    return done.returncode, done.stdout, done.stderr


def curl_says(words: tuple[str, ...], given: str, served: Served) -> tuple[int, str, str]:
    tool = shutil.which("curl")
    if tool is None:
        pytest.skip("no curl on PATH; install one to execute what this page shows")
    *options, url = words
    host, _, path = url.partition("/")
    ends = "--max-time" if "-N" in options else "--connect-timeout"  # a stream would not end by itself
    command = [tool, *options, "--fail-with-body", ends, "2", f"{served.address(host)}/{path}"]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=30, check=False)
    timed_out = "-N" in options and done.returncode == 28 and bool(done.stdout)
    return 0 if timed_out else done.returncode, done.stdout, done.stderr + done.stdout


def jq_says(words: tuple[str, ...], given: str, served: Served) -> tuple[int, str, str]:
    tool = shutil.which("jq")
    if tool is None:
        pytest.skip("no jq on PATH; install one to execute what this page shows")
    command = [tool, "-e", *words]  # which fails for null
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout, done.stderr


def grpcurl_says(words: tuple[str, ...], given: str, served: Served) -> tuple[int, str, str]:
    plaintext, data, request, address, method = words
    assert (plaintext, data) == ("-plaintext", "-d")
    return 0, grpcurl(served.address(address), method, request), ""


def execute(stage: Stage, given: str, served: Served) -> str:
    program, *rest = stage.words
    local: dict[str, Any] = {"karpool": karpool_says, "kubectl": kubectl_says}
    remote: dict[str, Any] = {"curl": curl_says, "jq": jq_says, "grpcurl": grpcurl_says}
    name, words = Path(program).name, tuple(rest)
    code, out, err = local[name](words, given) if name in local else remote[name](words, given, served)
    assert code in (0, NO), f"exit {code}: {err[-1500:]}"
    if stage.into:
        Path(stage.into).write_text(out)
        return ""
    return out


def check(shown: Shown, world: World, served: Served) -> str:
    """What it wrote, where it was executed."""
    text = shown.text.replace("/etc/", f"{world.folder}/")
    text = re.sub(r"'\$\(base64 -w0 (\S+)\)'", lambda found: in_base64(world.folder / found[1]), text)
    if text.startswith("karpool simulate "):
        text = re.sub(r" --duration \S+", "", text)  # the scenarios here last a few minutes
        if ".karpool.gz" in text:
            text = re.sub(r"(\.karpool\.gz)", r"\1 --region us-east-1", text)  # the node here does not say
    if "scale-up NAME" in text:
        world.scale_up_waits()  # the scaler that the page started a line before saw that nobody did
        text = text.replace("scale-up NAME", f"scale-up {WAITING.name}")
    if text.startswith("make "):
        target = text.split()[1]
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), "no such target"
        return ""
    if text.startswith("python "):
        words = text.split()
        found = ROOT / (f"{words[2]}/{words[3]}.py" if words[1] == "-m" else words[1])
        assert found.exists(), "no such program"
        return ""
    if text.startswith("export "):
        os.environ.update([text.removeprefix("export ").split("=", 1)])
        return ""
    if text.startswith("karpool record "):  # ends by itself, once it has begun
        text = re.sub(r" --for \S+", " --for 1s", text)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys.modules[__name__], "SERVING_SECONDS", 60.0)
            return executed(text, served)
    return executed(text, served)


def executed(text: str, served: Served) -> str:
    passed = ""
    for pipeline in pipelines(text):
        passed = ""
        for stage in pipeline:
            passed = execute(stage, passed, served)
    return passed


def in_base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


@pytest.mark.long
@pytest.mark.timeout(180)  # programs are started, and a machine may be busy
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_what_a_page_shows_works(page: Path, world: World, served: Served) -> None:
    for shown in shown_on(page):
        if shown.mark:
            continue
        try:
            written = check(shown, world, served)
            for words in ANSWERS.get((page.name, shown.text), ()):
                assert re.search(words, written), f"does not say {words!r}:\n{written}"
        except (AssertionError, KeyError) as error:
            raise AssertionError(f"{shown}\n{error}") from error


def test_marks_say_why_or_where() -> None:
    for page in PAGES:
        for shown in shown_on(page):
            if not shown.mark:
                continue
            found = re.fullmatch(
                r"not executed: (?P<why>.{10,})|(?:executed|checked) by (?P<path>\S+)", shown.mark
            )
            assert found is not None, f"{shown}: {shown.mark}"
            assert found["why"] or (ROOT / found["path"]).exists(), f"{shown}: {found['path']} is not there"


def test_most_commands_are_executed() -> None:
    """A mark is for what a machine cannot do alone, not for what fails."""
    everything = [shown for page in PAGES for shown in shown_on(page)]
    left_out = [shown for shown in everything if shown.mark.startswith("not executed")]
    assert len(everything) > 60
    assert len(left_out) <= LEFT_OUT, "\n".join(map(str, left_out))
