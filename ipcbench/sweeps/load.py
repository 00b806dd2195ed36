"""Sweeps from TOML files, built-in names and command-line options, all parsed by one table of keys.

A key of a file is an option of the command with `--` before it; options override the file. One table parses both, so
that errors read the same and say where the value stands.
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import cast

from ipcbench.errors import ConfigError
from ipcbench.spec import (
    CODEC_NAMES,
    DELIVERIES,
    MODES,
    PAYLOAD_KINDS,
    SAMPLE,
    TOUCHES,
    TRIPS,
    WAIT_STRATEGIES,
    WORKS,
    SweepSpec,
    Variant,
    is_sized_in_bytes,
    work_name,
)
from ipcbench.util.files import status_of
from ipcbench.util.units import parse_bytes, parse_count, parse_duration_s, parse_rate_per_s, parse_ratio

DEFAULT_SWEEP = "default"
VARIANTS_SWEEP = "versions"
"""The built-in sweep for variants, where none is named."""
_SUFFIX = ".toml"
_INTEGER = re.compile(r"[+-]?\d+")
_BYTE_PAYLOADS = tuple(filter(is_sized_in_bytes, PAYLOAD_KINDS))


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a sweep file, which is also an option of `ipcbench run`."""

    name: str
    """The key in a file, and the option after `--`."""
    field: str
    """The field of `SweepSpec`."""
    metavar: str
    """Form of the value, for help texts."""
    help: str
    parse: Callable[[object, str], object]
    """(value from a file or a command line, where it stands) → value of the field; raises ConfigError."""
    choices: tuple[str, ...] = ()
    """The words that a value, or each of its parts, may be; none: other things."""
    repeated: bool = False
    """Whether the option is given once for each of several values."""


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(where, value, "a text")
    return value.strip()


def _scalar(value: object, where: str) -> str:
    """Return a text or number as text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(where, value, "a number or a text")
    return str(value).strip()


def _list(value: object, where: str) -> tuple[str, ...]:
    """Return the parts of `a,b,c`, of a TOML array, or of a single value."""
    if isinstance(value, list | tuple):
        return tuple(_scalar(part, where) for part in value)
    parts = tuple(part.strip() for part in _scalar(value, where).split(","))
    if len(parts) > 1 and "" in parts:
        raise ConfigError(where, value, "values joined by single commas, without one at either end")
    return parts


def _names(value: object, where: str) -> tuple[str, ...]:
    parts = _list(value, where)
    for part in parts:
        if len(part.split()) > 1:
            raise ConfigError(where, part, f"names joined by commas: {','.join(part.split())}")
    return parts


def _integer(value: object, where: str) -> int:
    text = _scalar(value, where)
    if not _INTEGER.fullmatch(text):
        raise ConfigError(where, value, "a whole number")
    return int(text)


def _integers(value: object, where: str) -> tuple[int, ...]:
    return tuple(_integer(part, where) for part in _list(value, where))


def _ratios(value: object, where: str) -> tuple[float, ...]:
    return tuple(parse_ratio(part, where) for part in _list(value, where))


def _pattern(value: object, where: str) -> str:
    """Return a pattern; `fan-in` is `fan_in`."""
    return _text(value, where).replace("-", "_")


def _joined(value: object, where: str) -> str:
    """Return `0,1` for that text or for an array."""
    return ",".join(_list(value, where))


def _duration_s(value: object, where: str) -> float:
    return parse_duration_s(_scalar(value, where), where)


def _durations_s(value: object, where: str) -> tuple[float, ...]:
    """Return times; `0`, `0s`: none."""
    parts = _list(value, where)
    return tuple(parse_duration_s(part, where, or_zero=True) for part in parts)


def _reply_sizes(value: object, where: str) -> tuple[int, ...]:
    """Return sizes in bytes; none for `same`."""
    parts = _list(value, where)
    if "same" in parts and len(parts) > 1:
        raise ConfigError(where, value, "`same`, or sizes such as 64,1MiB")
    return () if parts == ("same",) else tuple(parse_bytes(part, where) for part in parts)


def _ratio(value: object, where: str) -> float:
    ratio = parse_ratio(_scalar(value, where), where)
    if ratio > 1.0:
        raise ConfigError(where, value, "at most 100 %, such as 2%")
    return ratio


def _switch(value: object, where: str) -> bool:
    """Return True for `yes` and TOML's true, False for `no` and false."""
    words = {True: True, False: False, "yes": True, "no": False}
    if not isinstance(value, bool | str) or value not in words:
        raise ConfigError(where, value, "yes or no")
    return words[value]


