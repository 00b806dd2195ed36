"""Code of the user's own, named as `module:attribute`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ipcbench.errors import ConfigError

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_reference(text: object) -> bool:
    """Return whether a text has the form `package.module:attribute`."""
    if not isinstance(text, str):
        return False
    module_name, _, attribute = text.partition(":")
    return _MODULE.fullmatch(module_name) is not None and attribute.isidentifier()


@contextmanager
def users_own(field: str, value: object, allowed: str) -> Iterator[None]:
    """Turn whatever the block's code raises, which is the user's own, into a ConfigError; Ctrl-C goes on."""
    try:
        yield
    except (KeyboardInterrupt, ConfigError):
        raise
    except BaseException as error:  # `sys.exit`, too: the program is ours
        raise ConfigError(field, value, f"{allowed} ({type(error).__name__}: {error})") from error


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
