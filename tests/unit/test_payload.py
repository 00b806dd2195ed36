"""The payloads weigh what the documentation says, the same everywhere, and survive every codec."""

import io
import pickle
import sys

import msgpack
import numpy as np
import pytest

from ipcbench.errors import ConfigError
from ipcbench.harness.prepare import encoded_bytes, prepare_payload
from ipcbench.spec import SweepSpec
from ipcbench.sweeps.load import load_sweep
from ipcbench.workload.codec import get_codec
from ipcbench.workload.payload import build, load_sample


@pytest.mark.parametrize(("entries", "size_bytes"), [(10, 521), (100, 5_105), (1000, 55_039), (10_000, 577_129)])
def test_a_dict_of_that_many_entries_pickles_to_that_many_bytes(entries, size_bytes):
    assert len(get_codec("pickle").encode(build("dict", entries))) == size_bytes


def test_a_dict_entry_has_the_four_fields():
    assert build("dict", 4)["key_3"] == {"value": 3, "squared": 9, "text": "test_value_3", "float": 1.0}


@pytest.mark.parametrize("kind", ["dict", "records", "bytes", "ndarray"])
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


def test_records_hold_the_fields_of_the_dict_in_its_order():
    array, entries = build("records", 30), build("dict", 30)
    fields = [(key.decode(), int(v), int(sq), text.decode(), float(f)) for key, v, sq, text, f in array.tolist()]
    assert fields == [(key, *entry.values()) for key, entry in entries.items()]


@pytest.mark.parametrize(
    "array",
    [
        *(build("records", size) for size in (0, 1, 100)),
        *(build("ndarray", size) for size in (0, 7, 8192)),
        np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)),
        np.arange(12)[::3],
        np.array(2.5),
        np.zeros(2, dtype=[(f"field_{i}" * 90, "u1") for i in range(90)]),  # a head longer than 64 KiB
    ],
    ids=lambda array: f"{array.dtype.kind}{array.shape}",
)
@pytest.mark.filterwarnings("ignore:Stored array in format 2.0")
def test_numpy_returns_the_array_in_the_memory_of_the_message(array):
    coder = get_codec("numpy")
    message = bytearray(coder.encode(array))
    decoded = coder.decode(memoryview(message))
    assert (decoded.shape, decoded.dtype) == (array.shape, array.dtype)
    assert decoded.tobytes() == array.tobytes()
    loaded = np.load(io.BytesIO(message), max_header_size=10**6)
    assert loaded.tobytes() == array.tobytes(), "it is not a .npy file"
    if array.nbytes:
        assert np.shares_memory(decoded, np.frombuffer(message, dtype=np.uint8))


def test_numpy_sends_no_objects():
    with pytest.raises(ValueError, match="Object arrays"):
        get_codec("numpy").encode(np.array([object()]))


def test_raw_sends_the_bytes_of_an_array_and_refuses_what_has_none():
    array = np.arange(3.0)
    assert get_codec("raw").encode(array) == array.tobytes()
    with pytest.raises(TypeError):
        get_codec("raw").encode(5)  # `bytes(5)` would be five zeros


def test_unknown_kind_and_codec_say_what_is_allowed():
    with pytest.raises(ConfigError, match="dict, records, bytes or ndarray"):
        build("tensor", 1)
    with pytest.raises(ConfigError, match="pickle, pickle5, msgpack, numpy, raw or module:Class"):
        get_codec("json")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A current folder with the module `own_things`, which no path leads to."""
    (tmp_path / "own_things.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own_things", None)


OWN = """
import json
calls = []
def counted(size):
    calls.append(size)
    return {"call": len(calls), "rows": [1] * size}
def broken(size):
    raise RuntimeError("no such size")
def leaves(size):
    raise SystemExit(0)
class Odd(BaseException): pass
def odd(size):
    raise Odd("no")
class Json:
    def encode(self, obj): return json.dumps(obj).encode()
    def decode(self, view): return json.loads(bytes(view))
class Text(Json):
    def encode(self, obj): return json.dumps(obj)
