"""What is settled before the first process starts: which backends can take part, and how large each payload is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ipcbench.backend import Backend
from ipcbench.channels.epoch import usable_backend
from ipcbench.errors import BackendUnavailable, ConfigError, Unsupported
from ipcbench.processes.launch import find_mpiexec
from ipcbench.registry import get_backend
from ipcbench.spec import MAX_PAYLOAD_BYTES, NAME_PREFIX, SAMPLE, ChannelSpec, SweepSpec
from ipcbench.sweeps.load import load_sweep
from ipcbench.util.clock import now_ns
from ipcbench.util.reference import users_own
from ipcbench.util.units import format_bytes
from ipcbench.workload.codec import Codec, get_codec
from ipcbench.workload.message import message_bytes
from ipcbench.workload.payload import build, load_sample, make

_REPEATS = 5
_COORDINATOR_BYTES, _WORKER_BYTES = 128 * 2**20, 40 * 2**20
"""What this process and each endpoint of one backend take, without messages."""


@dataclass(frozen=True, slots=True)
class PreparedPayload:
    """One payload size of the sweep, encoded to learn its size in bytes and its cost."""

    size: int
    """See `SweepSpec.sizes`."""
    payload_bytes: int
    """Encoded size."""
    encode_ns: float
    decode_ns: float
    """An estimate for planning, measured in this process; never a result."""
    contents: tuple[bytes, ...] = ()
    """What is sent if payload or codec are the user's own: one or two contents of equal length. Built-in payloads are
    made by the process that sends them."""

    def as_dict(self) -> Mapping[str, Any]:
        """Return what run.json stores."""
        return {"size": self.size, "payload_bytes": self.payload_bytes, "encode_ns": self.encode_ns}


def prepare_payload(sweep: SweepSpec, size: int) -> PreparedPayload:
    """Encode and decode the payload a few times, and return the medians.

    Raises:
        ConfigError: the user's own function, file or codec fails.
    """
    codec = get_codec(sweep.codec)
    if not (sweep.is_own_payload or ":" in sweep.codec):
        encoded, encode_ns, decode_ns = _timed(codec, build(sweep.payload, size))
        return PreparedPayload(size, len(encoded), encode_ns, decode_ns)
    first, *others = _own_objects(sweep, size)
    with users_own("codec", sweep.codec, f"one that encodes and decodes {sweep.payload_label} of size {size}"):
        encoded, encode_ns, decode_ns = _timed(codec, first)
        contents = [memoryview(each).tobytes() for each in (encoded, *map(codec.encode, others))]
    size_bytes = len(contents[0])
    if size_bytes > MAX_PAYLOAD_BYTES:
        most = format_bytes(MAX_PAYLOAD_BYTES)
        allowed = f"an object of at most {most} encoded; this has {format_bytes(size_bytes)}"
        raise ConfigError("payload", sweep.payload_label, allowed)
    alike = dict.fromkeys(content for content in contents if len(content) == size_bytes)
    return PreparedPayload(size, size_bytes, encode_ns, decode_ns, tuple(alike))


def _own_objects(sweep: SweepSpec, size: int) -> tuple[Any, ...]:
    """Return what to send: two objects if there is a way to get a second."""
    if sweep.payload == SAMPLE:
        return (load_sample(Path(sweep.sample)),)
    if sweep.is_own_payload:
        return make(sweep.payload, size), make(sweep.payload, size)
    return build(sweep.payload, size), build(sweep.payload, size, 1)


def _timed(codec: Codec, obj: Any) -> tuple[bytes, float, float]:
    """Return the encoded object, and the medians of how long encoding and decoding took, in ns."""
    encode, decode, encoded = [], [], b""
    for _ in range(_REPEATS):
        start = now_ns()
        encoded = codec.encode(obj)
        middle = now_ns()
        codec.decode(memoryview(encoded))
        encode.append(middle - start)
        decode.append(now_ns() - middle)
    return encoded, median(encode), median(decode)


def encoded_bytes(
    size: int | str | None,
    payload: str = "bytes",
    sample: str | None = None,
    codec: str | None = None,
    prefix: str = "",
) -> int:
    """Return the size of one encoded payload, given as the command line has it.

    Args:
        size: of the payload; None for a sample, which has its own.
        payload: a kind, or `module:function`.
        sample: path of a file with the object, in place of a kind.
        codec: None takes `raw` for bytes, otherwise `pickle`.
        prefix: put before the names of values in errors: `--` for options.

    Raises:
        ConfigError: a value is not allowed, or none or more than one size is given.
    """
    if sample is None and payload == "bytes" and codec in {None, "raw"} and isinstance(size, int):
        return size
    options: dict[str, object] = {"codec": codec or ("raw" if sample is None and payload == "bytes" else "pickle")}
    options |= {"sample": sample} if sample is not None else {"payload": payload}
    if sample is not None and payload != "bytes":
        raise ConfigError(f"{prefix}payload", payload, f"nothing beside {prefix}sample")
    if (size is None) == (sample is None):
        allowed = f"nothing beside {prefix}sample" if sample else "a size such as 64, 4KiB or 1MiB"
        raise ConfigError(f"{prefix}size", size, allowed)
    if size is not None:
        options["sizes"] = str(size)
    try:
        sweep = load_sweep(options=options)
    except ConfigError as error:
        field = error.field.removeprefix("--")
        raise ConfigError(f"{prefix}{'size' if field == 'sizes' else field}", error.value, error.allowed) from error
    if len(sweep.sizes) > 1:
        raise ConfigError(f"{prefix}size", size, "one size")
    return sweep.sizes[0] if sweep.codec == "raw" else prepare_payload(sweep, sweep.sizes[0]).payload_bytes


def require_memory(readers: int, limit_bytes: int | None) -> None:
    """Refuse a run that cannot measure even one backend in the memory that its processes may use: the kernel would kill
    them, the run itself at last.

    Raises:
        Unsupported: it cannot.
    """
    needed_bytes = _COORDINATOR_BYTES + (readers + 1) * _WORKER_BYTES
    if limit_bytes is not None and limit_bytes < needed_bytes:
        raise Unsupported(
            f"a run with {readers} reader{'s' * (readers != 1)} takes {format_bytes(needed_bytes)} of memory or more, "
            f"and the limit of its cgroup is {format_bytes(limit_bytes)}; raise the limit (`docker run --memory`), or "
            "take fewer readers"
        )


def select_backends(
    sweep: SweepSpec, payloads: Sequence[PreparedPayload]
) -> tuple[dict[str, type[Backend]], dict[str, str]]:
    """Return the sweep's usable and skipped backends; see `usable_backends`."""
    largest = max(payload.payload_bytes for payload in payloads)
    if sweep.pattern == "rpc":
        return _usable_for_calls(sweep, max(largest, *sweep.reply_sizes, 0))
    channel = ChannelSpec(
        name=f"{NAME_PREFIX}check",
        readers=sweep.most_readers,
        writers=sweep.most_writers,
        pattern=sweep.pattern,
        max_message_bytes=message_bytes(largest),
        delivery=sweep.delivery,
        depth=sweep.depth,
        wait=sweep.wait,
    )
    return usable_backends(sweep.backends, channel)


