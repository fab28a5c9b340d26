"""Clients on virtual time, with a fixed draw instead of chance."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from karpool.kube.api.client import Client
from karpool.kube.transport_interface import Transport
from karpool_fleet.clusters.clock import LoopClock, run_manual

T = TypeVar("T")


def virtually(main: Coroutine[Any, Any, T]) -> T:
    return run_manual(main)


def client_of(transport: Transport, **settings: Any) -> Client:
    settings.setdefault("chance", lambda: 0.5)
    settings.setdefault("qps", None)
    return Client(transport, settings.pop("clock", None) or LoopClock(), **settings)
