"""What looks like a library's own, or like nothing, and may carry the data: it is counted."""

from __future__ import annotations

import pytest

from ipcbench.diagnose.endpoints import agrees, links
from tests.diagnose.pairs import forked
from tests.diagnose.test_matrix import require, require_unknown

PAUSE = "__import__('signal').pause()"
TWO_PIPES = """
{more}
(r, w), (s, v) = os.pipe(), os.pipe()
{pair}
child = os.fork()
if not child:
    os.close(r), os.close(v), {child_end}
    os.write(w, b'x')
    __import__('signal').pause()
os.close(w), os.close(s), {parent_end}, os.read(r, 1)
"""


@pytest.mark.parametrize("more", ["", "import multiprocessing.connection, multiprocessing.synchronize"])
def test_two_pipes_of_a_program_are_taken_for_those_of_multiprocessing(more: str) -> None:
    with forked(TWO_PIPES.format(more=more, pair="", child_end="0", parent_end="0")) as pair:
        found = links(*pair)
        require(found, "pipe")
        assert "in use: pipe without a name ×2" in found.verdict
        assert agrees(found, "pipe").answer == "agrees"
    ends = {"pair": "a, b = socket.socketpair()", "child_end": "a.close()", "parent_end": "b.close()"}
    with forked(TWO_PIPES.format(more=more, **ends)) as pair:
        found = links(*pair)
        require_unknown(found, "cannot tell which of these carries the data")
        assert "multiprocessing" not in found.verdict
        assert agrees(found, "pipe").answer == "cannot tell"
