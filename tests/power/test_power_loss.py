"""Nothing that was acknowledged is lost when the power fails, and the run goes on."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sequencer import FileStore
from sequencer.errors import StorageFailed
from tests.boundary.traced import tracer
from tests.contract import store_cases as cases
from tests.long.__main__ import ROOT, in_own_process
from tests.long.report import Size
from tests.power.disk import ROOT as BASE
from tests.power.disk import (
    Disk,
    Effort,
    Enter,
    Op,
    Remove,
    Rename,
    Resize,
    Sync,
    Told,
    Tree,
    Write,
    contents,
)
from tests.power.recorder import Recorder, replaced

CHANCE = random.Random(1)  # noqa: S311 (to be repeated)
EVERYTHING = Effort(10, 0, 1_000, 0)


@pytest.mark.timeout(300)
def test_a_run_survives_a_power_loss_at_every_call(tmp_path: Path) -> None:
    report = in_own_process("B10-power-loss", Size.SHORT, tmp_path / "log")
    assert report["violations"] == []
    assert report["counts"]["power losses"] >= 50
    assert report["counts"]["replays"] >= 150
    assert report["counts"]["kills"] >= 10


BROKEN = {
    "the journal is not synced": ("commit", "journal._fdatasync = lambda fd: None"),
    "its name is not synced": ("init", "JournalFile.sync_names = lambda self: None"),
    "a rotation is not synced": ("rotation", "journal.sync_folder = lambda folder: None"),
    "a new journal is not synced": (
        "rotation",
        "journal.write_durably = lambda path, data: folder.open_new_file(path).write(data)",
    ),
    "what is rolled forward is not synced": ("commit+claim", "JournalFile.sync = print"),
    "a torn line is closed by a newline alone": ("claim", "file.CLOSING = b'\\n'"),
    "a copy of the original is not synced": (
        "migration",
        "headfile.keep_copy = headfile._copy_to_free_name",
    ),
    "outputs are not synced": ("a long output", "results.write_output = kept_in_memory"),
    "state.json comes first": ("commit", "FileStore._append = early"),
}
"""Name -> a story in which it shows, and how the store is broken."""
SCRIPT = """
import json
import sys
from pathlib import Path
from sequencer import Head
from sequencer.store import file, folder, journal, results
from sequencer.store import head as headfile
from sequencer.store.file import FileStore
from sequencer.store.journal import JournalFile
from tests.power.campaign import EVERY_CALL, Telling, Tried
from tests.power.stories import STORIES

real = FileStore._append

def early(self, line, offset, *, is_torn):
    headfile.write_head(self.state_path, Head.model_validate(json.loads(line)["head"]))
    return real(self, line, offset, is_torn=is_torn)

def kept_in_memory(attempt, data):
    attempt.mkdir(parents=True, exist_ok=True)
    (attempt / "output.txt").write_bytes(data)

class Noticed(Exception):
    pass

class AtOnce(list):
    # One is enough; nobody has to look at the rest of what is left.
    def append(self, text):
        raise Noticed

{broken}
tried = Tried(violations=AtOnce())
try:
    Telling({story!r}, STORIES[{story!r}], Path(sys.argv[1]), tried).tell(EVERY_CALL)
    print("held")
except Noticed:
    print("noticed")
