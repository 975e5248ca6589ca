from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sequencer.cli.log import TAIL_BYTES, _find_tail_offset
from tests import forked
from tests.forked import Forked
from tests.unit.cli.calling import call, worked

ROOT = Path(__file__).parents[3]


def logs(folder: Path) -> Path:
    return folder / "logs" / "local" / "steps"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def shown(folder: Path, *arguments: str) -> str:
    ended = forked.run(
        [sys.executable, "-m", "sequencer", "log", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return str(ended.stdout, "utf-8", "surrogateescape")


def titles(text: str) -> list[str]:
    return [
        Path(line.split()[1]).name for line in text.splitlines() if line.startswith("==> logs/")
    ]


def test_paths_and_facts(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 2)
    assert shown(folder, "--path", "-n", "1") == "logs/local/steps/iter-00002_main.log\n"
    facts = [json.loads(line) for line in call(folder, "log", "--json").out.splitlines()]
    assert [(fact["step_index"], fact["step"], fact["attempt"]) for fact in facts] == [
        (0, "supervisor", 1),
        (1, "main", 1),
    ]
    assert facts[0]["bytes"] == (logs(folder) / "iter-00001_supervisor.log").stat().st_size


def test_only_an_unknown_step_is_refused_not_a_missing_log(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    ended = call(folder, "log", "mian")
    assert ended.code == 2
    assert "unknown step 'mian'" in ended.err
    assert "did you mean 'main'? known steps: main, reviewer, supervisor" in ended.err
    none = call(folder, "log", "main")
    assert (none.code, none.out) == (0, "")
    assert "no such step log yet" in none.err
    assert call(folder, "log", "77").code == 0


def test_a_long_log_is_cut_at_its_beginning(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    path = logs(folder) / "iter-00001_supervisor.log"
    path.write_text("".join(f"line {number}\n" for number in range(100_000)))
    text = shown(folder, "--lines", "2")
    assert text.splitlines()[1:] == ["line 99998", "line 99999"]
    assert "the last 2 lines" in text
    assert len(shown(folder, "--lines", "0").splitlines()) == 100_001
    assert len(shown(folder).splitlines()) == 41


@pytest.mark.parametrize(
    ("content", "lines", "rest"),
    [
        (b"", 3, b""),
        (b"a\nb\n", 3, b"a\nb\n"),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"a\nb\nc"),
        (b"\n\n\n", 1, b"\n"),
        (b"x" * 200_000 + b"\nend\n", 1, b"end\n"),
        (b"x" * 200_000, 5, b"x" * 200_000),
        (b"a\n" + b"x" * TAIL_BYTES, 5, b"x" * TAIL_BYTES),
        (b"\n" * 2 * TAIL_BYTES, 2 * TAIL_BYTES, b"\n" * TAIL_BYTES),
    ],
)
def test_where_the_tail_begins(tmp_path: Path, content: bytes, lines: int, rest: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    with path.open("rb") as file:
        assert content[_find_tail_offset(file, lines) :] == rest


def test_a_pipe_in_the_place_of_a_log_is_refused(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    os.mkfifo(logs(folder) / "iter-00099_main.log")
    ended = forked.run(
        [sys.executable, "-m", "sequencer", "log"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert b"is not a regular file" in ended.stderr


def test_links_and_foreign_files_are_not_shown(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    (tmp_path / "secret").write_text("secret\n")
    (logs(folder) / "iter-00002_main.log").symlink_to(tmp_path / "secret")
    (logs(folder) / "notes.txt").write_text("notes\n")
    ended = call(folder, "log", "main")
    assert "secret" not in ended.out
    assert "notes" not in call(folder, "log", "--path").out
    assert ended.code == 2
    assert "can't be read" in ended.err


def test_bytes_are_unchanged_for_programs_and_safe_for_terminals(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    path = logs(folder) / "iter-00001_supervisor.log"
    path.write_bytes(b"\x1b]0;owned\x07\x1b[31mred\x1b[0m \xff\n")
    assert "\x1b]0;owned\x07\x1b[31mred\x1b[0m \udcff\n" in shown(folder)
    master, slave = pty.openpty()
    process = Forked(
        [sys.executable, "-m", "sequencer", "log"], cwd=folder, env=environment(), stdout=slave
    )
    assert process.wait(20) == 0
    seen = os.read(master, 4096)
    os.close(slave)
    os.close(master)
    assert b"\x1b" not in seen
    assert "red \ufffd".encode() in seen


@contextmanager
def following(folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    process = Forked(
        [sys.executable, "-m", "sequencer", "log", "-f", *options],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    os.set_blocking(process.stdout.fileno(), False)  # type: ignore[union-attr]
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[bytes], word: bytes, seen: bytearray) -> None:
    assert process.stdout is not None
    deadline = time.monotonic() + 15
    while word not in seen:
        assert time.monotonic() < deadline, bytes(seen)
        seen += process.stdout.read(65536) or b""
        time.sleep(0.01)


def test_following_goes_from_log_to_log(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    seen = bytearray()
    with following(folder) as process:
        wait_for(process, "# ended · ".encode(), seen)
        with (logs(folder) / "iter-00001_supervisor.log").open("a") as log:
            log.write("late word\n")
            log.flush()
            wait_for(process, b"late word", seen)
        assert call(folder, "run", "--max-steps", "2", "--quiet").code == 0
        wait_for(process, b"iter-00003_reviewer.log <==", seen)
        wait_for(process, b"iteration 3", seen)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    text = seen.decode()
    assert titles(text) == [
        "iter-00001_supervisor.log",
        "iter-00002_main.log",
        "iter-00003_reviewer.log",
    ]
    assert text.count("# ended · ") >= 2


@pytest.mark.parametrize("option", ["--path", "--json"])
def test_following_refuses_path_and_json(tmp_path: Path, option: str) -> None:
    ended = call(worked(tmp_path / "p", 1), "log", "-f", option)
    assert ended.code == 2
    assert option in ended.err


def test_only_the_prompt_option_shows_the_prompt_that_was_sent(
    tmp_path: Path,
) -> None:
    folder = worked(tmp_path / "p", 1)
    prompt = folder / "prompts" / "supervisor.md"
    text = prompt.read_text()
    prompt.write_text("changed since\n")
    told = shown(folder, "--prompt").splitlines()
    assert told[1:] == text.splitlines()
    lines = shown(folder, "--lines", "0").splitlines()
    assert [line[:10] for line in lines[1:4]] == ["# step 'su", "# workflow", "# started "]
    assert not any(line.startswith(("#>", "# sent")) for line in lines)
    old = logs(folder) / "iter-00001_supervisor.log"
    old.write_text("# step\n# workflow\n# started\nwords\n")
    assert "an earlier version wrote this log" in shown(folder, "--prompt")
    for options in (("--prompt", "--path"), ("--path", "--prompt")):
        refused = call(folder, "log", *options)
        assert refused.code == 2
        assert "--prompt and --path can't be used together" in refused.err
