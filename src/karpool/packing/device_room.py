"""How many pods the devices of each node could serve, ignoring all other resources."""

import numpy as np

from karpool.model.devices.request import DeviceDemand
from karpool.packing.tables.columns import Int64s
from karpool.packing.tables.room import Room


def device_room(room: Room, demand: DeviceDemand) -> Int64s:
    """Return the number of pods by node. O(devices)."""
    if room.devices is None:
        return np.zeros(room.n, dtype=np.int64)
    return room.devices.room(demand, room.n)