"""


def told(story: str, broken: str, folder: Path) -> str:
    script = SCRIPT.format(story=story, broken=broken)
    argv = [sys.executable, "-c", script, str(folder)]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=100)  # noqa: PLW1510
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.slow(sample=3)
@pytest.mark.parametrize("name", BROKEN)
def test_a_careless_store_is_detected(name: str, tmp_path: Path) -> None:
    assert told(*BROKEN[name], tmp_path) == "noticed"


def test_a_careful_store_passes(tmp_path: Path) -> None:
    assert told("commit", "", tmp_path) == "held"


# --- what the campaign has found, one by one -------------------------------------------------


def test_a_torn_line_that_lacks_only_its_newline_never_counts(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state.json")
    cases.begin(store)
    before = (tmp_path / "state.json").read_bytes()
    token = cases.claim(store).token
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-1])
    (tmp_path / "state.json").write_bytes(before)
    fresh = FileStore(tmp_path / "state.json")
    granted = cases.claim(fresh)
    assert granted.token == token
    assert fresh.view().head == FileStore(tmp_path / "state.json").view().head
    assert [fact["event"] for fact in fresh.history()] == ["initialised", "claimed"]
    # The torn line is closed, so that it is never read together with the next one.
    assert b"}#\n{" in journal.read_bytes()
    cases.commit(fresh, granted.token)
    assert cases.check_files(tmp_path) == 1


def recorded(folder: Path) -> Recorder:
    recorder = Recorder(folder)
    recorder.read()
    return recorder


def test_a_new_run_syncs_every_folder_above_it(tmp_path: Path) -> None:
    recorder = recorded(tmp_path)
    store = FileStore(tmp_path / "a" / "b" / "state.json")
    with recorder.recording():
        cases.begin(store)
    made = [op.node for op in recorder.ops if isinstance(op, Enter) and op.is_folder]
    synced = [op.node for op in recorder.ops if isinstance(op, Sync)]
    assert {*made, BASE} <= set(synced)


def test_lines_of_another_process_are_synced_before_state_json_follows(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state.json")
    cases.begin(store)
    before = (tmp_path / "state.json").read_bytes()
    cases.claim(store)
    (tmp_path / "state.json").write_bytes(before)
    recorder = recorded(tmp_path)
    with recorder.recording():
        FileStore(tmp_path / "state.json").update(lambda _: None)
    kinds = [type(op) for op in recorder.ops if isinstance(op, Sync | Rename)]
    assert kinds.index(Sync) < kinds.index(Rename)


def test_a_line_whose_sync_failed_is_synced_again_before_it_counts(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state.json")
    cases.begin(store)
    calls = []

    def fails(fd: int) -> None:
        calls.append(fd)
        raise OSError(5, "Input/output error")

    refused = pytest.raises(StorageFailed, match="can't tell whether the change was accepted")
    with replaced({"fdatasync": fails}), refused:
        cases.claim(store)
    assert len(calls) == 2


# --- the disk --------------------------------------------------------------------------------


def trees(*ops: Op) -> set[tuple[tuple[str, str, bytes], ...]]:
    disk = Disk(Tree())
    for op in ops:
        disk.do(op)
    return {tree.key() for tree in disk.left(EVERYTHING, CHANCE)}


def names(*ops: Op) -> set[tuple[str, ...]]:
    return {tuple(name for name, _, _ in key) for key in trees(*ops)}


def test_unsynced_entries_may_or_may_not_survive() -> None:
    assert names(Enter(BASE, "a", 1), Enter(BASE, "b", 2)) == {(), ("a",), ("b",), ("a", "b")}
    assert names(Enter(BASE, "a", 1), Sync(BASE), Enter(BASE, "b", 2)) == {("a",), ("a", "b")}


def test_syncing_a_file_does_not_save_its_name() -> None:
    made = (Enter(BASE, "a", 1), Write(1, 0, b"text"), Sync(1))
    assert trees(*made) == {(), (("a", "a", b"text"),)}


def test_a_file_in_a_lost_folder_is_lost() -> None:
    made = (Enter(BASE, "sub", 1, is_folder=True), Enter(1, "a", 2), Sync(1))
    assert names(*made) == {(), ("sub", "sub/a")}


def test_a_rename_happens_whole_or_not_at_all() -> None:
    old = (Enter(BASE, "a", 1), Enter(BASE, "b", 2), Sync(BASE), Rename(BASE, "b", "a", 2))
    assert names(*old) == {("a", "b"), ("a",)}


def test_a_link_is_the_same_file() -> None:
    made = (Enter(BASE, "a", 1), Write(1, 0, b"x"), Sync(1), Enter(BASE, "b", 1), Sync(BASE))
    assert trees(*made) == {(("a", "a", b"x"), ("b", "a", b"x"))}


def test_a_removed_entry_may_come_back() -> None:
    assert names(Enter(BASE, "a", 1), Sync(BASE), Remove(BASE, "a")) == {("a",), ()}


def test_a_file_may_hold_any_part_of_an_unsynced_write() -> None:
    found = contents(b"one\n", [Write(1, 4, b"two\n")])
    assert found[:2] == [b"one\ntwo\n", b"one\n"]
    expected = [b"\0\0\0\0", b"tw", b"tw\0\0", b"\0\0o\n", b"two", b"t"]
    assert found[2:] == [b"one\n" + part for part in expected]
    assert contents(b"", [Resize(1, 3), Write(1, 0, b"")])[0] == b"\0\0\0"


def test_the_highest_acknowledged_revision_is_remembered() -> None:
    disk = Disk(Tree())
    for op in (Told(2), Told(1)):
        disk.do(op)
    assert disk.told == 2


def test_with_many_entries_each_is_missing_once(tmp_path: Path) -> None:
    chosen = Effort(2, 20, 1, 5).selections(6, CHANCE)
    assert set(chosen) >= {(), tuple(range(6)), (3,), (0, 1, 2, 4, 5), (0, 1, 2)}
    assert len(chosen) == len(set(chosen)) > 6 + 6 + 5
    choices = {1: [b"a", b"b", b"c"], 2: [b"d", b"e"]}
    mixed = [tuple(c.values()) for c in Effort(2, 0, 1, 0).combinations(choices, CHANCE)]
    assert {(b"a", b"d"), (b"b", b"e"), (b"c", b"d")} <= set(mixed)
    made = Tree({0: {"a": 1, "b": 1}}, {1: b"x"})
    assert made.write_to(tmp_path / "made") == {"a": 1, "b": 1}
    assert (tmp_path / "made" / "a").samefile(tmp_path / "made" / "b")


# --- the recorder sees what the kernel sees ------------------------------------------------

STORY = """
import sys
from pathlib import Path
from tests.power.recorder import Recorder
from tests.power.stories import STORIES
from tests.concurrency.crash_points import new_store
story, folder = STORIES[sys.argv[1]], Path(sys.argv[2])
store = new_store(folder / "sync")
recorder = Recorder(folder)
with recorder.recording():
    for action in story.actions:
        action(store)
