from __future__ import annotations

import errno
import inspect

import pytest

from sequencer import errors
from sequencer.errors import ConfigurationError, NotTrusted, SequencerError, to_machine_busy

CODES = {
    "SequencerError": 70,
    "StepFailed": 1,
    "UsageRefused": 2,
    "ConfigurationError": 2,
    "ConfigurationErrors": 2,
    "PackageFailed": 2,
    "UnsafePath": 2,
    "UnknownName": 2,
    "AgentMissing": 2,
    "NotTrusted": 2,
    "DecisionRefused": 2,
    "StateRefused": 3,
    "StaleClaim": 3,
    "CorruptState": 3,
    "StepsMissing": 3,
    "DefinitionChanged": 3,
    "NewerSchema": 3,
    "EditRefused": 3,
    "TransitionRefused": 3,
    "TooManyFailures": 3,
    "StorageFailed": 3,
    "RecordRefused": 3,
    "UnsafeFolder": 3,
    "NetworkFileSystem": 3,
    "RemoteRefused": 3,
    "RemoteUnreachable": 3,
    "WorkTreeRefused": 3,
    "WaitsForPerson": 4,
    "ClaimHeld": 75,
    "WorkTreeBusy": 75,
    "MachineBusy": 75,
    "Interrupted": 130,
}


def test_every_error_has_its_exit_code() -> None:
    members = inspect.getmembers(errors, inspect.isclass)
    classes = [cls for _, cls in members if issubclass(cls, SequencerError)]
    assert {cls.__name__: cls.exit_code for cls in classes} == CODES
    assert all(cls.__doc__ for cls in classes)


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (OSError(errno.EMFILE, "x"), "ulimit -n"),
        (OSError(errno.ENFILE, "x"), "fs.file-max"),
        (BlockingIOError(errno.EAGAIN, "x"), "ulimit -u"),
        (OSError(errno.ENOMEM, "x"), "memory"),
        (OSError(errno.ENOSPC, "x"), "df -i"),
        (OSError(errno.EDQUOT, "x"), "df -h"),
        (MemoryError(), "memory"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (
            ImportError("_ctypes.so: cannot open shared object file: Too many open files"),
            "ulimit -n",
        ),
    ],
    ids=repr,
)
def test_an_exhausted_resource_is_reported_with_a_hint(error: Exception, word: str) -> None:
    found = to_machine_busy(error)
    assert found is not None
    assert word in (found.hint or "")
    made = ConfigurationError("the prompt can't be read")
    made.__cause__ = error
    assert to_machine_busy(made) is not None
    assert to_machine_busy(found) is found


def test_many_changes_in_one_part_of_a_project_hide_no_other_part() -> None:
    many = [f"+ agents.a{number:03}.argv: []" for number in range(200)]
    changed = [*many, '+ hooks: ["x.py"]', '+ setup: [["x"]]', "+ file flows/x.md, x: y"]
    said = str(NotTrusted("/p", (), changed))
    assert all(line in said for line in changed[200:])
    assert "203 parts in all: agents 200, hooks 1, setup 1, file 1" in said
    assert said.index("a000") < said.index("a036") < said.index("hooks")
    assert "a037" not in said
    assert "in all" not in str(NotTrusted("/p", (), changed[165:]))
