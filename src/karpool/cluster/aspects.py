"""The parts of a cluster that a component needs. They decide which kinds are watched, and the memory used."""

from enum import Flag, auto


class Aspect(Flag):
    ROOM = auto()  # nodes and pods: always included
    NAMESPACES = auto()  # labels of namespaces, for namespace selectors
    VOLUMES = auto()  # where volume claims and volumes allow pods to run
    NODECLAIMS = auto()  # nodes joined with their claims, and prices
    POOLS = auto()  # NodePools and node classes, and the usage of limits
    DAEMONS = auto()  # DaemonSets, which run on every new node
    STOCK = auto()  # offerings out of stock, and pools that fail to launch
    WAITING = auto()  # pods that the scheduler found no node for
    OWNERS = auto()  # the workloads of pods, through chains of controllers
    NODE_GROUPS = auto()  # of cluster-autoscaler
    DISRUPTION = auto()  # the cost of evicting a pod, and budgets
    BUDGETS = auto()  # budgets alone
    QUOTAS = auto()
    PRIORITIES = auto()
    DEVICES = auto()  # GPU objects; the devices that pods use are known without them
    DEVICE_QUOTAS = auto()
    DRA = auto()
    BUFFERS = auto()
    OVERLAYS = auto()
    RECORDS = auto()  # Karpool's own node requests and moves


NO_ASPECTS = Aspect(0)


class NotWatched(LookupError):
    """A component reads an aspect that is not watched: a programming error, not "there are none"."""

    def __init__(self, aspect: Aspect) -> None:
        super().__init__(f"{aspect.name} is not watched; request it when you create the Cluster")