print([type(op).__name__ for op in recorder.ops])
"""
KINDS = {
    **dict.fromkeys(("mkdir", "mkdirat", "link", "linkat"), "Enter"),
    **dict.fromkeys(("unlink", "unlinkat", "rmdir"), "Remove"),
    **dict.fromkeys(("rename", "renameat", "renameat2"), "Rename"),
    **dict.fromkeys(("write", "pwrite64", "writev", "sendfile", "copy_file_range"), "Write"),
    **dict.fromkeys(("ftruncate", "truncate", "fallocate"), "Resize"),
    **dict.fromkeys(("fsync", "fdatasync", "sync_file_range", "syncfs"), "Sync"),
}


def named_in(call: str) -> list[str]:
    """Return the paths that *call* names, whole where they are relative to a descriptor."""
    found = re.findall(r'(?:<([^>]*)>, )?"([^"]*)"', call)
    return [str(Path(folder, name)) for folder, name in found]


def seen_by_strace(trace: str, folder: Path) -> list[str]:
    """Return the kinds of calls that changed something below *folder*, in order."""
    found, there = [], set()
    for line in trace.splitlines():
        _, _, call = line.partition(" ")
        name = call.strip().partition("(")[0]
        if f"{folder}" not in call or " = -1 " in call:
            continue
        if name == "openat":
            (path,) = named_in(call)
            if "O_CREAT" in call and path not in there:
                found.append("Enter")
            elif "O_TRUNC" in call:
                found.append("Resize")
            there.add(path)
        elif name in KINDS:
            found.append(KINDS[name])
            if KINDS[name] in ("Remove", "Rename"):
                there.discard(named_in(call)[0])
            if name in ("link", "linkat", "rename", "renameat"):
                there.add(named_in(call)[1])
    return found


@pytest.mark.skipif(tracer() is None, reason="strace can't be used here")
@pytest.mark.parametrize("story", ["a rotation from the start", "a long output"])
def test_the_recorder_sees_every_call_that_strace_sees(story: str, tmp_path: Path) -> None:
    folder, trace = tmp_path / "project", tmp_path / "trace"
    folder.mkdir()
    calls = "trace=desc,file,sync_file_range,syncfs"
    argv = ["strace", "-f", "-y", "-s", "4000", "-o", str(trace), "-e", calls]
    argv += [sys.executable, "-c", STORY, story, str(folder)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    recorded_kinds = json.loads(ended.stdout.replace("'", '"'))
    assert recorded_kinds == seen_by_strace(trace.read_text(errors="replace"), folder)
    assert {"Enter", "Write", "Sync", "Rename"} <= set(recorded_kinds)
