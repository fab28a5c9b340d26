"""Writes files atomically, readable only by their owner."""

import errno
import os
import tempfile
from pathlib import Path


def check_replaceable(path: Path) -> None:
    """Raise OSError if the path is a device or a pipe, which must not be replaced."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))


def write_private(path: Path, data: bytes) -> None:
    """Write `data` to `path` with mode 0600, replacing the old content atomically; raises OSError.

    A symbolic link is followed; a device is not replaced.
    """
    target = path.resolve()
    check_replaceable(target)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # created with 0600
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
