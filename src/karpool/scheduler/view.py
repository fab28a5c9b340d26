"""What one scheduler knows: bindings, clusters, and what is promised. Shared by its parts, owned by none."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from karpool.kube.clock import Clock
from karpool.model.karmada.binding import Binding, BindingKey
from karpool.scheduler.known import KnownBindings, KnownClusters
from karpool.scheduler.ledger import Ledger, Token


@dataclass
class View:
    """`ledger` None: overcommit protection is off. `room_in` is told where room may have appeared."""

    clock: Clock
    ledger: Ledger | None = None
    bindings: KnownBindings = field(default_factory=KnownBindings)
    clusters: KnownClusters = field(default_factory=KnownClusters)
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

    def keep(self, token: Token | None, generation: int) -> None:
        """The decision was written, as this generation; 0 when nobody knows whether it was."""
        if token is not None and self.ledger is not None:
            self.ledger.confirm(token, generation)

    def take_back(self, token: Token | None) -> None:
        """The decision was not written."""
        if token is not None and self.ledger is not None:
            self.room_in(self.ledger.undo(token, self.clock.monotonic()))
