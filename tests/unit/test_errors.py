"""The error tree: what a user is told, and that it survives the way between processes."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from ipcbench import errors

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]


def make(kind: type[errors.IpcbenchError]) -> errors.IpcbenchError:
    arguments = {
        errors.ConfigError: ("readers", -1, "1 to 1,024"),
        errors.UnknownBackend: ("shmm", ("shm", "zmq")),
        errors.BackendUnavailable: ("mpi", "no mpi4py", "install it"),
        errors.HostError: ("b", "cannot be reached"),
        errors.MessageTooLarge: (2000, 1000),
        errors.PayloadTypeError: ("str", "it has no bytes"),
        errors.EncodeError: ("args[0]['x']", "set", "set does not travel"),
        errors.UnknownMethod: ("gpu", "matml", ("matmul", "sum")),
        errors.RemoteError: ("LookupError", "no such thing", "Traceback …\nLookupError: no such thing\n"),
    }
    return kind(*arguments.get(kind, ("what happened",)))


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_one_line_and_every_error_is_ours(kind: type[errors.IpcbenchError]) -> None:
    assert issubclass(kind, errors.IpcbenchError)
    assert "\n" not in str(make(kind))
    assert str(make(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_documented(kind: type[errors.IpcbenchError]) -> None:
    assert kind.__doc__
    assert kind.__name__ == "IpcbenchError" or re.search(rf"── {kind.__name__}\b", errors.__doc__ or "")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_pickles_whole(kind: type[errors.IpcbenchError]) -> None:
    error = make(kind)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize(
    ("kind", "parent"),
    [
        (errors.TransportTimeout, errors.TransportError),
        (errors.EndOfStream, errors.TransportError),
        (errors.PeerLost, errors.TransportError),
        (errors.MessageTooLarge, errors.TransportError),
        (errors.EndpointClosed, errors.TransportError),
        (errors.WorkerCrashed, errors.TrialError),
        (errors.WorkerTimeout, errors.TrialError),
        (errors.SchemaMismatch, errors.StoreError),
    ],
)
def test_families(kind: type, parent: type) -> None:
    assert kind.__bases__ == (parent,)


def test_texts_hold_the_parts() -> None:
    assert str(make(errors.ConfigError)) == "readers: -1 is not valid; allowed: 1 to 1,024"
    assert (
        str(make(errors.UnknownBackend))
        == "unknown backend 'shmm' (did you mean 'shm'?); known: shm, zmq, or your own, module:Class"
    )
    assert str(make(errors.BackendUnavailable)) == "backend 'mpi' is not available: no mpi4py; install it"
    assert str(make(errors.UnknownMethod)) == (
        "server 'gpu' has no method 'matml' (did you mean 'matmul'?); it has: matmul, sum"
    )
    assert str(make(errors.MessageTooLarge)) == (
        "message of 2000 bytes; the channel takes at most 1000: send less at a time, or make it for larger ones"
    )