class Greedy(Json):
    def __init__(self, level): pass
"""


@pytest.mark.usefixtures("own")
def test_an_own_function_and_codec_give_two_contents_of_equal_length():
    prepared = prepare_payload(SweepSpec(payload="own_things:counted", codec="own_things:Json", sizes=(3,)), 3)
    assert prepared.contents == (b'{"call": 1, "rows": [1, 1, 1]}', b'{"call": 2, "rows": [1, 1, 1]}')
    assert prepared.payload_bytes == len(prepared.contents[0])


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("payload", "codec", "said"),
    [
        ("own_things:broken", "pickle", "payload: 'own_things:broken' .*RuntimeError: no such size"),
        ("own_things:leaves", "pickle", "payload: 'own_things:leaves' .*SystemExit: 0"),
        ("own_things:odd", "pickle", "payload: 'own_things:odd' .*Odd: no"),
        ("sys:exit", "pickle", "payload: 'sys:exit' .*SystemExit: 3"),
        ("own_things:missing", "pickle", "'missing' is not in own_things"),
        ("no_such_things:make", "pickle", "no_such_things is not found"),
        ("own_things:Json", "raw", "payload: 'own_things:Json'"),
        ("own_things:counted", "own_things:Text", "codec: 'own_things:Text' .*a bytes-like object is required"),
        ("own_things:counted", "own_things:Greedy", "a class that needs no arguments"),
        ("own_things:counted", "own_things:counted", "a class with the methods"),
        ("own_things:counted", "numpy", "codec: 'numpy' .*Object arrays"),
    ],
)
def test_own_code_that_fails_is_one_line_with_its_reason(payload, codec, said):
    with pytest.raises(ConfigError, match=said) as caught:
        prepare_payload(SweepSpec(payload=payload, codec=codec, sizes=(3,)), 3)
    assert "\n" not in str(caught.value)


SAMPLES = {
    "array.npy": (lambda file: np.save(file, np.arange(5)), np.arange(5)),
    "object.pkl": (lambda file: pickle.dump({"a": 1}, file), {"a": 1}),
    "object.msgpack": (lambda file: file.write(msgpack.packb({1: b"x"})), {1: b"x"}),
    "object.JSON": (lambda file: file.write(b"[1, null]"), [1, None]),
    "notes.txt": (lambda file: file.write(b"as it is"), b"as it is"),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_what_its_name_says(name, tmp_path):
    write, content = SAMPLES[name]
    with (tmp_path / name).open("wb") as file:
        write(file)
    sweep = load_sweep(options={"sample": str(tmp_path / name)})
    assert sweep.sizes == ((tmp_path / name).stat().st_size,)
    assert sweep.trial("shm", 1, 1, "paced", 0).payload == f"sample {name}", "the record has the folder's name"
    (encoded,) = prepare_payload(sweep, *sweep.sizes).contents
    decoded = pickle.loads(encoded)
    assert (decoded == content).all() if name == "array.npy" else decoded == content


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "notes.txt"])
def test_a_damaged_sample_is_one_line(name, tmp_path):
    (tmp_path / name).write_bytes(b"\xc1 nothing that anybody could load")
    with pytest.raises(ConfigError, match=r"sample: .* a file with what its name says") as caught:
        load_sample(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_the_encoded_size_of_what_is_asked_for(own):
    assert [encoded_bytes(size) for size in (500, "4KiB")] == [500, 4096]
    assert encoded_bytes(10, "dict") == encoded_bytes("10", "dict", codec="pickle") == 521
    assert encoded_bytes(3, "own_things:counted", codec="own_things:Json") == 30
    (own / "notes.txt").write_bytes(b"12345")
    assert encoded_bytes(None, sample="notes.txt", codec="raw") == 5
    for wrong in ((None,), ("10,20",), (10, "bytes", "notes.txt")):
        with pytest.raises(ConfigError, match=r"^size"):
            encoded_bytes(*wrong)
    with pytest.raises(ConfigError, match=r"^payload"):
        encoded_bytes(None, "dict", "notes.txt")
