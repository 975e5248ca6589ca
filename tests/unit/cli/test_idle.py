from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sequencer.cli import idle, run_work
from sequencer.errors import SequencerError
from tests.unit.cli.calling import call, idle_record, project, state, worked

ROOT = Path(__file__).parents[3]
PAUSED = "nothing due: the run is paused"


def fast(
    folder: Path, *arguments: str, env: dict[str, str] | None = None
) -> idle.IdleAnswer | None:
    """Return what the short way would answer in *folder*."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        question = idle.parse_question(arguments, os.environ if env is None else env)
        return None if question is None else idle.recall(question)
    finally:
        os.chdir(before)


def paused(folder: Path) -> Path:
    worked(folder, 2)
    assert call(folder, "stop", "--pause").code == 0
    return folder


def edit(folder: Path, **fields: Any) -> None:
    path = folder / "sync" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def in_an_hour() -> str:
    return (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


LIMITED = """\
agent: {default: rehearsal}
limits: {max_steps: 2}
"""
PROCEDURE = """\
workflow: {name: once}
agent: {default: rehearsal}
workflows: {once: {kind: procedure, steps: [main, supervisor]}}
"""
STANDARD = "agent: {default: rehearsal}\n"


_OF_A_PERSON = tuple(
    f"nothing due: the run{words}" for words in (" is paused", " was stopped", "'s limit")
)


@pytest.mark.parametrize(
    ("configuration", "change", "expected"),
    [
        (STANDARD, ("stop", "--pause"), "nothing due: the run is paused"),
        (STANDARD, ("stop", "--reason", "over"), "nothing due: the run was stopped: over"),
        (STANDARD, ("set", f'not_before="{in_an_hour()}"'), "nothing due: not due: nothing starts"),
        (LIMITED, ("status",), "nothing due: the run's limit of 2 steps is reached"),
        (PROCEDURE, ("status",), "nothing due: the run is complete"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",), ("--quiet",), ("--max-cost", "3")])
def test_a_repeated_answer_equals_the_full_answer(
    tmp_path: Path,
    configuration: str,
    change: tuple[str, ...],
    expected: str,
    options: tuple[str, ...],
) -> None:
    folder = project(tmp_path / "p", configuration)
    assert call(folder, "run", "--max-steps", "2", "--quiet").code == 0
    assert call(folder, *change).code == 0
    slow = call(folder, "tick", *options)
    assert slow.code == 0, slow.err
    # Asked to be quiet, it says what waits for a person, and nothing of what waits by itself.
    is_silent = "--quiet" in options and not expected.startswith(_OF_A_PERSON)
    assert slow.out == "" if is_silent else expected in slow.out
    again = fast(folder, "tick", *options)
    assert again is not None
    assert (again.out, again.err) == (slow.out, slow.err)
    assert call(folder, "tick", *options) == slow


def test_a_position_that_is_not_due(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    slow = call(folder, "tick", "--position", "supervisor")
    assert slow.out == "nothing due: step 'main' is at another position\n"
    answer = fast(folder, "tick", "--position", "supervisor")
    assert answer is not None
    assert (answer.out, answer.err) == (slow.out, "")
    # Another position is another question.
    assert fast(folder, "tick", "--position", "main") is None
    assert fast(folder, "tick") is None
    assert call(folder, "tick", "--position", "main").code == 0
    assert state(folder)["step_index"] == 2
    assert fast(folder, "tick", "--position", "supervisor") is None


def resume(folder: Path) -> None:
    assert call(folder, "resume").code == 0


def edit_by_hand(folder: Path) -> None:
    edit(folder, status="waiting-next")


def edit_a_note(folder: Path) -> None:
    edit(folder, my_note="hello")


def reformat(folder: Path) -> None:
    path = folder / "sync" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text())))


def delete_state(folder: Path) -> None:
    (folder / "sync" / "state.json").unlink()


def cut_state(folder: Path) -> None:
    path = folder / "sync" / "state.json"
    path.write_bytes(path.read_bytes()[:100])


def delete_journal(folder: Path) -> None:
    (folder / "sync" / "journal.jsonl").unlink()


def append_to_journal(folder: Path) -> None:
    with (folder / "sync" / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"revision": 99')


def damage_journal(folder: Path) -> None:
    path = folder / "sync" / "journal.jsonl"
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(bytes(data))


def change_configuration(folder: Path) -> None:
    with (folder / "orchestration.yaml").open("a") as file:
        file.write("limits: {max_steps: 1}\n")


def break_configuration(folder: Path) -> None:
    (folder / "orchestration.yaml").write_text("nonsense: 1\n")


def link_state(folder: Path) -> None:
    path = folder / "sync" / "state.json"
    path.rename(folder / "elsewhere.json")
    path.symlink_to(folder / "elsewhere.json")


def damage_memory(folder: Path) -> None:
    idle_record(folder).write_text('{"state": 1, "answers": []}')


def link_memory(folder: Path) -> None:
    path = idle_record(folder)
    path.rename(path.with_suffix(".aside"))
    path.symlink_to(path.with_suffix(".aside"))


CHANGES: list[Callable[[Path], None]] = [
    resume,
    edit_by_hand,
    edit_a_note,
    reformat,
    delete_state,
    cut_state,
    delete_journal,
    append_to_journal,
    damage_journal,
    change_configuration,
    break_configuration,
    link_state,
    damage_memory,
    link_memory,
]


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_requires_the_full_program(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    folder = paused(tmp_path / "p")
    call(folder, "tick")
    assert fast(folder, "tick") is not None
    change(folder)
    try:
        assert fast(folder, "tick") is None
    except SequencerError:
        # Something is no plain file any more: `answers` leaves that to the long way.
        assert not _answers_in(folder)


def _answers_in(folder: Path) -> bool:
    before = Path.cwd()
    os.chdir(folder)
    try:
        return idle.try_answer(["tick"])
    finally:
        os.chdir(before)


@pytest.mark.parametrize(
    ("change", "later_s", "is_known"),
    [
        ({}, 23 * 60 * 60, True),
        ({}, idle.DAY_S + 1, False),
        # It was given by a clock that was ahead, or is set back since.
        ({}, -60, False),
        # Whoever forges one has to give it an end, and no end is later than a day.
        ({"until": None}, 0, False),
        ({"until": 2.0**40}, 0, True),
        ({"until": 2.0**40}, idle.DAY_S + 1, False),
        ({"until": 2.0**40, "since": 2.0**40}, idle.DAY_S + 1, False),
        ({"until": "soon"}, 0, False),
        ({"is_rest": "yes"}, 0, False),
    ],
)
def test_an_answer_is_valid_for_a_day_at_most(
    tmp_path: Path, change: dict[str, object], later_s: float, *, is_known: bool
) -> None:
    folder = paused(tmp_path / "p")
    call(folder, "tick")
    path = idle_record(folder)
    kept = json.loads(path.read_text())
    (key,) = kept["answers"]
    kept["answers"][key].update(change)
    path.write_text(json.dumps(kept))
    known = idle.recall(idle.IdleQuestion(key, Path(kept["state_file"])), now=time.time() + later_s)
    assert (known is not None) == is_known


def test_an_answer_without_an_end_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = paused(tmp_path / "p")
    monkeypatch.chdir(folder)
    question = idle.parse_question(["tick"], os.environ)
    assert question is not None
    revision = state(folder)["revision"]
    idle.remember(question, idle.IdleAnswer("nothing due\n", ""), revision)
    assert not idle.try_answer(["tick"])


def test_a_file_in_the_project_is_not_used_as_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = paused(tmp_path / "p")
    call(folder, "tick")
    path, old = idle_record(folder), folder / "sync" / "idle.json"
    old.write_bytes(path.read_bytes())
    path.unlink()
    monkeypatch.chdir(folder)
    assert not idle.try_answer(["tick"])
    # What earlier versions have left goes.
    call(folder, "tick")
    assert (path.exists(), old.exists()) == (True, False)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("where", ["file", "unknown", "open-to-others"])
def test_no_answer_is_saved_without_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    folder, state_home = paused(tmp_path / "p"), tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state_home))
    if where == "file":
        state_home.write_text("")
    elif where == "unknown":
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setenv("HOME", "not/absolute")
    else:
        (state_home / "sequencer" / "ticks").mkdir(parents=True)
        (state_home / "sequencer" / "ticks").chmod(0o777)
    monkeypatch.chdir(folder)
    for _ in range(2):
        assert call(folder, "tick").out.startswith(PAUSED)
        assert not idle.try_answer(["tick"])


def test_a_forged_answer_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = paused(tmp_path / "p")
    call(folder, "tick")
    path = idle_record(folder)
    monkeypatch.chdir(folder)
    assert idle.try_answer(["tick"])
    capsys.readouterr()
    known = path.read_text()
    path.write_text(known.replace("nothing due", "\\u001b]0;owned\\u0007nothing due"))
    assert path.read_text() != known
    assert not idle.try_answer(["tick"])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("run",),
        ("status",),
        ("--nonsense", "tick"),
        ("tock",),
        ("tick", "--run"),
        ("--config",),
        ("--help",),
        ("status", "tick"),
    ],
)
def test_only_a_tick_is_a_question(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    folder = project(tmp_path / "p")
    assert fast(folder, *arguments) is None
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert idle.parse_question(arguments, {}) is None
    finally:
        os.chdir(before)


def test_global_options_select_the_same_run_as_in_the_full_program(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    for arguments in (("--run", "nightly", "tick"), ("tick", "--run=nightly")):
        assert call(folder, "--run", "nightly", "run", "--max-steps", "1", "--quiet").code == 0
        assert call(folder, "--run", "nightly", "stop", "--pause").code == 0
        slow = call(folder, *arguments)
        assert slow.out.startswith(PAUSED)
        answer = fast(folder, *arguments)
        assert answer is not None
        assert answer.out == slow.out
        assert idle_record(folder, "nightly").exists()
        assert not idle_record(folder).exists()
        assert call(folder, "--run", "nightly", "resume").code == 0


def test_a_configuration_by_name(tmp_path: Path) -> None:
    folder = paused(tmp_path / "p")
    other = tmp_path / "elsewhere"
    other.mkdir()
    config = str(folder / "orchestration.yaml")
    assert call(other, "tick", "--config", config).out.startswith(PAUSED)
    assert fast(other, "tick", "--config", config) is not None
    assert fast(other, "tick") is None
    with pytest.raises(SequencerError):
        fast(other, "tick", "--config", "missing.yaml")
    shutil.copytree(folder, tmp_path / "copy")
    # The same question about another run is another question.
    assert fast(tmp_path / "copy", "tick") is None


def test_notices_of_the_configuration_are_repeated(tmp_path: Path) -> None:
    # A cadence without a review step has no effect, and is said to have none.
    configuration = "workflow: {name: standard, review_every_n: 2}\n" + STANDARD
    folder = project(tmp_path / "p", configuration)
    assert call(folder, "stop", "--pause").code == 0
    slow = call(folder, "tick")
    assert slow.err.startswith("notice: ")
    answer = fast(folder, "tick")
    assert answer is not None
    assert (answer.out, answer.err) == (slow.out, slow.err)


def test_several_questions_are_saved_and_old_ones_are_dropped(tmp_path: Path) -> None:
    folder = paused(tmp_path / "p")
    for number in range(idle.MAX_ANSWERS + 2):
        call(folder, "tick", "--max-cost", str(number + 1))
    newest = idle.MAX_ANSWERS + 2
    assert fast(folder, "tick", "--max-cost", str(newest)) is not None
    assert fast(folder, "tick", "--max-cost", str(newest - 1)) is not None
    assert fast(folder, "tick", "--max-cost", "1") is None
    assert idle_record(folder).stat().st_size < idle.MAX_BYTES


def test_an_answer_that_cannot_be_saved_is_no_error(tmp_path: Path) -> None:
    folder = paused(tmp_path / "p")
    idle_record(folder).mkdir(parents=True)
    ended = call(folder, "tick")
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(resume, id="the-run"),
        pytest.param(
            lambda folder: (folder / "orchestration.yaml").write_text(f"{STANDARD}# more\n"),
            id="the-configuration",
        ),
    ],
)
def test_a_change_during_a_tick_prevents_a_repeated_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    folder, said = paused(tmp_path / "p"), run_work._report_end

    def and_then(*arguments: Any, **options: Any) -> str:
        text = said(*arguments, **options)
        change(folder)
        return text

    monkeypatch.setattr(run_work, "_report_end", and_then)
    assert call(folder, "tick").out.startswith(PAUSED)
    assert fast(folder, "tick") is None


def test_a_tick_with_nothing_to_do_loads_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import sequencer.cli.idle;"
        "print(*(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "sequencer.cli.idle" in loaded
    others = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert others == {"sequencer"}
