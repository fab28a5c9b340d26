"""A folder that goes with its process, even one that was killed: the next one removes it."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = ".lock"  # held for as long as the process lives, whichever way it ends


@contextmanager
def private_folder(prefix: str) -> Iterator[Path]:
    """Readable by nobody else. Raises OSError where no temporary folder can be made."""
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            _remove_if_left(left)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_if_left(folder: Path) -> None:
    """Raises OSError when somebody has it, or it is not ours."""
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        return
    # Without a lock its owner is about to take it: such a folder is left alone.
    with (folder / _LOCK).open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