def _variants(value: object, where: str) -> tuple[Variant, ...]:
    """Return variants from texts such as `base=../base/.venv/bin/python`; a bare name is looked for in PATH."""
    variants = []
    for text in _list(value, where):
        name, equals, python = text.partition("=")
        if not equals or not python:
            raise ConfigError(where, text, "NAME=PYTHON, a name and the path of an interpreter: base=env/bin/python")
        path = Path(python).expanduser()
        found = shutil.which(python) if path.name == python else None
        variants.append(Variant(name, found or os.path.abspath(path)))  # a link would lead out of its environment
    return tuple(variants)


def _rate_per_s(value: object, where: str) -> float | None:
    text = _scalar(value, where)
    return None if text == "auto" else parse_rate_per_s(text, where)


KEYS: tuple[Key, ...] = (
    Key(
        "backends",
        "backends",
        "NAME,…",
        "Backends, in the order of the tables; see `ipcbench list`.",
        _names,
    ),
    Key("base", "base", "NAME", "One of these, maybe what you use today: say what the others gain over it.", _text),
    Key(
        "variant",
        "variants",
        "NAME=PYTHON",
        "Measure the backends as this Python runs them; give two or more, the base first, in one run.",
        _variants,
        repeated=True,
    ),
    Key(
        "pattern",
        "pattern",
        "PATTERN",
        "Who gets a message: broadcast (every reader), queue (one of the workers), fan-in (many writers, one reader); "
        "or rpc: many clients call one server.",
        _pattern,
        tuple(pattern.replace("_", "-") for pattern in WORKS),
    ),
    Key(
        "readers", "readers", "N", "Number of readers of every channel; of a queue, numbers of workers: 1,4.", _integers
    ),
    Key("writers", "peers", "N,…", "Of a fan-in: numbers of writers, each measured by itself: 1,4,16.", _integers),
    Key(
        "batch",
        "batches",
        "N,…",
        "Of a queue or fan-in: messages that are handed over together, each measured by itself: 1,16,256.",
        _integers,
    ),
    Key(
        "load",
        "loads",
        "PERCENT,…",
        "Of a queue, fan-in or rpc: shares of its own rate flat out at which times are measured: 50%,95%.",
        _ratios,
    ),
    Key("clients", "peers", "N,…", "Of rpc: numbers of clients, each measured by itself: 1,4,16.", _integers),
    Key("in-flight", "in_flight", "N,…", "Of rpc: calls that each client has in flight: 1,8.", _integers),
    Key(
        "reply",
        "reply_sizes",
        "SIZE,…",
        "Of rpc: bytes of a reply (64,1MiB); `same`: as many as in the request.",
        _reply_sizes,
    ),
    Key("service", "services_s", "TIME,…", "Of rpc: how long the method works: 0s,100us.", _durations_s),
    Key("p99-limit", "p99_limit_s", "TIME", "Of rpc: most calls per second with a p99 of at most this.", _duration_s),
    Key(
        "payload",
        "payload",
        "KIND",
        f"What a message carries: {', '.join(PAYLOAD_KINDS)}; or your own module:function, called with a size.",
        _text,
        PAYLOAD_KINDS,
    ),
    Key(
        "sample",
        "sample",
        "FILE",
        "Send what is in a file instead: .npy, .pkl, .msgpack, .json; the bytes of any other.",
        _text,
    ),
    Key(
        "sizes", "sizes", "SIZE,…", "Entries of a dict or of records (10,1000); bytes otherwise (64,1KiB,4MiB).", _list
    ),
    Key(
        "codec",
        "codec",
        "NAME",
        f"How it is encoded: {', '.join(CODEC_NAMES)}; or your own module:Class.",
        _text,
        CODEC_NAMES,
    ),
    Key("delivery", "delivery", "KIND", f"What is guaranteed: {', '.join(DELIVERIES)}.", _text, DELIVERIES),
    Key("mode", "modes", "MODE,…", f"How messages are offered: {', '.join(MODES)}.", _list, MODES),
    Key(
        "rate",
        "rate_per_s",
        "RATE",
        "Messages per second of paced trials: 500, 2k/s; `auto` depends on size.",
        _rate_per_s,
    ),
    Key("rounds", "rounds", "N", "Rounds at most; each measures every cell once, in fresh processes.", _integer),
    Key("budget", "budget_s", "TIME", "When measuring ends, also inside a round: 75s, 5min.", _duration_s),
    Key(
        "precision",
        "precision_ratio",
        "PERCENT",
        "Further rounds until every median is known to within this, or the budget is spent: 2%.",
        _ratio,
    ),
    Key(
        "trips",
        "trips",
        "KIND",
        "Round trips: closed, each after the one before; paced, at the rate; auto, paced between hosts.",
        _text,
        TRIPS,
    ),
    Key("control", "control", "yes|no", "Measure one cell twice per round (A/A), as a check of the verdicts.", _switch),
    Key("look", "look", "yes|no", "Make the first of several rounds a short one, for a first look.", _switch),
    Key("tail", "tail", "yes|no", "Measure one-way p99, by windows in one piece beside those in turns.", _switch),
    Key("seed", "seed", "N", "Seed of the order of cells within a round.", _integer),
    Key(
        "depth",
        "depth",
        "N",
        "Messages a reader may be behind before the writer is held; zmq allows 2 MiB, if that is more.",
        _integer,
    ),
    Key(
        "wait",
        "wait",
        "STRATEGY",
        f"How an endpoint waits: {', '.join(WAIT_STRATEGIES)}.",
        _text,
        WAIT_STRATEGIES,
    ),
    Key(
        "pin", "pin", "CORES", "Cores of the processes: none, auto, or for the writer and each reader: 0,1,2.", _joined
    ),
    Key("touch", "touch", "PART", f"What a reader touches while timed: {', '.join(TOUCHES)}.", _text, TOUCHES),
    Key(
        "neighbours",
        "neighbours",
        "N,…",
        "Busy processes beside each trial; several numbers measure everything beside each: 0,2.",
        _integers,
    ),
    Key("window", "window_s", "TIME", "Minimum length of the measured window: 250ms.", _duration_s),
    Key("warmup", "warmup_s", "TIME", "Minimum warm-up; it goes on until steady, up to four times this.", _duration_s),
)
"""Every key of a sweep file and every option of `ipcbench run` that says what to measure."""

