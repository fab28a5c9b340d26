"""Why a node that was requested does not come, or cannot be used: of attempts, claims, pools and nodes."""

from karpool.model.infeasible import Reason


class LaunchReason(Reason):
    STOCK_OUT = "InsufficientCapacity"
    LAUNCH_TIMEOUT = "LaunchTimeout"
    REGISTRATION_TIMEOUT = "RegistrationTimeout"
    CLAIM_LOST = "ClaimLost"  # without a node, for a reason nobody told
    NO_REACTION = "NoReaction"
    TIMEOUT = "Timeout"
    CREATE_REFUSED = "CreateRefused"
    AUTOSCALER_REFUSED = "Infeasible"
    WRONG_NODE = "Mismatch"
    INTERRUPTED = "Interrupted"
    DEVICE_NOT_READY = "DeviceNotReady"

    REMOVED = "Removed"  # a claim that had a node: no failure of the launch
    SURPLUS = "Surplus"  # nobody needs it any more

    # Of a pool that does not deliver.
    LAUNCH_FAILED = "LaunchFailed"
    REGISTRATION_FAILED = "RegistrationFailed"
    PODS_WAITING = "PodsWait"

    # What a node lacks.
    NODE_MISSING = "NodeMissing"
    NODE_GOING = "NodeGoing"  # deleted, interrupted or disrupted: it will not come up any more
    NODE_NOT_READY = "NodeNotReady"
    NODE_NOT_INITIALIZED = "NodeNotInitialized"
    DEVICES_MISSING = "DevicesMissing"


# Why an attempt came to nothing: only these are valid in the status of a ScaleUp, and metrics start
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
