"""DRA devices while nodes are filled pod by pod; earlier states can be restored."""

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.dra.pod_claims import DraState, demand_of_shape, place_pod, with_pod
from karpool.packing.tables.room import Room


class ClaimFilling:
    def __init__(self, room: Room) -> None:
        self._room = room
        self.state: DraState | None = room.dra  # immutable, so that a caller can restore an earlier one

    def take(self, row: int, shape: PodShape, pods: int = 1) -> bool:
        """Allocate devices for pods on a node. Returns False and allocates nothing if one pod gets none."""
        before = self.state
        for _ in range(pods):
            if self.state is None:
                return False
            demand = demand_of_shape(self.state, shape)
            placed = place_pod(self.state, demand, self._room.dra_node(row, demand.extended))
            if not placed.fits:
                self.state = before
                return False
            self.state = with_pod(self.state, demand, placed)
        return True

    def room_on(self, row: int, shape: PodShape, most: int) -> int:
        """Return how many more pods get devices on a node."""
        before, pods = self.state, 0
        while pods < most and self.take(row, shape):
            pods += 1
        self.state = before
        return pods
