"""`karpool top nodes --watch` in a terminal: a view that follows the cluster and listens to keys."""

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, ConsoleDimensions
from rich.live import Live

from karpool.cli.cluster_source import connect
from karpool.cli.options.cluster import ClusterOptions
from karpool.cli.output.listing import Listing, ListingForm, chosen_items
from karpool.cli.output.live_view import NodeChurn, ViewedNode, ViewPosition, picture
from karpool.cluster.cluster import Cluster
from karpool.cluster.snapshot import Snapshot
from karpool.kube.watch.feed import cluster_watches
from karpool.kube.watch.informer_set import InformerSet
from karpool.manager.shutdown import run_until_signalled
from karpool.manager.stop import Stop

_ESCAPES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1b[5~": "pageup",
    b"\x1b[6~": "pagedown",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
}
_END_KEYS = ("q", "Q", "\x03", "\x1b")
_KEY_BYTES = 64  # somebody who holds a key down sends many at once

MakeListing = Callable[[Snapshot, str], Listing]


def follow_nodes(
    options: ClusterOptions, cluster: Cluster, make: MakeListing, form: ListingForm, interval: float
) -> None:
    """Until somebody presses q, or Ctrl-C."""

    async def followed(stop: Stop) -> None:
        async with connect(options) as client:
            informers = InformerSet(client, cluster_watches(cluster, client.clock))
            following = asyncio.ensure_future(informers.run())

            def look() -> Listing:
                return make(cluster.snapshot(client.clock.now()), client.name)

            try:
                await _drawn(stop, informers, look, form, interval)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    run_until_signalled(followed)


async def _drawn(
    stop: Stop, informers: InformerSet, look: Callable[[], Listing], form: ListingForm, interval: float
) -> None:
    console, churn, position = Console(highlight=False), NodeChurn(), ViewPosition()
    keys: list[str] = []
    pressed = asyncio.Event()
    with _keys_read(keys, pressed), Live(console=console, screen=True, auto_refresh=False) as live:
        while not stop.is_set():
            # Of the terminal itself: COLUMNS may be somebody else's.
            console.size = ConsoleDimensions(*os.get_terminal_size(sys.stdout.fileno()))
            nodes, about = [], [informers.not_ready() or ""]
            if not about[0]:
                listing = look()
                about = [*listing.summary, *(f"not followed: {kind}" for kind in informers.troubled())]
                nodes = [
                    ViewedNode(item.name, item.document, item.labels) for item in chosen_items(listing, form)
                ]
                churn.see(nodes, informers.clock.monotonic())
            for key in keys:
                if key in _END_KEYS:
                    return
                position = position.pressed(key, len(nodes) + len(churn.went), console.height)
            keys.clear()
            shown = picture(
                about,
                nodes,
                churn,
                position,
                width=console.width,
                height=console.height,
                label_columns=form.label_columns,
            )
            live.update(shown, refresh=True)
            await _changed(stop, pressed, interval)


async def _changed(stop: Stop, pressed: asyncio.Event, seconds: float) -> None:
    """A key, the end, or the next look."""
    pressed.clear()
    waiting = [asyncio.ensure_future(pressed.wait()), asyncio.ensure_future(stop.wait())]
    try:
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


@contextmanager
def _keys_read(keys: list[str], pressed: asyncio.Event) -> Iterator[None]:
    """Keys as they are pressed, without Enter; the terminal is given back as it was."""
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    loop = asyncio.get_running_loop()

    def readable() -> None:
        with suppress(OSError):
            keys.extend(keys_of(os.read(handle, _KEY_BYTES)))
            pressed.set()

    tty.setcbreak(handle)
    loop.add_reader(handle, readable)
    try:
        yield
    finally:
        loop.remove_reader(handle)
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def keys_of(data: bytes) -> list[str]:
    """The keys that a terminal sent: letters, and the names of those that have none."""
    keys = []
    while data:
        escape = next((code for code in _ESCAPES if data.startswith(code)), None)
        if escape is not None:
            keys.append(_ESCAPES[escape])
        elif data[:1] == b"\x1b" and len(data) > 1:  # a key that means nothing here: all of it
            return keys
        else:
            keys.append(data[:1].decode("latin-1"))
        data = data[len(escape or b" ") :]
    return keys
