"""The verbs of a conformance agent, and the endpoints that it has open, by handle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from ipcbench.backend import Address, Backend, Writer
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec
from ipcbench.testing.agents.scenarios import SCENARIOS, Slot
from ipcbench.testing.failure import Failure
from ipcbench.testing.leaks import counts, touched_by_import

Role = Literal["writer", "reader"]

Target = str | type[Backend]
"""A backend: `module:Class`, or the class itself if agent and suite share a process."""


def resolve(target: Target) -> type[Backend]:
    """Return the backend's class."""
    return get_backend(target) if isinstance(target, str) else target


def _open_writer(backend: Backend, address: Address, index: int) -> Writer:
    return backend.open_writer(address, index) if index else backend.open_writer(address)  # which has no others


class Dispatcher:
    """What one agent holds and does. All calls come from one thread, one after the other."""

    def __init__(self, _index: int) -> None:
        self._slots: dict[int, Slot] = {}
        self._verbs: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "play": self._play,
            "close": self._close,
            "create": self._create,
            "destroy": self._destroy,
            "counts": counts,
            "touched_by_import": touched_by_import,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request, `{"do": verb, "number", "arguments"}`; return its number, whether it was done, and its
        value or a described failure.
        """
        try:
            done, value = True, self._verbs[request["do"]](**request["arguments"])
        except Exception as error:  # whatever leaves a backend is reported, and the law judges it
            done, value = False, Failure.of(error).as_dict()
        return {"number": request["number"], "done": done, "value": value}

    def _open(self, *, target: Target, address: Mapping[str, Any], role: Role, index: int, handle: int) -> None:
        backend, where = resolve(target)(), Address.from_dict(address)
        endpoint = _open_writer(backend, where, index) if role == "writer" else backend.open_reader(where, index)
        self._slots[handle] = Slot(endpoint)

    def _play(self, *, scenario: str, handle: int, arguments: Mapping[str, Any]) -> Any:
        return SCENARIOS[scenario](self._slots[handle], **arguments)

    def _close(self, *, handles: list[int]) -> None:
        """Close the endpoints that are open and that no scenario has closed; forget them all."""
        for handle in handles:
            slot = self._slots.pop(handle, None)
            if slot is not None and not slot.closed:
                slot.held = None
                slot.endpoint.close()

    def _create(self, *, target: Target, channel: Mapping[str, Any]) -> dict[str, Any]:
        return resolve(target)().create(ChannelSpec.from_dict(channel)).as_dict()

    def _destroy(self, *, target: Target, address: Mapping[str, Any]) -> None:
        resolve(target)().destroy(Address.from_dict(address))
