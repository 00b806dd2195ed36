"""A channel's directory: made, found and removed, while other processes may do the same with its name."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from string import hexdigits

from ipcbench.backend import Address
from ipcbench.errors import TransportError
from ipcbench.sync.interrupts import is_of_handler
from ipcbench.util.clock import now_ns
from ipcbench.util.files import advice_on, require_space, temporary_folder

SEPARATOR = "\n"
"""Separates the parts of an address' location: the channel's directory, its token, and what the backend adds."""

_OTHERS = 0o077
"""Mode bits of everybody but the owner."""

_DIRECTORY_MODE = 0o1700
"""Of a channel's directory. The sticky bit, which has no effect where nobody else may enter, tells it from any other
private folder, which must not be removed, from its first moment to its last."""

_LOCK_NS, _LOCK_LOOK_S = 1_000_000_000, 0.01
"""How long a directory's lock is waited for, and the interval between two tries."""

_MARK = "made"
"""In a channel's directory: whoever has made it has made the directory. It is a link, which takes no descriptor, and
leads nowhere: its target is the channel's token. The token is in the address, too: the address of a channel that was
destroyed must not lead to a channel made anew under its name.
"""

_TOKEN_BYTES = 4

_LONGEST_SOCKET_PATH_BYTES = 103
_REMOVALS = 5
"""How often a directory is removed in which others still change files."""


@contextmanager
def as_transport_errors(what: str, kind: type[Exception] = OSError) -> Iterator[None]:
    """Turn an OSError of the block, or an error of another kind, into a TransportError of one line: what could not be
    done, and the reason.
    """
    try:
        yield
    except kind as error:
        if isinstance(error, TransportError) or is_of_handler(error, _file_of_block(error)):
            raise
        reason = f"{error.strerror or error}{advice_on(error)}" if isinstance(error, OSError) else f"{error!r}"
        raise TransportError(f"{what}: {reason}") from error


def _file_of_block(error: BaseException) -> str:
    """Return the file of the `with` block, or of the decorated function, that raised; it may be a plug-in's."""
    trace = error.__traceback__ and error.__traceback__.tb_next  # after the frame of `as_transport_errors`
    while trace is not None and trace.tb_frame.f_code.co_filename == contextlib.__file__:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename if trace is not None else ""


def make_directory(name: str) -> Path:
    """Make a channel's directory in the temporary folder, for this user only. Its path belongs into the address: the
    processes of a channel may have different temporary folders.

    Raises:
        TransportError: the name is in use, or the folder cannot be made.
    """
    path = temporary_folder() / name
    try:
        path.mkdir(mode=_DIRECTORY_MODE)
        if stat.S_IMODE(path.lstat().st_mode) != _DIRECTORY_MODE:  # some systems, and some masks, leave bits out
            path.chmod(_DIRECTORY_MODE)
    except FileExistsError as error:
        raise TransportError(
            f"channel {name!r} exists already ({path}); destroy it, or use another name; `ipcbench clean` removes what "
            "processes have left that are dead"
        ) from error
    except OSError as error:
        raise TransportError(f"cannot make {path}: {error.strerror}{advice_on(error)}") from error
    return path


def make_joined(name: str, token: str) -> Path:
    """Make the directory of a channel that was made on another host, with the token that it has there.

    Raises:
        TransportError: the name is in use, or the folder cannot be made.
    """
    path = make_directory(name)
    with as_transport_errors(f"cannot make {path}"):
        os.symlink(token, path / _MARK)
    return path


@contextmanager
def new_directory(name: str) -> Iterator[tuple[Path, str, ExitStack]]:
    """Make a channel's directory, hold its lock while the block makes what belongs to the channel, and remove it again
    if the block fails; yields its path, the location for the address, and a stack of what else is then to be undone.
    Another process may destroy the channel meanwhile, and even make one of the same name, which is left alone.

    Raises:
        TransportError: the name is in use, the folder cannot be made, or the channel is destroyed meanwhile.
    """
    path, token = make_directory(name), secrets.token_hex(_TOKEN_BYTES)
    destroyed = TransportError(f"channel {name!r} was destroyed while it was made; make another")
    with ExitStack() as undo, directory_lock(path) as made:  # whose descriptor the removal may need
        if made is None:
            raise destroyed
        try:
            os.symlink(token, path / _MARK)  # which fails in another process's directory
            require_space(path)
        except (FileNotFoundError, FileExistsError) as error:
            raise destroyed from error
        except OSError as error:
            _remove(path, made)
            raise TransportError(f"cannot make {path}: {error.strerror}{advice_on(error)}") from error
        undo.callback(_remove_made, path, made)
        try:
            yield path, f"{path}{SEPARATOR}{token}", undo
        except TransportError as error:
            if is_still(path, made):
                raise
            raise destroyed from error
        if not is_still(path, made):
            raise destroyed
        undo.pop_all()


