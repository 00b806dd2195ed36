"""Files: the temporary folder, atomic replacement, paths inside a folder, limited reads, strict JSON, clear errors."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ipcbench.errors import ConfigError, StoreError

_LEAST_FREE_BYTES = 2**16
"""A disk with less than this is full: more than the small files of a channel need."""


@contextmanager
def as_store_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a StoreError of one line that names the file (`path` if the error does not)."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{error.filename or path}: {error.strerror or error}{advice_on(error)}") from error


def advice_on(error: OSError) -> str:
    """Return what helps where a disk is full or only for reading, or where files or memory are short; empty for other
    errors.
    """
    if error.errno == errno.ENOMEM:
        return "; free memory, or raise its limit (`ulimit -v`)"
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return "; raise the limit of open files (`ulimit -n`), or close some"
    if error.errno == errno.EROFS:
        return "; mount it so that it can be written, or name another folder (TMPDIR for channels)"
    return "; free blocks or inodes there (`df`, `df -i`)" if error.errno in {errno.ENOSPC, errno.EDQUOT} else ""


def require_space(folder: Path) -> None:
    """Raise OSError if the disk of a folder is full, for what would only say that something does not work."""
    disk = os.statvfs(folder)
    if disk.f_blocks and disk.f_bfree * disk.f_frsize < _LEAST_FREE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def status_of(path: Path) -> os.stat_result:
    """Return the status of a file or a folder.

    Raises:
        OSError: it is something else, which may have no end, or there is nothing.
    """
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise OSError(errno.ESPIPE, "it is a pipe or a device; copy what it gives into a file", str(path))
    return status


def without_folders(text: str) -> str:
    """Return a text as it can be published: a path that leads out of the current folder loses its folders."""
    path = Path(text)
    if not path.is_absolute() and ".." not in path.parts and not text.startswith("~"):
        return text
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return f"…/{path.name}"


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Make or replace a file with what `write` writes; readers see the old file or the whole new one, even on a crash.

    Raises:
        StoreError: the system refuses; the old file is untouched.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with as_store_errors(path):
        if not path.parent.exists():
            raise StoreError(f"{path}: there is no folder {path.parent}; make it, or choose another one")
        try:
            temporary.unlink(missing_ok=True)  # it may be a link that leads out of the folder
            with temporary.open("xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException as error:
            if isinstance(error, OSError) and error.filename == str(temporary):
                error.filename = str(path)  # the name that was given
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def nothing_new_if_it_fails(files: Collection[Path]) -> Iterator[None]:
    """Remove those of these files that the block has made, and the folders made for them, if it raises."""
    new = [each for path in files for each in (path, *path.parents) if not os.path.lexists(each)]
    try:
        yield
    except BaseException:
        for each in new:
            with suppress(OSError):
                (each.unlink if each in files else each.rmdir)()
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Make or replace a file with these bytes, as `write_atomically` does; its folder is made if need be.

    Raises:
        StoreError: the system refuses; no folder was made.
    """
    with nothing_new_if_it_fails((path,)):
        with as_store_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda out: out.write(data))


def temporary_folder() -> Path:
    """Return the folder for temporary files that `tempfile.gettempdir` would choose, without the file that it writes
    there to try it: a process that is killed meanwhile leaves that behind.

    Raises:
        ConfigError: its path is no printable text, which addresses of channels and answers of workers have to be.
    """
    folders = [*filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))), "/tmp", "/var/tmp", "/usr/tmp"]  # noqa: S108
    usable = (folder for folder in folders if Path(folder).is_dir() and os.access(folder, os.W_OK | os.X_OK))
    chosen = Path(next(usable, os.curdir)).absolute()
    if not str(chosen).isprintable():
        raise ConfigError("TMPDIR", os.fsencode(chosen), "a folder whose path is printable UTF-8")
    return chosen


def to_json(values: dict[str, Any], what: str, indent: int | None = None) -> str:
    """Return strict JSON; `what` names the values in an error.

    Raises:
        StoreError: a number is not finite, a value is not plain, or a name is not UTF-8.
    """
    try:
        text = json.dumps(values, allow_nan=False, ensure_ascii=False, indent=indent)
        text.encode()
    except UnicodeEncodeError as error:
        name = re.search(r'"([^"]*[\ud800-\udfff][^"]*)"', text)
        raise StoreError(f"{what}: {name[1] if name else text!r} is not valid; allowed: names in UTF-8") from error
    except (ValueError, TypeError) as error:
        raise StoreError(f"{what}: cannot be stored as JSON: {' '.join(str(error).split())}") from error
    return text


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of the regular file `name` in `folder`.

    Raises:
        StoreError: there is no such file, or it is a link that leads out of the folder.
    """
    path = folder / name
    with as_store_errors(path):
        try:
            real = path.resolve()
        except RuntimeError as error:  # as Python before 3.13 calls it
            raise StoreError(f"{path}: is a link that leads to itself") from error
        if not real.is_relative_to(folder.resolve()):
            raise StoreError(f"{path}: is a link that leads out of the folder")
        if not real.is_file():
            raise StoreError(f"{path}: there is no such file; restore it, or measure anew")
    return path


def regular(path: Path) -> Path:
    """Return the path of a log if it is a regular file or a link to one, which can be read to its end.

    Raises:
        StoreError: it is something else, such as a pipe or a device, or there is no such file.
    """
    with as_store_errors(path):
        try:
            mode = path.stat().st_mode
        except FileNotFoundError as error:
            text = f"{path}: {error.strerror}; `ipcbench trace run` makes the folder of a trace"
            raise StoreError(text) from error
        if not stat.S_ISREG(mode):
            raise StoreError(f"{path}: is neither a file nor a folder")
    return path


def read_limited(path: Path, limit_bytes: int) -> bytes:
    """Return the contents of a file.

    Raises:
        StoreError: it is larger than `limit_bytes`, or cannot be read.
    """
    with as_store_errors(path):
        size = path.stat().st_size
        if size > limit_bytes:
            raise StoreError(f"{path}: has {size:,} bytes, more than the {limit_bytes:,} allowed")
        return path.read_bytes()
