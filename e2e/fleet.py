"""The real fleet of the scenarios: etcd, Karmada, a member with Karpenter, a member with fixed machines.

It takes a while to start, so it may also be left standing between runs:

    python -m e2e.fleet FOLDER &            # until it is interrupted
    KARPOOL_E2E_FLEET=FOLDER pytest e2e     # uses it instead of starting one
"""

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from e2e import access
from e2e.control_plane import ApiServer, etcd
from e2e.karmada import Karmada, karmada
from e2e.kubectl import Kubectl
from e2e.market import SOLD
from e2e.member import Member, member
from e2e.peers import Built, build_all
from e2e.workloads import node

# A token each and no rights: what they may do is what a scenario binds to them.
COMPONENTS = (*(account.user for account in (*access.ACCOUNTS, *access.VARIANTS)), "plain")
NEEDED = ("etcd", "kubernetes", "kwok", "karpenter", "karmada")
_STATE = "fleet.json"
T = TypeVar("T")


@dataclass
class Fleet:
    elastic: Member
    static: Member
    control: Karmada
    etcd_url: str


@contextlib.contextmanager
def fleet(peers: Mapping[str, Built], place: Path) -> Iterator[Fleet]:
    """Started and ended here, the clusters at the same time."""
    with etcd(peers["etcd"], place) as url, contextlib.ExitStack() as running:
        # Programs end with the thread that started them, so the threads stay until all is over.
        threads = running.enter_context(ThreadPoolExecutor(3))

        def start(context: contextlib.AbstractContextManager[T]) -> "Future[T]":
            def enter() -> T:
                entered = context.__enter__()
                running.push(context)
                return entered

            return threads.submit(enter)

        starting = (
            start(member(peers, place, url, "elastic", COMPONENTS, instance_types=SOLD)),
            start(member(peers, place, url, "static", COMPONENTS)),
            start(karmada(peers, place, url, COMPONENTS)),
        )
        for each in starting:
            each.exception()  # waits for all, so that what was started is ended also when one could not
        elastic, static, control = starting[0].result(), starting[1].result(), starting[2].result()
        for name, kubectl in (
            ("elastic", elastic.kubectl),
            ("static", static.kubectl),
            ("karmada", control.kubectl),
        ):
            access.prepare(kubectl, name)
        static.kubectl.apply(*(node(f"static-{i}", "4") for i in range(3)))
        for one in (elastic, static):
            control.join(one)
        yield Fleet(elastic, static, control, url)


def standing(peers: Mapping[str, Built], place: Path) -> Fleet:
    """One that runs already."""
    state = json.loads((place / _STATE).read_text())
    kubectl = peers["kubernetes"].program("kubectl")

    def server(name: str) -> ApiServer:
        said = state["servers"][name]
        home = Path(said["folder"])
        return ApiServer(name, said["url"], home, home / "ca.crt", said["tokens"])

    servers = {name: server(name) for name in ("elastic", "static", "karmada")}
    clients = {name: Kubectl(kubectl, one.kubeconfig()) for name, one in servers.items()}
    return Fleet(
        Member(servers["elastic"], clients["elastic"]),
        Member(servers["static"], clients["static"]),
        Karmada(servers["karmada"], clients["karmada"]),
        state["etcd"],
    )


def _described(running: Fleet) -> dict[str, Any]:
    servers = (running.elastic.server, running.static.server, running.control.server)
    return {
        "etcd": running.etcd_url,
        "servers": {
            one.name: {"url": one.url, "folder": str(one.folder), "tokens": one.tokens} for one in servers
        },
    }


def main(place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    peers = build_all(NEEDED)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with fleet(peers, place) as running:
        state = place / _STATE
        state.write_text(json.dumps(_described(running)))
        state.chmod(0o600)
        print("standing", flush=True)
        stop.wait()
        state.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
