"""What a run leaves on the host, found by name: shared memory segments and folders whose names begin with a prefix."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

SHM_FOLDER = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory


def find(prefix: str) -> list[Path]:
    """Return every segment and every entry of the temporary folder whose name begins with `prefix`, sorted."""
    folders = {SHM_FOLDER, Path(tempfile.gettempdir())}
    return sorted(path for folder in folders if folder.is_dir() for path in folder.glob(f"{prefix}*"))


def remove(prefix: str) -> list[Path]:
    """Remove what `find` finds; return what was removed. An entry that goes by itself meanwhile is fine."""
    removed = []
    for path in find(prefix):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        removed.append(path)
    return removed