def is_still(path: Path, made: os.stat_result) -> bool:
    """Return whether a path leads to the file or directory that had this status."""
    with suppress(OSError):
        return os.path.samestat(path.lstat(), made)
    return False


def _remove_made(path: Path, made: os.stat_result) -> None:
    if is_still(path, made):
        (path / _MARK).unlink(missing_ok=True)  # an empty one can be removed without a descriptor
        _remove(path, made)


def _token_in(directory: Path) -> str | None:
    """Return the token of the channel in a directory; None if there is none."""
    try:
        return os.readlink(directory / _MARK)
    except OSError as error:
        if is_of_handler(error):
            raise
        return None


def channel_directory(address: Address) -> Path:
    """Return the path of the channel's directory: the first line of its address' location. It need not exist.

    Raises:
        TransportError: that is no path of a directory for this channel.
    """
    path = Path(address.location.partition(SEPARATOR)[0])
    if not path.is_absolute() or path.name != address.channel.name:
        raise TransportError(
            f"the address of channel {address.channel.name!r} names no folder of it, but {address.location!r}; pass "
            "the address that `create` returned"
        )
    return path


def channel_token(address: Address) -> str:
    """Return the token of the channel: the second line of its address' location.

    Raises:
        TransportError: that is no token.
    """
    token = address.location.partition(SEPARATOR)[2].partition(SEPARATOR)[0]
    if len(token) != 2 * _TOKEN_BYTES or set(token) - set(hexdigits):
        raise TransportError(
            f"the address of channel {address.channel.name!r} has no token, but {address.location!r}; pass the address "
            "that `create` returned"
        )
    return token


def open_directory(address: Address) -> Path:
    """Return the path of the channel's directory, for opening an endpoint in it.

    Raises:
        TransportError: there is no such channel, or another one by now, or it is not this user's.
    """
    path, token = channel_directory(address), channel_token(address)
    require_ours(path)
    found = _token_in(path)
    if found is None:
        raise TransportError(f"there is no channel at {path}, or only half of one; destroy it and make another")
    if found != token:
        raise TransportError(
            f"this address is of a channel {address.channel.name!r} that was destroyed, and made anew by now; pass the "
            "address that the new `create` returned"
        )
    return path


def channel_file(address: Address, name: str) -> Path:
    """Return the path of a file in the channel's directory; a channel made anew under the same name has no such file.
    So whatever finds its peers, or its messages, by paths cannot find those of a later channel.

    Raises:
        TransportError: the address is none that `create` returned.
    """
    return channel_directory(address) / f"{name}-{channel_token(address)}"


def write_private(path: Path, text: str | bytes) -> None:
    """Make a file in a channel's directory, for this user only; it is there at once with all of the text, or not.

    Raises:
        OSError: it cannot be written.
    """
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:  # an interpreter that ends has no `open` any more, and its endpoints still leave notes
            left = memoryview(text.encode() if isinstance(text, str) else text)
            while left:
                left = left[os.write(descriptor, left) :]
        finally:
            os.close(descriptor)
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)


def require_socket_path(path: str | Path, without: str = "") -> None:
    """Raise TransportError if a path is too long for a Unix socket on some system, or has a sign that a library does
    not take.
    """
    if without and without in str(path):
        raise TransportError(
            f"{path} has a {without!r}, which the library takes for more; set TMPDIR to another folder"
        )
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH_BYTES:
        raise TransportError(f"{path} is too long for a socket path; set TMPDIR to a shorter folder")


def _is_of_another(address: Address, directory: Path) -> bool:
    """Return whether a directory is another channel's by now. Half of a channel has no token and may be removed."""
    return _token_in(directory) not in {None, channel_token(address)}


def no_channel(where: str, error: OSError) -> TransportError:
    """Return what to raise where an OSError prevents the opening of a channel: it need not mean that there is none."""
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        return TransportError(f"there is no channel at {where}: {error.strerror}")
    return TransportError(f"cannot open the channel at {where}: {error.strerror or error}{advice_on(error)}")


def require_ours(resource: Path | int) -> None:
    """Refuse what another user made, or may write to: whoever takes a channel's name first must not get its messages.

    Args:
        resource: a channel's directory, or the descriptor of a file of it.

    Raises:
        TransportError: it is not this user's alone, or there is none.
    """
    try:
        status = os.fstat(resource) if isinstance(resource, int) else resource.lstat()
    except OSError as error:
        raise no_channel(str(resource), error) from error
    if stat.S_ISLNK(status.st_mode):
        raise TransportError(f"{resource} is a link, and no folder of a channel; use another name")
    if status.st_uid != os.geteuid() or status.st_mode & _OTHERS:
        where = "a file of the channel" if isinstance(resource, int) else str(resource)
        raise TransportError(
            f"{where} belongs to user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):o}, and must be of user "
            f"{os.geteuid()} alone; use another name for the channel"
        )


