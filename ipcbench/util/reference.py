"""Code of the user's own, named as `module:attribute`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from ipcbench.errors import ConfigError

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_reference(text: object) -> bool:
    """Return whether a text has the form `package.module:attribute`."""
    if not isinstance(text, str):
        return False
    module_name, _, attribute = text.partition(":")
    return _MODULE.fullmatch(module_name) is not None and attribute.isidentifier()


def require_new_name(field: str, name: str, taken: Container[str]) -> None:
    """Refuse a name for something of the user's own that is taken, or that not every file and table can hold.

    Raises:
        ConfigError: it is so.
    """
    if not re.fullmatch(r"\w[\w .-]{,99}", name, re.ASCII):
        allowed = "up to 100 of A-Z, a-z, 0-9, `_`, `-`, `.` and space, of which the last three are not first"
        raise ConfigError(field, name, allowed)
    if name in taken:
        raise ConfigError(field, name, f"a name that no {field} has")


@contextmanager
def users_own(field: str, value: object, allowed: str, place: str | None = None) -> Iterator[None]:
    """Turn whatever the block's code raises, which is the user's own, into a ConfigError that says in which line of it,
    or else names its `place`; Ctrl-C goes on, and, without a place, what is a ConfigError already.
    """
    try:
        yield
    except BaseException as error:  # `sys.exit`, too: the program is ours
        if isinstance(error, KeyboardInterrupt) or (place is None and isinstance(error, ConfigError)):
            raise
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        place = _line_of(error) or place or ""
        raise ConfigError(field, value, f"{allowed} ({text}{place and f', {place}'})") from error


def _line_of(error: BaseException) -> str:
    """Return the innermost line that is neither ours nor of Python or what is installed; empty without one."""
    import sysconfig  # slow to load, and only errors need them
    import traceback

    paths = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    others = ("<", f"{Path(__file__).parents[1]}{os.sep}", *paths)
    lines = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(others)]
    return f"{Path(lines[-1].filename).name}:{lines[-1].lineno}" if lines else ""


def load_reference(text: str, field: str) -> Any:
    """Return what `module:attribute` names; the module may lie in the current folder.

    Args:
        text: the name.
        field: what it is the value of, for errors.

    Raises:
        ConfigError: there is no such module or attribute, or the module's own code fails.
    """
    module_name, _, attribute = text.partition(":")
    if not (_MODULE.fullmatch(module_name) and attribute):  # a module may have attributes of any name
        raise ConfigError(field, text, "`module:name` with an absolute module")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that nothing there hides a package
    with users_own(field, text, "a module that can be imported"):
        try:
            module = import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name and module_name.startswith(error.name):
                raise ConfigError(field, text, f"a module that can be imported ({module_name} is not found)") from error
            raise
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise ConfigError(field, text, f"a name that exists ({attribute!r} is not in {module_name})") from error
