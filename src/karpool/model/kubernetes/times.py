"""Times in Kubernetes objects: RFC 3339 in UTC, and back to seconds since the epoch."""

from datetime import UTC, datetime


def rfc3339(seconds: float) -> str:
    """Return the form of `metadata.creationTimestamp`: UTC, whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(seconds: float) -> str:
    """Return the form of MicroTime fields (Lease, events.k8s.io)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_rfc3339(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def moment(text: str | None) -> float | None:
    """Return a time of an object in seconds since the epoch; None if it is missing or cannot be read."""
    try:
        return parse_rfc3339(text) if text else None
    except ValueError:
        return None
