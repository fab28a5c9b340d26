"""Files that only their owner may read, written as a whole or not at all."""

import errno
import os
import tempfile
from pathlib import Path


def check_replaceable(path: Path) -> None:
    """Raises OSError where replacing would take away a device or a pipe."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))


def write_private(path: Path, data: bytes) -> None:
    """Put `data` at `path` with mode 0600, replacing what was there in one step; raises OSError.

    A reader sees the old content or the new one. A symbolic link is followed; a device is not replaced.
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
