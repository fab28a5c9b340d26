"""Why a requested node does not arrive or cannot be used: reasons of attempts, claims, pools and nodes."""

from karpool.model.infeasible import Reason


class LaunchReason(Reason):
    STOCK_OUT = "InsufficientCapacity"
    LAUNCH_TIMEOUT = "LaunchTimeout"
    REGISTRATION_TIMEOUT = "RegistrationTimeout"
    CLAIM_LOST = "ClaimLost"  # without a node, for an unknown reason
    NO_REACTION = "NoReaction"
    TIMEOUT = "Timeout"
    CREATE_REFUSED = "CreateRefused"
    AUTOSCALER_REFUSED = "Infeasible"
    WRONG_NODE = "Mismatch"
    INTERRUPTED = "Interrupted"
    DEVICE_NOT_READY = "DeviceNotReady"

    REMOVED = "Removed"  # a claim that had a node: not a failed launch
    SURPLUS = "Surplus"  # no longer needed

    # Of a pool that fails to launch.
    LAUNCH_FAILED = "LaunchFailed"
    REGISTRATION_FAILED = "RegistrationFailed"
    PODS_WAITING = "PodsWait"

    # What a node lacks.
    NODE_MISSING = "NodeMissing"
    NODE_GOING = "NodeGoing"  # deleted, interrupted or disrupted: it will not become ready
    NODE_NOT_READY = "NodeNotReady"
    NODE_NOT_INITIALIZED = "NodeNotInitialized"
    DEVICES_MISSING = "DevicesMissing"


# Why an attempt failed: only these are valid in the status of a ScaleUp, and metrics start
# exactly these series at zero.
ATTEMPT_REASONS = (
    LaunchReason.STOCK_OUT,
    LaunchReason.LAUNCH_TIMEOUT,
    LaunchReason.REGISTRATION_TIMEOUT,
    LaunchReason.CLAIM_LOST,
    LaunchReason.NO_REACTION,
    LaunchReason.TIMEOUT,
    LaunchReason.CREATE_REFUSED,
    LaunchReason.AUTOSCALER_REFUSED,
    LaunchReason.WRONG_NODE,
    LaunchReason.INTERRUPTED,
    LaunchReason.DEVICE_NOT_READY,
)