_BY_NAME = {key.name: key for key in KEYS}

PRESETS: Mapping[str, Mapping[str, str]] = {
    "quick": {"rounds": "3", "window": "60ms", "warmup": "20ms", "budget": "40s"},
    "rigorous": {
        "rounds": "10",
        "window": "300ms",
        "warmup": "100ms",
        "precision": "2%",
        "budget": "15min",
        "look": "no",
    },
}
"""Name → keys that it sets; they override those of the sweep and yield to options."""


def builtin_sweeps() -> tuple[str, ...]:
    """Return the names of the built-in sweeps, the default one first."""
    sweeps = {Path(entry.name).stem for entry in _folder().iterdir() if entry.name.endswith(_SUFFIX)}
    return (DEFAULT_SWEEP, *sorted(sweeps - {DEFAULT_SWEEP}))


def load_sweep(
    sweep: str = DEFAULT_SWEEP, options: Mapping[str, object] | None = None, preset: str | None = None
) -> SweepSpec:
    """Return the sweep of that built-in name or file (a path ending in `.toml`), overridden by `options`.

    Args:
        sweep: a built-in name, or the path of a file.
        options: key name → value, as text or plain values; they override the file's.
        preset: one of `PRESETS`, which overrides the file and yields to `options`.

    Raises:
        ConfigError: no such sweep or file, not TOML, an unknown key, or a value that is not allowed; the text says
            where.
    """
    path = Path(sweep)
    given = {**(PRESETS[preset] if preset else {}), **(options or {})}
    if path.suffix == _SUFFIX:
        return _build(path.stem, _read_file(path), f" in {path}", given)
    return _build(sweep, _parse_toml(_read_builtin(sweep), sweep), f" in sweep {sweep}", given)


def sweep_texts(name: str) -> Mapping[str, str]:
    """Return key → value of a built-in sweep, each as the option of that name would have it.

    Raises:
        ConfigError: no built-in sweep of that name.
    """
    return {key: ",".join(map(_word, _as_list(value))) for key, value in _parse_toml(_read_builtin(name), name).items()}


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _word(value: object) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def describe_sweep(name: str) -> str:
    """Return the first comment line of a built-in sweep, which says what it measures.

    Raises:
        ConfigError: no built-in sweep of that name.
    """
    return _read_builtin(name).partition("\n")[0].removeprefix("#").strip()


def _folder() -> Traversable:
    return files("ipcbench").joinpath("sweeps")


def _read_builtin(name: str) -> str:
    if name not in builtin_sweeps():
        raise ConfigError("sweep", name, (*builtin_sweeps(), f"the path of a file ending in {_SUFFIX}"))
    return _folder().joinpath(name + _SUFFIX).read_text(encoding="utf-8")


