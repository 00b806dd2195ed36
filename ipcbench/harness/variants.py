"""Variants: the same backends, run by other Python interpreters, each with its own packages and its own ipcbench.

    PYTHON -m ipcbench.harness.variants < question > answer

Before a run, each interpreter is asked once, by this module, what it is and which backends it can run. During the run,
its workers measure by its own code, and one process of each variant makes and removes its channels, because the files
of two versions may differ. Coordinator and workers must agree in what they say to each other, see `protocol`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from typing import Any, Protocol

from ipcbench.backend import Address, Backend, Launcher
from ipcbench.errors import BackendUnavailable, ConfigError
from ipcbench.harness.group import Group
from ipcbench.harness.pingpong import Pinged, Ponged
from ipcbench.harness.plan import Plan
from ipcbench.harness.prepare import PreparedPayload, prepare_payload, select_backends
from ipcbench.harness.reading import Received
from ipcbench.harness.worker import Worker
from ipcbench.harness.writing import Written
from ipcbench.machine.describe import describe_versions
from ipcbench.processes.control_channel import Switchboard
from ipcbench.processes.launch import find_mpiexec, other_environment
from ipcbench.registry import ENTRY_POINT_GROUP, get_backend
from ipcbench.results.model import Integrity, Usage
from ipcbench.spec import VARIANT_MARK, ChannelSpec, SweepSpec, TrialSpec, Variant, recorded_names

_PROTOCOL_NUMBER = 2
"""To be raised when a message between coordinator and workers keeps its fields and changes its meaning."""

_ANSWER_S = 60.0
_OPTION = "--variant"


def protocol() -> str:
    """Return what coordinator and workers must have in common: it changes with every field of what they exchange."""
    records = (ChannelSpec, Address, TrialSpec, Plan, Written, Received, Pinged, Ponged, Usage, Integrity)
    names = [[record.__name__, *(field.name for field in fields(record))] for record in records]
    return f"{_PROTOCOL_NUMBER}-{zlib.crc32(repr([names, sorted(Worker(0).verbs)]).encode()):08x}"


class ChannelMaker(Protocol):
    """What makes and removes channels for a run."""

    def create(self, channel: ChannelSpec) -> Address:
        """Make a channel; see `Backend.create`."""

    def destroy(self, address: Address) -> None:
        """Remove it; see `Backend.destroy`."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A backend as a run measures it: a class of this process, or a backend of a variant."""

    launcher: Launcher
    maker: ChannelMaker
    python: str | None = None
    """Interpreter of a variant, which runs the processes; None: this process's."""

    @classmethod
    def of(cls, backend: type[Backend]) -> Contender:
        """Return a backend that this process's interpreter runs."""
        return cls(backend.capabilities.launcher, backend())


class VariantProcess:
    """The process that makes and removes the channels of a variant, as long as the run lasts."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self._group: Group | None = None

    def start(self, switchboard: Switchboard) -> None:
        """Start it.

        Raises:
            WorkerCrashed, WorkerTimeout: it does not connect.
        """
        roles = (f"channel process of {self.variant.name}",)
        self._group = Group("spawn", 0, switchboard, roles=roles, python=self.variant.python).connect()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one question; see `Group.ask`."""
        assert self._group is not None  # noqa: S101 - trials begin after `start`
        return self._group.ask_one(0, question, _ANSWER_S)

    def kill(self) -> None:
        """End it; without a start, do nothing."""
        if self._group is not None:
            self._group.kill()


@dataclass(frozen=True, slots=True)
class _VariantChannels:
    """Makes and removes the channels of one backend of a variant."""

    process: VariantProcess
    backend: str

    def create(self, channel: ChannelSpec) -> Address:
        question = {"do": "create", "backend": self.backend, "channel": channel.as_dict()}
        return Address.from_dict(self.process.ask(question)["address"])

    def destroy(self, address: Address) -> None:
        self.process.ask({"do": "destroy", "backend": self.backend, "address": address.as_dict()})


@dataclass(frozen=True, slots=True)
class Field:
    """Everything that a run measures against each other, settled before the first trial."""

    contenders: Mapping[str, Contender]
    """By the name that trials have them under: `shm`, `shm@base`."""
    skipped: Mapping[str, str]
    """Backend → why it is left out."""
    versions: Mapping[str, Mapping[str, str]]
    """Variant → its versions."""
    processes: tuple[VariantProcess, ...]

    def capabilities(self) -> dict[str, Mapping[str, Any]]:
        """Return what backends that were named as `module:Class` can do; nothing of those of variants."""
        named = [name for name in self.contenders if ":" in name and not self.processes]
        return {name: get_backend(name).capabilities.as_dict() for name in named}


