"""The message layout: what goes in comes out, and what is not whole is seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipcbench.workload.message import (
    FLAGS,
    HEADER_BYTES,
    INTENDED,
    OVERHEAD_BYTES,
    SENT,
    SEQUENCE,
    Outgoing,
    Phase,
    body_matches,
    is_whole,
    message_bytes,
    payload_of,
    unpack_stamp,
)


def stamped(payload: bytes, sequence: int) -> Outgoing:
    message = Outgoing(payload)
    message.head[SEQUENCE] = message.tail[0] = sequence
    message.head[INTENDED], message.head[SENT], message.head[FLAGS] = 10, 12, Phase.MEASURE
    return message


@given(st.binary(max_size=300), st.integers(1, 2**62))
def test_a_message_returns_what_was_put_into_it(payload, sequence):
    view = memoryview(stamped(payload, sequence).buffer)
    assert len(view) == message_bytes(len(payload)) == OVERHEAD_BYTES + len(payload)
    assert unpack_stamp(view) == (sequence, 10, 12, Phase.MEASURE)
    assert payload_of(view) == payload
    assert is_whole(view, len(view))
    assert body_matches(view)


@pytest.mark.parametrize("cut", [1, 8, HEADER_BYTES])
def test_a_truncated_message_is_not_whole(cut):
    view = memoryview(stamped(bytes(100), 7).buffer)
    assert not is_whole(view[:-cut], len(view))


def test_a_message_put_together_from_two_is_not_whole():
    first, second = stamped(b"a" * 64, 7).buffer, stamped(b"b" * 64, 8).buffer
    torn = first[:100] + second[100:]
    assert not is_whole(memoryview(torn), len(torn))


def test_a_changed_body_does_not_match_although_the_message_is_whole():
    message = stamped(b"a" * 64, 7).buffer
    message[HEADER_BYTES + 5] ^= 1
    assert is_whole(memoryview(message), len(message))
    assert not body_matches(memoryview(message))


def test_a_wrong_payload_length_in_the_header_is_not_whole():
    message = stamped(b"a" * 64, 7)
    message.head[4] = 63
    assert not is_whole(memoryview(message.buffer), len(message.buffer))
