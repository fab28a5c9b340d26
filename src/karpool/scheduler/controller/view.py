"""What one scheduler knows: bindings, clusters, and what is promised. Shared by its parts, owned by none."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from karpool.kube.clock import Clock
from karpool.model.karmada.binding import Binding, BindingKey
from karpool.scheduler.controller.binding_store import BindingStore, MemberClusterStore
from karpool.scheduler.promises.ledger import PendingPromise, PromiseLedger


@dataclass
class SchedulerStores:
    """`ledger` None: overcommit protection is off. `room_in` is told where room may have appeared."""

    clock: Clock
    ledger: PromiseLedger | None = None
    bindings: BindingStore = field(default_factory=BindingStore)
    clusters: MemberClusterStore = field(default_factory=MemberClusterStore)
    room_in: Callable[[Iterable[str]], None] = lambda clusters: None

    def rebuild(self) -> None:
        """Find all promises again, from what was listed."""
        if self.ledger is not None:
            now = self.clock.monotonic()
            for cluster in self.clusters.all():
                self.ledger.see_cluster(cluster.name, cluster.summary, now)
            self.ledger.rebuild(self.bindings.bindings(), now, self.clock.now())

    def see(self, binding: Binding) -> None:
        """A version of a binding, of whatever scheduler: what it promises, and what of that landed."""
        if self.ledger is not None:
            self.room_in(self.ledger.see(binding, self.clock.monotonic(), self.clock.now()))

    def forget(self, key: BindingKey) -> None:
        if self.ledger is not None:
            self.room_in(self.ledger.forget(key, self.clock.monotonic()))

    def keep(self, token: PendingPromise | None, generation: int) -> None:
        """The decision was written, as this generation; 0 when nobody knows whether it was."""
        if token is not None and self.ledger is not None:
            self.ledger.confirm(token, generation)

    def take_back(self, token: PendingPromise | None) -> None:
        """The decision was not written."""
        if token is not None and self.ledger is not None:
            self.room_in(self.ledger.undo(token, self.clock.monotonic()))
