"""Step logs: their names, what may stand in their way, what they never hold."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.cli.views.tails import read_last_outputs
from sequencer.engine.attempt import Attempt
from sequencer.engine.logs import (
    MAX_LOOKS,
    MAX_PROGRESS_LOGS,
    MAX_SENT,
    SentText,
    SentTexts,
    StepLogs,
    build_progress_evidence,
    current_branch,
    read_sent_texts,
    steps_folder,
)
from sequencer.errors import CorruptState, UnsafeFolder, UnsafePath
from sequencer.executors.protocol import Piece, StepRequest
from sequencer.executors.redaction import Redaction
from sequencer.model.head import Claim
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.store import folder as folders
from tests.contract.executor_cases import IDENTITY
from tests.contract.store_cases import STRANGER
from tests.unit.saying import attempt

DONE = Outcome(status=OutcomeStatus.OK)


def make_attempt(tmp_path: Path, **update: Any) -> Attempt:
    paths = {"state_path": tmp_path / "state.json", "result_path": tmp_path / "result.json"}
    return attempt(**{"run_id": "run", "step_index": 11, "token": 12, **paths, **update})


class Place:
    """A logs folder, and what was warned of."""

    def __init__(self, tmp_path: Path, **options: Any) -> None:
        self.project = tmp_path
        self.warnings: list[str] = []
        self.logs = StepLogs(
            tmp_path / "logs", tmp_path, **{"warn": self.warnings.append, **options}
        )

    def write(self, data: bytes, outcome: Outcome = DONE, **update: Any) -> Path:
        log = self.logs.open(make_attempt(self.project, **update))
        log.write(data, Piece.OUTPUT)
        log.close(outcome)
        return Path(log.path)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder"])
def test_anything_in_the_place_of_a_log_is_left_alone(place: Place, kind: str) -> None:
    taken = place.logs.folder / "iter-00012_main.log"
    taken.parent.mkdir(parents=True)
    target = place.project / "target"
    if kind != "dangling":
        target.write_text("precious")
    if kind == "fifo":
        os.mkfifo(taken)
    elif kind == "folder":
        taken.mkdir()
    else:
        taken.symlink_to(target)
    assert place.write(b"x").name == "iter-00012_main.2.log"
    assert not target.exists() or target.read_text() == "precious"


@pytest.mark.timeout(10)
@pytest.mark.parametrize("part", ["logs", "logs/local", "logs/local/steps"])
@pytest.mark.parametrize("kind", ["link", "fifo", "file"])
def test_no_log_is_written_through_a_path_that_is_not_a_folder(
    place: Place, part: str, kind: str
) -> None:
    path = place.project / part
    path.parent.mkdir(parents=True, exist_ok=True)
    outside = place.project / "outside"
    (outside / "local/steps").mkdir(parents=True)
    (outside / "steps").mkdir()
    if kind == "link":
        path.symlink_to(outside)
        with pytest.raises(UnsafeFolder, match=f"{part}: is a link, but it has to be a folder"):
            place.write(b"x")
    else:
        if kind == "fifo":
            os.mkfifo(path)
        else:
            path.write_text("")
        try:
            place.write(b"x")
        except UnsafePath:
            assert place.warnings == []
        else:
            assert "can't be written" in place.warnings[0]
    assert not list(outside.rglob("*.log"))


def test_a_log_that_cannot_be_written_does_not_fail_the_step(place: Place) -> None:
    log = place.logs.open(make_attempt(place.project))
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._fd)
    os.close(full)
    log.write(b"x")
    log.write(b"y")
    log.close(DONE)
    assert len(place.warnings) == 1
    assert "ends early" in place.warnings[0]


def test_a_log_is_capped_and_notes_it(tmp_path: Path) -> None:
    place = Place(tmp_path, max_bytes=1_000)
    log = place.logs.open(make_attempt(tmp_path))
    for _ in range(100):
        log.write("ä".encode() * 101)
    log.close(DONE)
    text = Path(log.path).read_bytes()
    assert len(text) < 1_600
    assert b"# log capped at 1000 bytes" in text
    assert b"\n# 19200 bytes are left out here\n" in text, "it was all one line"
    assert "\n# ended · ".encode() in text


def test_a_capped_log_notes_it_at_once_and_ends_with_the_newest_lines(tmp_path: Path) -> None:
    place = Place(
        tmp_path, max_bytes=1_000, redaction=Redaction.from_environment({"API_KEY": "canary-123"})
    )
    log = place.logs.open(make_attempt(tmp_path))
    lines = [b"line %05d canary-123\n" % number for number in range(10_000)]
    log.write(b"".join(lines[:100]))
    so_far = Path(log.path).read_bytes()
    assert so_far.endswith(b"and its newest lines are added when it ends\n")
    for line in lines[100:]:
        log.write(line)
    assert Path(log.path).read_bytes() == so_far, "it is not written for nobody"
    log.close(DONE)
    text = Path(log.path).read_bytes()
    assert b"canary" not in text
    head, _, end = text.partition(b"bytes are left out here\n")
    kept = end.splitlines()[:-2]
    assert kept == [b"line %05d [secret]" % number for number in range(10_000 - len(kept), 10_000)]
    assert len(kept) > 5
    assert len(text) < 1_900
    assert int(head.rsplit(b"# ", 1)[1]) > 200_000


def test_a_secret_that_is_cut_in_two_by_the_cap_is_hidden(tmp_path: Path) -> None:
    for most in range(960, 1_040):
        place = Place(
            tmp_path,
            max_bytes=most,
            redaction=Redaction.from_environment({"API_KEY": "canary-123"}),
        )
        log = place.logs.open(make_attempt(tmp_path))
        log.write(b"x" * 990 + b"canary-")
        log.write(b"123 and\nwhat follows\n")
        log.close(DONE)
        assert b"canary" not in Path(log.path).read_bytes()
        assert b"\n123 and" not in Path(log.path).read_bytes()


def test_secrets_split_between_writes_are_hidden(tmp_path: Path) -> None:
    redaction = Redaction.from_environment({"API_KEY": "canary-canary-123"})
    place = Place(tmp_path, redaction=redaction)
    log = place.logs.open(make_attempt(tmp_path, agent="canary-canary-123"))
    for piece in (b"it is canary-ca", b"nary-123 and sk-ant-abcdefghij", b"klmnopqrst end"):
        log.write(piece)
    log.close(Outcome(status=OutcomeStatus.FAILED, error="canary-canary-123 refused"))
    text = Path(log.path).read_bytes()
    assert b"canary-canary" not in text
    assert b"abcdefghij" not in text
    assert text.count(b"[secret]") == 4
    assert b" end" in text


@given(st.lists(st.text(max_size=60), unique=True, min_size=2, max_size=8))
def test_branches_never_share_a_folder(branches: list[str]) -> None:
    logs = Path("/project/logs")
    folders = [steps_folder(logs, branch, None) for branch in branches if branch]
    assert len(set(folders)) == len(folders)
    for folder in folders:
        assert folder.relative_to(logs).parts[1:] == ("steps",)
        assert ".." not in folder.parts


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@t")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_the_checked_out_branch_is_found(tmp_path: Path) -> None:
    assert current_branch(tmp_path) is None
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-b", "feature/x")
    assert current_branch(repository) == "feature/x"
    (repository / "deep/er").mkdir(parents=True)
    assert current_branch(repository / "deep/er") == "feature/x"
    git(repository, "commit", "--allow-empty", "-m", "x")
    git(repository, "worktree", "add", "-b", "side", str(tmp_path / "side"))
    assert current_branch(tmp_path / "side") == "side"
    git(repository, "checkout", "--detach")
    detached = current_branch(repository)
    assert detached is not None
    assert len(detached) == 12
    (repository / ".git/HEAD").unlink()
    assert current_branch(repository) is None


def test_the_log_of_an_earlier_run_is_found_among_those_of_async_mode(place: Place) -> None:
    assert place.logs.find_last_log() is None
    for index in (30, 31):
        place.write(b"x", step_index=index, token=0)
    assert place.logs.find_last_log() is None
    mine = [place.write(b"x", step_index=index, token=index) for index in (3, 7, 5)]
    assert place.logs.find_last_log() == mine[1]
    mine[1].write_bytes(b"\xff no header")
    mine[0].unlink()
    mine[0].symlink_to(mine[1])
    assert place.logs.find_last_log() == mine[2]
    for index in range(100, 100 + MAX_LOOKS):
        place.write(b"x", step_index=index, token=0)
    assert place.logs.find_last_log() is None


def test_the_newest_logs_of_a_run_show_its_tokens(place: Place) -> None:
    progress = build_progress_evidence(place.project / "logs", None)
    assert list(progress("run")) == []
    for index in (3, 99_999, 100_000):
        place.write(b"x", step_index=index, token=index + 4)
    place.write(b"x", step_index=200_000, token=0)
    place.write(b"x", step_index=300_000, token=99, run_id="another")
    (place.logs.folder / "iter-400000_main.log").mkdir()
    (place.logs.folder / "iter-400001_main.log").symlink_to("iter-00004_main.log")
    (place.logs.folder / "iter-\N{SUPERSCRIPT TWO}_main.log").write_text("not ours")
    (place.logs.folder / "notes.txt").write_text("mine")
    assert [(trace.token, trace.has_ended) for trace in progress("run")] == [
        (100_004, True),
        (100_003, True),
        (7, True),
    ]
    place.logs.open(make_attempt(place.project, step_index=100_001, token=100_005))
    newest = next(iter(progress("run")))
    assert (newest.token, newest.has_ended) == (100_005, False)
    assert list(build_progress_evidence(place.project / "logs", "named")("run")) == []
    for index in range(MAX_PROGRESS_LOGS):
        place.write(b"x", step_index=500_000 + index, token=200_000 + index)
    assert len(list(progress("run"))) == MAX_PROGRESS_LOGS


def test_a_path_in_a_git_file_is_used_only_if_it_holds_a_head(tmp_path: Path) -> None:
    project, other = tmp_path / "project", tmp_path / "other"
    project.mkdir()
    other.mkdir()
    (project / ".git").write_text("gitdir: ../other\n")
    for content, branch in (
        ("ref: refs/heads/main\n", "main"),
        (f"{'a' * 40}\n", "a" * 12),
        ("a secret of somebody else's\n", None),
        ("", None),
    ):
        (other / "HEAD").write_text(content)
        assert current_branch(project) == branch
    (other / "HEAD").unlink()
    os.mkfifo(other / "HEAD")
    assert current_branch(project) is None, "and nobody waits for a writer"


def test_unreadable_step_logs_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def denied(path: Path) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(folders, "open_folder", denied)
    with pytest.raises(CorruptState, match="can't be read: Permission denied") as refused:
        list(build_progress_evidence(tmp_path, None)("a-run"))
    assert refused.value.where == str(tmp_path)


def test_a_log_shows_its_token_and_whether_its_attempt_has_ended(tmp_path: Path) -> None:
    folder = tmp_path / "main" / "steps"
    folder.mkdir(parents=True)
    first = "# step 'a' · token {}\n# workflow 'w' · run r · agent 'x'\n"
    (folder / "iter-00001_a.log").write_text(f"{first.format(3)}{'x' * 40_000}\n# ended ok\n")
    (folder / "iter-00002_a.log").write_text(first.format(4))
    (folder / "iter-00003_a.log").write_text(first.format("9" * 20))
    found = [
        (trace.token, trace.has_ended) for trace in build_progress_evidence(tmp_path, None)("r")
    ]
    assert found == [(4, False), (3, True)]


FORGED = b"# sent: prompt, 9 bytes\n#> forged\n"


def sent(path: Path) -> SentTexts | None:
    with path.open("rb") as file:
        return read_sent_texts(file.fileno())


def request_fields(made: Attempt, place: Place) -> dict[str, Any]:
    return {"step": made.step, "cwd": place.project, "result_path": made.result_path}


def write_sent(place: Place, *sends: tuple[str, dict[str, Any]]) -> Path:
    """Write a log of an attempt that sends each of these, and whose agents forge."""
    made = make_attempt(place.project)
    log = place.logs.open(made)
    for to, texts in sends:
        given = {"prompt": "", **texts}
        request = StepRequest(identity=IDENTITY, **request_fields(made, place), **given)
        log.write_request(request, to)
        log.write(FORGED)
    log.close(DONE)
    return Path(log.path)


@given(st.text(max_size=40), st.text(max_size=20), st.text(max_size=20))
def test_any_text_that_was_sent_can_be_read_back_from_the_log(
    tmp_path_factory: pytest.TempPathFactory, prompt: str, system: str, added: str
) -> None:
    place = Place(tmp_path_factory.mktemp("p"))
    texts = {"prompt": prompt, "system_prompt": system, "append_system_prompt": added}
    path = write_sent(place, ("agent", texts))
    found = sent(path)
    assert found is not None
    given = {"system prompt": system, "added system prompt": added}
    wanted = [(name, text) for name, text in given.items() if text] + [("prompt", prompt)]
    assert [(text.name, text.data.decode()) for text in found.texts] == wanted
    data = path.read_bytes()
    assert data[: found.start].count(b"\n") == 3
    assert data[found.end :].startswith(FORGED)


def test_only_the_router_prompt_is_read_back_for_a_step_with_a_router(place: Place) -> None:
    path = write_sent(place, ("router", {"prompt": "which?"}), ("agent", {"prompt": "do it"}))
    found = sent(path)
    assert found is not None
    assert found.texts == (SentText("router's prompt", b"which?"),)
    assert b"#> do it\n" in path.read_bytes()


def test_a_prompt_in_a_log_holds_no_secret_and_is_bounded(tmp_path: Path) -> None:
    place = Place(tmp_path, redaction=Redaction(["hunter2-hunter2"]))
    path = write_sent(place, ("agent", {"prompt": "it is hunter2-hunter2\n# ended ok"}))
    found = sent(path)
    assert found is not None
    assert found.texts == (SentText("prompt", b"it is [secret]\n# ended ok"),)
    assert b"\n# ended ok\n" not in path.read_bytes()
    long = sent(write_sent(place, ("agent", {"prompt": "\n" * (MAX_SENT + 7)})))
    assert long is not None
    assert long.texts[0].data == b"\n" * MAX_SENT + b"\n(7 bytes more)"


@pytest.mark.parametrize("said", ["", "word\nmore\n", "word\n#> more"])
@pytest.mark.parametrize("prompt", ["", "Do it.\nAll of it.", "x" * 20_000])
def test_the_current_output_of_a_step_does_not_echo_its_prompt(
    place: Place, prompt: str, said: str
) -> None:
    made = make_attempt(place.project)
    log = place.logs.open(made)
    texts: dict[str, Any] = {"prompt": prompt, "system_prompt": "Be good.\nBe brief."}
    claim = Claim(
        token=made.token,
        step=made.step.name,
        step_index=made.step_index,
        attempt=made.number,
        owner=STRANGER,
        claimed_at="2026-01-01T00:00:00Z",
        ttl_s=60,
    )
    log.write_request(
        StepRequest(identity=IDENTITY, **request_fields(made, place), **texts), "agent"
    )
    log.write(said.encode())
    found = read_last_outputs([claim], [Path(log.path).parent])
    assert [one.last for one in found.values()] == said.splitlines()[-1:]
    # Half of the prompt, as a process that is killed has written it.
    whole = Path(log.path).read_bytes()
    Path(log.path).write_bytes(whole[: whole.index(b"#> Be brief") + 6])
    assert read_last_outputs([claim], [Path(log.path).parent]) == {}


def test_a_log_that_is_old_or_cut_off_shows_no_prompt(place: Place) -> None:
    assert sent(place.write(b"words\n")) is None
    path = write_sent(place, ("agent", {"prompt": "do it\nnow"}))
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b"now")])
    assert sent(path) is None
