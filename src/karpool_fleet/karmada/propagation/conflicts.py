"""Writes that find an object changed: look again soon, without calling it a failure.

Every write of the control plane says which version it was decided on. That another
writer came first is ordinary, and worth neither a warning nor a growing back-off.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from karpool.kube.errors import Conflict
from karpool.kube.work_queue import Requeue

K = TypeVar("K")

SOON = Requeue(0.05)


def looking_again(
    reconcile: Callable[[K], Awaitable[Requeue | None]],
) -> Callable[[K], Awaitable[Requeue | None]]:
    """The same reconciler, for which a conflict is a reason to look again."""

    async def patient(key: K) -> Requeue | None:
        try:
            return await reconcile(key)
        except Conflict:
            return SOON

    return patient
