"""What somebody needs to know of a cluster. Kinds that are watched, and memory, follow from it."""

from enum import Flag, auto


class Aspect(Flag):
    ROOM = auto()  # nodes and pods: always there
    NAMESPACES = auto()  # their labels, for namespace selectors
    VOLUMES = auto()  # where claims and volumes allow pods to be
    NODECLAIMS = auto()  # nodes joined with their claims, and prices
    POOLS = auto()  # NodePools and node classes, what they use of their limits
    DAEMONS = auto()  # what runs on every new node
    STOCK = auto()  # what could not be bought, which pools do not deliver
    WAITING = auto()  # pods that the scheduler found no node for
    OWNERS = auto()  # whose pods are on nodes, through controllers of controllers
    NODE_GROUPS = auto()  # of cluster-autoscaler
    DISRUPTION = auto()  # what taking a pod away costs, and budgets
    BUDGETS = auto()  # budgets alone
    QUOTAS = auto()
    PRIORITIES = auto()
    DEVICES = auto()  # GPUs as objects say them; what pods hold of them is seen without
    DEVICE_QUOTAS = auto()
    DRA = auto()
    BUFFERS = auto()
    OVERLAYS = auto()
    RECORDS = auto()  # what Karpool itself has asked for or is moving


NO_ASPECTS = Aspect(0)


class NotWatched(LookupError):
    """Somebody asks for what was not watched: a mistake in the program, not "there are none"."""

    def __init__(self, aspect: Aspect) -> None:
        super().__init__(f"{aspect.name} is not watched; request it when you create the Cluster")
