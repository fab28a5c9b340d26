"""Files that only their owner may read, written as a whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_private(path: Path, data: bytes) -> None:
    """Put `data` at `path` with mode 0600, replacing what was there in one step; raises OSError.

    A reader sees the old content or the new one. A symbolic link is followed.
    """
    target = path.resolve()
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