def is_removable(path: Path) -> bool:
    """Return whether a channel's directory is there, so that whatever carries its name may be removed.

    Raises:
        TransportError: something else is there, or that cannot be found out.
    """
    with as_transport_errors(f"cannot look at {path}"):
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
    is_directory = stat.S_ISDIR(status.st_mode) and status.st_mode & 0o1777 == _DIRECTORY_MODE  # setgid is inherited
    if not is_directory or status.st_uid != os.geteuid():
        raise TransportError(f"{path} is no folder of a channel of this user; if nobody needs it, remove it yourself")
    return True


@contextmanager
def directory_lock(path: Path) -> Iterator[os.stat_result | None]:
    """Hold the lock of a channel's directory while the channel's files outside it are made or removed, so that `create`
    and `destroy` do not come between each other's steps; yields the directory's status, None if it is not there.
    Without a free descriptor there is no lock, and it is not waited for longer than a second: a stopped process may
    hold it. So look again whether it is still that directory, before anything is removed.
    """
    fd, status, last_ns = -1, _status(path), now_ns() + _LOCK_NS
    try:
        try:
            # Another directory may have the name as soon as the lock of this one is held.
            while status and not (fd >= 0 and os.path.samestat(os.fstat(fd), status)):
                if fd >= 0:
                    os.close(fd)
                    fd = -1
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                os.close(os.dup(fd))  # raises if it is the last one
                while now_ns() < last_ns and not _try_lock(fd):
                    threading.Event().wait(_LOCK_LOOK_S)
                status = _status(path)
        except OSError as error:
            if is_of_handler(error):
                raise
            status = None if isinstance(error, FileNotFoundError) else status
            if error.errno == errno.EMFILE and fd >= 0:
                os.close(fd)
                fd = -1
        yield status
    finally:
        if fd >= 0:
            os.close(fd)


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a path; None if nothing is there.

    Raises:
        TransportError: that cannot be found out.
    """
    with as_transport_errors(f"cannot look at {path}"):
        try:
            return path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_with_file(address: Address, path: Path, remove: Callable[[], object]) -> None:
    """Remove a channel's directory, and a file that the channel has outside it, if both exist. Make such a file within
    `new_directory`.

    Args:
        address: of the channel; where another one has its name by now, nothing is removed.
        path: of the file, where such files have one.
        remove: removes it; FileNotFoundError if somebody else has.

    Raises:
        TransportError: something is still there; without the directory nobody knows whose the file is.
    """
    directory = channel_directory(address)
    with as_transport_errors(f"cannot remove {path}"), directory_lock(directory) as found:
        if found is None:
            if os.path.lexists(path) and not os.path.lexists(directory):  # in this order: the directory is made first
                raise TransportError(f"{directory} is gone, and {path} may be another program's: remove it yourself")
            return
        if _is_of_another(address, directory):
            return
        try:
            with suppress(FileNotFoundError):
                if is_removable(directory) and is_still(directory, found):
                    remove()
        finally:
            _remove(directory, found, address)


def remove_directory(address: Address) -> None:
    """Remove a channel's directory and everything in it, if it exists and is still that channel's.

    Raises:
        TransportError: something of it is still there, and it can be tried again; or what is there is no directory that
            `make_directory` has made.
    """
    directory = channel_directory(address)
    with directory_lock(directory) as found:
        if found is not None:
            _remove(directory, found, address)


def _remove(path: Path, found: os.stat_result, address: Address | None = None) -> None:
    """Remove a directory, unless it is another one by now, or of another channel than the address."""
    with as_transport_errors(f"cannot remove {path}"):
        for left in reversed(range(_REMOVALS)):
            if not is_removable(path) or not is_still(path, found) or (address and _is_of_another(address, path)):
                return
            try:
                shutil.rmtree(path)
            except OSError as error:
                if error.errno in {errno.EMFILE, errno.ENFILE}:
                    _remove_with_one_descriptor(path)
                    return
                is_changing = error.errno in {errno.ENOENT, errno.ENOTEMPTY, None}  # a file came or went meanwhile
                if not (is_changing and left):
                    raise


def _remove_with_one_descriptor(path: Path) -> None:
    """Remove a directory of files, where `shutil.rmtree` finds too few descriptors; an empty one needs none."""
    with suppress(OSError):
        path.rmdir()
        return
    for name in os.listdir(path):
        (path / name).unlink()
    path.rmdir()
