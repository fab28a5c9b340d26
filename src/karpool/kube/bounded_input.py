"""Reads input up to a size limit, from any source: /dev/zero has a size of 0 and never ends."""

import errno
import sys
from pathlib import Path

STDIN = Path("-")
CREDENTIAL_LIMIT = 1024 * 1024  # certificates, keys, tokens; a bundle of all public authorities is 200 KiB


def read_bounded(source: Path, limit: int) -> bytes:
    """All of a file, or of stdin for `-`. Raises OSError, also for more than `limit` bytes; its `strerror`
    says so."""
    if source == STDIN:
        content = sys.stdin.buffer.read(limit + 1)
    else:
        with source.open("rb") as file:
            content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit} bytes", str(source))
    return content