def _read_file(path: Path) -> Mapping[str, object]:
    try:
        status_of(path)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError("sweep", str(path), f"a file that can be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError("sweep", str(path), f"a text file in UTF-8 ({error.reason})") from error
    return _parse_toml(text, str(path))


def _parse_toml(text: str, source: str) -> Mapping[str, object]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, arrays thousands deep
        raise ConfigError("sweep", source, f"a TOML file ({error})") from error


def _build(name: str, from_file: Mapping[str, object], place: str, options: Mapping[str, object]) -> SweepSpec:
    """Return the sweep; `place` names the file in the texts of errors."""
    where = {key: f"{key}{place}" for key in from_file} | {key: f"--{key}" for key in options}
    values = {**from_file, **options}
    for key in values:
        if key not in _BY_NAME:
            label = f"key{place}" if key in from_file else "option"
            raise ConfigError(label, key, _BY_NAME)
    fields: dict[str, object] = {
        _BY_NAME[key].field: _BY_NAME[key].parse(value, where[key]) for key, value in values.items()
    }
    if "sample" in values:
        fields |= _sample_fields(values["sample"], where, from_file if "sample" not in options else options)
    elif "sizes" in fields:
        payload = fields.get("payload", SweepSpec.__dataclass_fields__["payload"].default)
        fields["sizes"] = _sizes(values["sizes"], where["sizes"], cast(str, payload))
    if fields.get("delivery") == "latest_value" and not _chosen_together("mode", "delivery", from_file, options):
        modes = fields.get("modes", SweepSpec.__dataclass_fields__["modes"].default)
        fields["modes"] = tuple(mode for mode in cast(tuple[str, ...], modes) if mode != "pingpong")
    fields |= _peer_fields(fields, where, options)
    try:
        return SweepSpec.from_dict({"name": name, **fields})
    except ConfigError as error:
        raise ConfigError(_where_of(error.field, where), error.value, error.allowed) from error


_PEERS_KEY: Mapping[object, str] = {"fan_in": "writers", "rpc": "clients"}
_BROADCAST_ONLY = ("delivery", "mode", "rate", "trips", "control", "look", "tail")


def _peer_fields(
    fields: dict[str, object], where: Mapping[str, str], options: Mapping[str, object]
) -> dict[str, object]:
    """Return readers and peers, which mean different things to different patterns: a queue has several numbers of
    readers, a fan-in several of writers, rpc several of clients, a broadcast one number of readers.
    """
    pattern, readers = fields.get("pattern", "broadcast"), cast(tuple[int, ...], fields.get("readers", ()))
    if pattern != "broadcast":
        for key in _BROADCAST_ONLY:
            if key in options:
                raise ConfigError(where[key], options[key], f"nothing beside pattern {work_name(str(pattern))}")
    for key in ("writers", "clients"):
        if key in where and pattern in WORKS and key != _PEERS_KEY.get(pattern):
            hint = "; --readers 1,4" if pattern == "queue" else ""
            peers = ",".join(map(str, cast(tuple[int, ...], fields["peers"])))
            raise ConfigError(where[key], peers, f"nothing beside pattern {work_name(str(pattern))}{hint}")
    if pattern == "queue":
        return {"peers": readers, "readers": max(readers, default=1)} if readers else {"peers": (1,)}
    if len(readers) > 1 or (pattern in {"fan_in", "rpc"} and "readers" in options and readers != (1,)):
        text = ",".join(map(str, readers))
        raise ConfigError(
            where["readers"], text, "one number" if pattern == "broadcast" else "1 for a fan-in, and for rpc"
        )
    plain: dict[str, object] = {"readers": readers[0]} if readers else {}
    return plain if pattern == "broadcast" else {"readers": 1, "peers": fields.get("peers", (1,))}


def _chosen_together(key: str, other: str, from_file: Mapping[str, object], options: Mapping[str, object]) -> bool:
    """Return whether `key` was set in the same place as `other`: the command line, else the file."""
    return key in (options if other in options else from_file)


def _sample_fields(value: object, where: Mapping[str, str], beside: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a sweep that sends what is in a file; `beside` are the keys of the same place."""
    for key in ("payload", "sizes"):
        if key in beside:
            raise ConfigError(where[key], beside[key], "nothing beside sample: the file has one object of one size")
    path = Path(_text(value, where["sample"])).expanduser()
    try:
        size_bytes = status_of(path).st_size
    except (OSError, ValueError) as error:
        raise ConfigError(where["sample"], value, f"a file that can be read ({_reason(error)})") from error
    return {"payload": SAMPLE, "sample": str(path), "sizes": (size_bytes,)}


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _sizes(value: object, where: str, payload: str) -> tuple[int, ...]:
    """Return the sizes: bytes, or counts of entries for a dict and for records, or arguments of a function."""
    parts = _list(value, where)
    if is_sized_in_bytes(payload):
        return tuple(parse_bytes(part, where) for part in parts)
    try:
        return tuple(parse_count(part, where) for part in parts)
    except ConfigError as error:
        kinds = " or ".join(_BYTE_PAYLOADS)
        raise ConfigError(where, error.value, f"{error.allowed}; sizes in bytes need --payload {kinds}") from error


def _where_of(field: str, where: Mapping[str, str]) -> str:
    """Return where the value that `SweepSpec` refuses stands; the field itself if it was not given."""
    for key in KEYS:
        if field in {key.name, key.field} and key.name in where:
            return where[key.name]
    return field