def _usable_for_calls(sweep: SweepSpec, largest_bytes: int) -> tuple[dict[str, type[Backend]], dict[str, str]]:
    """Return the backends over which rpc works, and for every other one, the reason."""
    channel = ChannelSpec(f"{NAME_PREFIX}check", max_message_bytes=message_bytes(largest_bytes), wait=sweep.wait)
    others, able = {}, []
    for name in sweep.backends:
        try:
            usable_backend(name)
            able.append(name)
        except ConfigError as error:
            others[name] = f"rpc takes {error.allowed}"
        except BackendUnavailable:
            able.append(name)  # which is told below
    if not able:
        raise ConfigError("backends", ",".join(sweep.backends), "some that rpc can use")
    usable, skipped = usable_backends(able, channel)
    return usable, {**others, **skipped}


def usable_backends(names: Iterable[str], channel: ChannelSpec) -> tuple[dict[str, type[Backend]], dict[str, str]]:
    """Return the backends that can make such a channel here; and for every other one, the reason and the remedy.

    Raises:
        UnknownBackend: a name is not registered; nothing is left out silently.
        BackendUnavailable: no backend is usable.
    """
    usable: dict[str, type[Backend]] = {}
    skipped: dict[str, str] = {}
    for name in names:
        try:
            backend = get_backend(name)
            backend().require(channel)  # first: to install something for a backend that cannot would be in vain
            backend.probe()
            if backend.capabilities.launcher == "mpiexec":
                find_mpiexec()
        except BackendUnavailable as error:
            skipped[name] = f"{error.reason}; {error.hint}"
        except Unsupported as error:
            skipped[name] = str(error)
        else:
            usable[name] = backend
    if not usable:
        raise BackendUnavailable(",".join(skipped), _merged(skipped), "`ipcbench list` shows what each backend offers")
    return usable, skipped


def _merged(reasons: Mapping[str, str]) -> str:
    """Return the reasons of several backends, each once."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason.replace(f"backend {name!r} does", "it does"), []).append(name)
    if len(names) == 1:
        return next(iter(names))
    return "; ".join(f"{', '.join(of)}: {reason.removeprefix('it ')}" for reason, of in names.items())
