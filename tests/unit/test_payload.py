"""The payloads weigh what the documentation says, the same everywhere, and survive every codec."""

import numpy as np
import pytest

from ipcbench.errors import ConfigError
from ipcbench.workload.codec import get_codec
from ipcbench.workload.payload import build


@pytest.mark.parametrize(("entries", "size_bytes"), [(10, 521), (100, 5_105), (1000, 55_039), (10_000, 577_129)])
def test_a_dict_of_that_many_entries_pickles_to_that_many_bytes(entries, size_bytes):
    assert len(get_codec("pickle").encode(build("dict", entries))) == size_bytes


def test_a_dict_entry_has_the_four_fields():
    assert build("dict", 4)["key_3"] == {"value": 3, "squared": 9, "text": "test_value_3", "float": 1.0}


@pytest.mark.parametrize("kind", ["dict", "bytes", "ndarray"])
@pytest.mark.parametrize("codec", ["pickle", "pickle5"])
def test_the_two_variants_have_equal_size_and_different_bytes(kind, codec):
    first, second = (get_codec(codec).encode(build(kind, 4096, variant)) for variant in (0, 1))
    assert len(first) == len(second)
    assert first != second


@pytest.mark.parametrize(
    ("size", "shape", "dtype"),
    [(0, (0,), "uint8"), (7, (7,), "uint8"), (12, (3,), "float32"), (8192, (2, 1024), "float32")],
)
def test_an_ndarray_takes_its_shape_and_type_from_its_size(size, shape, dtype):
    array = build("ndarray", size)
    assert (array.shape, array.dtype, array.nbytes) == (shape, np.dtype(dtype), size)


@pytest.mark.parametrize("kind", ["dict", "bytes"])
@pytest.mark.parametrize("codec", ["pickle", "pickle5", "msgpack"])
@pytest.mark.parametrize("size", [0, 1, 100])
def test_every_codec_returns_what_it_was_given(kind, codec, size):
    obj, coder = build(kind, size), get_codec(codec)
    assert coder.decode(memoryview(coder.encode(obj))) == obj


def test_raw_returns_the_view_itself():
    view = memoryview(build("bytes", 100))
    assert get_codec("raw").decode(view) is view


def test_pickle5_decodes_an_array_without_copying_and_aligned():
    array, coder = build("ndarray", 8192), get_codec("pickle5")
    message = bytearray(coder.encode(array))
    decoded = coder.decode(memoryview(message))
    assert decoded.tobytes() == array.tobytes()
    before = decoded.tobytes()
    message[-1] ^= 0xFF
    assert decoded.tobytes() != before, "the decoded array has memory of its own"
    start = np.frombuffer(message, dtype=np.uint8).__array_interface__["data"][0]
    assert (decoded.__array_interface__["data"][0] - start) % 64 == 0


def test_pickle_decodes_an_array_into_memory_of_its_own():
    array, coder = build("ndarray", 8192), get_codec("pickle")
    message = bytearray(coder.encode(array))
    decoded = coder.decode(memoryview(message))
    message[-100:] = bytes(100)
    assert decoded.tobytes() == array.tobytes()


def test_unknown_kind_and_codec_say_what_is_allowed():
    with pytest.raises(ConfigError, match="dict, bytes or ndarray"):
        build("tensor", 1)
    with pytest.raises(ConfigError, match="pickle, pickle5, msgpack, raw"):
        get_codec("json")
