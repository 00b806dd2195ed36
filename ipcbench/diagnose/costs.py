"""What work on messages costs here, without any transport: copies, codecs, compression, a smaller type of numbers.

Each cost is measured in blocks; its interval is that of the blocks' medians.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import msgpack
import numpy as np
import numpy.typing as npt

from ipcbench.diagnose.empty_call import EmptyCall, measure_empty_call
from ipcbench.errors import StoreError
from ipcbench.stats.bootstrap import median_estimate
from ipcbench.stats.estimates import Interval
from ipcbench.util.clock import now_ns
from ipcbench.util.files import as_store_errors, status_of
from ipcbench.workload.objects import pack, unpack

Array: TypeAlias = "npt.NDArray[np.float32]"

_BLOCKS = 5
_BLOCK_NS = 2_000_000
_MOST_REPEATS, _MOST_COLD_REPEATS = 1000, 2
_CACHE_BYTES = 2**26
"""More than any cache: walking through it leaves nothing else in one."""
_LARGEST_BYTES = 2**26
_MOST_SAMPLE_BYTES = 2**26


@dataclass(frozen=True, slots=True)
class CodecCost:
    """To pack an array of float32 and unpack it again, in ns.

    Attributes:
        codec: its name.
        size_bytes: of the array.
        pack_ns, unpack_ns: medians with 95 % intervals.
    """

    codec: str
    size_bytes: int
    pack_ns: Interval
    unpack_ns: Interval


@dataclass(frozen=True, slots=True)
class CopyCost:
    """To copy so many bytes once, in ns, with 95 % intervals: from and to caches, and from and to memory."""

    size_bytes: int
    hot_ns: Interval
    cold_ns: Interval


@dataclass(frozen=True, slots=True)
class CompressionCost:
    """To compress the user's sample, and to expand it again.

    Attributes:
        ratio: compressed bytes over the sample's; None if the library is not installed.
        compress_ns, expand_ns: of the whole sample; None as above.
        remark: why there is nothing.
    """

    method: str
    ratio: float | None
    compress_ns: Interval | None
    expand_ns: Interval | None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Costs:
    """What is measured without a transport.

    Attributes:
        pack_ns, unpack_ns: of an array out of band, whatever its size: its head alone is packed.
        to_half_ns_per_byte, from_half_ns_per_byte: of float32 to a type of half its bytes and back, by byte of float32.
        empty_call: what each call costs, whatever is in it.
        copies: by size, ascending.
        codecs: by size and codec.
        compression: of the sample; empty without one.
    """

    pack_ns: float
    unpack_ns: float
    to_half_ns_per_byte: float
    from_half_ns_per_byte: float
    empty_call: EmptyCall
    copies: tuple[CopyCost, ...]
    codecs: tuple[CodecCost, ...]
    compression: tuple[CompressionCost, ...]


def measure_costs(sizes_bytes: Sequence[int], sample: Path | None = None) -> Costs:
    """Measure the costs for messages of these sizes; above 64 MiB, and below 4 bytes, for the nearest of these.

    Raises:
        StoreError: the sample cannot be read, or is empty.
    """
    compression = () if sample is None else tuple(_compression(_sample(sample)))
    sizes = sorted({min(max(size, 4) // 4 * 4, _LARGEST_BYTES) for size in sizes_bytes})
    largest = np.ones(max(sizes) // 4, np.float32)
    half = largest.astype(np.float16)
    packed = memoryview(b"".join(pack(largest).buffers))
    return Costs(
        pack_ns=_timed(lambda: pack(largest)).estimate,
        unpack_ns=_timed(lambda: unpack(packed, copy=False)).estimate,
        to_half_ns_per_byte=_timed(lambda: largest.astype(np.float16)).estimate / largest.nbytes,
        from_half_ns_per_byte=_timed(lambda: half.astype(np.float32)).estimate / largest.nbytes,
        empty_call=measure_empty_call(),
        copies=tuple(map(_copies, sizes)),
        codecs=tuple(cost for size in sizes for cost in _codecs(size)),
        compression=compression,
    )


def _timed(operate: Callable[[], object], before: Callable[[], object] | None = None) -> Interval:
    """Return the median time of an operation with its interval; `before` it, something that is not timed."""
    operate()
    blocks = []
    for _ in range(_BLOCKS):
        times: list[int] = []
        most = _MOST_REPEATS if before is None else _MOST_COLD_REPEATS
        while not times or (sum(times) < _BLOCK_NS and len(times) < most):
            if before is not None:
                before()
            start = now_ns()
            operate()
            times.append(now_ns() - start)
        blocks.append(max(float(median(times)), 1.0))
    estimate = median_estimate(blocks, np.random.default_rng(1))
    assert estimate is not None  # noqa: S101 - there are blocks enough
    return estimate.interval()


def _copies(size_bytes: int) -> CopyCost:
    source, target = np.ones(size_bytes, np.uint8), np.ones(size_bytes, np.uint8)
    sweep = np.ones(_CACHE_BYTES // 8)

    def copy() -> None:
        np.copyto(target, source)

    return CopyCost(size_bytes, _timed(copy), _timed(copy, sweep.sum))


def _codecs(size_bytes: int) -> Iterator[CodecCost]:
    array = np.ones(size_bytes // 4, np.float32)
    for codec, encode, decode in _CODECS:
        data = encode(array)
        yield CodecCost(codec, size_bytes, _timed(partial(encode, array)), _timed(partial(decode, data)))


def _to_msgpack(array: Array) -> bytes:
    data: bytes = msgpack.packb({"data": array.tobytes()})
    return data


def _from_msgpack(data: bytes) -> Array:
    return np.frombuffer(msgpack.unpackb(data)["data"], np.float32).copy()


def _to_pickle(array: Array) -> bytes:
    return pickle.dumps(array, 5)


def _to_pickle_parts(array: Array) -> tuple[bytes, list[pickle.PickleBuffer]]:
    parts: list[pickle.PickleBuffer] = []
    return pickle.dumps(array, 5, buffer_callback=parts.append), parts


def _from_pickle_parts(message: tuple[bytes, list[pickle.PickleBuffer]]) -> object:
    return pickle.loads(message[0], buffers=message[1])  # noqa: S301 - our own bytes


_CODECS: tuple[tuple[str, Callable[[Array], Any], Callable[[Any], object]], ...] = (
    ("msgpack", _to_msgpack, _from_msgpack),
    ("pickle", _to_pickle, pickle.loads),
    ("pickle, out of band", _to_pickle_parts, _from_pickle_parts),
)


def _sample(path: Path) -> bytes:
    with as_store_errors(path):
        status_of(path)  # a pipe may have no end
        with path.open("rb") as file:
            data = file.read(_MOST_SAMPLE_BYTES)
    if not data:
        raise StoreError(f"{path} is empty; give a file with bytes as they travel")
    return data


def _compression(sample: bytes) -> Iterator[CompressionCost]:
    for name, library, make in _COMPRESSIONS:
        try:
            compress, expand = make(import_module(library))
        except ModuleNotFoundError:
            package = library.partition(".")[0]
            yield CompressionCost(name, None, None, None, f"{package} is not installed: pip install {package}")
            continue
        packed = compress(sample)
        times = _timed(partial(compress, sample)), _timed(partial(expand, packed))
        yield CompressionCost(name, len(packed) / len(sample), *times)


_COMPRESSIONS: tuple[
    tuple[str, str, Callable[[Any], tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]]], ...
] = (
    ("zlib", "zlib", lambda zlib: (partial(zlib.compress, level=1), zlib.decompress)),
    ("lz4", "lz4.frame", lambda lz4: (lz4.compress, lz4.decompress)),
    ("zstd", "zstandard", lambda zstd: (zstd.ZstdCompressor(level=1).compress, zstd.ZstdDecompressor().decompress)),
)
"""Name, module, and what compresses and expands; each as fast as it goes."""