def settle(sweep: SweepSpec, payloads: Sequence[PreparedPayload]) -> Field:
    """Return what a sweep can measure here; each variant's interpreter is asked.

    Raises:
        UnknownBackend: a name is not registered.
        BackendUnavailable: no backend is usable, or one is by some variants and not by all.
        ConfigError: a variant is not an interpreter with an ipcbench that this one can work with.
    """
    for name in sweep.backends:
        if VARIANT_MARK in name:
            raise ConfigError("--backends", name, f"a name without {VARIANT_MARK!r}, which stands before a variant")
    if not sweep.variants:
        backends, skipped = select_backends(sweep, payloads)
        return Field({name: Contender.of(backend) for name, backend in backends.items()}, skipped, {}, ())
    answers = {variant: _ask(variant, sweep, payloads) for variant in sweep.variants}
    usable = [name for name in sweep.backends if any(name in answer["launchers"] for answer in answers.values())]
    for variant, answer in answers.items():
        for name in usable:
            _require_usable(name, variant, answer)
    skipped = {
        _recorded(name, variant): reason
        for name in sweep.backends
        for variant, answer in answers.items()
        if (reason := answer["skipped"].get(name))
    }
    if not usable:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise BackendUnavailable(",".join(sweep.backends), reasons, "install them for every variant, or choose others")
    processes = tuple(map(VariantProcess, sweep.variants))
    contenders = {
        _recorded(name, process.variant): Contender(
            answers[process.variant]["launchers"][name], _VariantChannels(process, name), process.variant.python
        )
        for name in usable
        for process in processes
    }
    versions = {variant.name: answer["versions"] for variant, answer in answers.items()}
    return Field(contenders, skipped, versions, processes)


def _recorded(name: str, variant: Variant) -> str:
    """Return the name under which trials have a backend of a variant."""
    return recorded_names([name], [variant.name])[0]


def _require_usable(name: str, variant: Variant, answer: Mapping[str, Any]) -> None:
    recorded = _recorded(name, variant)
    if name not in answer["launchers"]:
        reason = f"{answer['skipped'][name]} ({variant.python})"
        raise BackendUnavailable(recorded, reason, "another variant can run it; or leave it out, see --backends")
    if answer["launchers"][name] == "mpiexec":
        try:
            find_mpiexec(variant.python)
        except BackendUnavailable as error:
            raise BackendUnavailable(recorded, error.reason, error.hint) from error


def _ask(variant: Variant, sweep: SweepSpec, payloads: Sequence[PreparedPayload]) -> dict[str, Any]:
    """Return what the variant's interpreter says of itself.

    Raises:
        ConfigError: it cannot be started, has no such ipcbench, or encodes the payloads differently.
    """
    question = json.dumps({"protocol": protocol(), "sweep": sweep.as_dict()})
    try:
        done = subprocess.run(
            [variant.python, "-m", __name__],
            input=question,
            env=other_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except OSError as error:
        raise _refusal(variant, f"the path of a Python interpreter ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise _refusal(variant, f"a Python interpreter that answers within {_ANSWER_S:.0f} s") from error
    last = (done.stderr.strip().splitlines() or [f"it ended with exit code {done.returncode}"])[-1]
    if done.returncode:
        raise _refusal(variant, f"a Python interpreter with this version of ipcbench ({last})")
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        theirs, version = answer["protocol"], answer["versions"]["ipcbench"]
    except (ValueError, LookupError, TypeError) as error:
        raise _refusal(variant, "a Python interpreter with ipcbench (it answered something else)") from error
    if theirs != protocol():
        text = f"its ipcbench {version} speaks protocol {theirs} with its workers, this one {protocol()}"
        raise _refusal(variant, f"an ipcbench nearer to this one ({text}); else measure each by itself and compare")
    if "error" in answer:
        raise _refusal(variant, f"an interpreter that can run this sweep ({answer['error']})")
    for payload, theirs in zip(payloads, answer["payload_bytes"], strict=True):
        if theirs != payload.payload_bytes:
            text = f"it encodes size {payload.size:,} in {theirs:,} B, this interpreter in {payload.payload_bytes:,} B"
            raise _refusal(variant, f"interpreters with payloads of equal size ({text}); see --payload bytes")
    return answer


def _refusal(variant: Variant, allowed: str) -> ConfigError:
    return ConfigError(_OPTION, str(variant), allowed)


def _answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return what this interpreter is and can run."""
    about = {"protocol": protocol(), "versions": describe_versions()}
    if question["protocol"] != about["protocol"]:
        return about  # the rest of the question may mean something else
    sweep = SweepSpec.from_dict(question["sweep"])
    payloads = [prepare_payload(sweep, size) for size in sweep.sizes]
    try:
        backends, skipped = select_backends(sweep, payloads)
    except BackendUnavailable as error:
        backends, skipped = {}, dict.fromkeys(sweep.backends, error.reason)
    return {
        **about,
        "versions": {**describe_versions(), **_plug_in_versions(backends)},  # now that libraries are loaded
        "launchers": {name: backend.capabilities.launcher for name, backend in backends.items()},
        "skipped": skipped,
        "payload_bytes": [payload.payload_bytes for payload in payloads],
    }


def _plug_in_versions(names: Mapping[str, object]) -> dict[str, str]:
    """Return package → version of the packages that register these backends."""
    points = [point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name in names]
    return {point.dist.name: point.dist.version for point in points if point.dist is not None}


def main() -> None:
    """Answer the question on standard input, in the last line of standard output."""
    question = json.load(sys.stdin)
    try:
        answer = _answer(question)
    except Exception as error:  # whatever it is, the other side reports it in one line
        answer = {"protocol": protocol(), "versions": describe_versions(), "error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(f"{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
