"""One thought in so many seconds, over all processes that work on a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sequencer.posting.cursor import Pace


def test_one_passes_and_the_next_waits(tmp_path: Path) -> None:
    pace = Pace(tmp_path / "activity" / "box.pace", 2.0)
    assert pace.left_s(100.0) == 0.0
    assert pace.take(100.0)
    assert not pace.take(100.0)
    assert not pace.take(101.9)
    assert pace.left_s(101.5) == pytest.approx(0.5)
    assert pace.left_s(102.0) == 0.0
    assert pace.take(102.0)
    assert not pace.take(103.0)


def test_many_at_the_same_moment_are_one(tmp_path: Path) -> None:
    path = tmp_path / "box.pace"
    code = (
        "import sys; from pathlib import Path; from sequencer.posting.cursor import Pace\n"
        f"sys.stdin.readline(); sys.exit(Pace(Path({str(path)!r}), 2.0).take(100.0))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) for _ in "1234"
    ]
    for one in started:
        one.communicate(b"\n", timeout=60)
    assert sum(one.returncode for one in started) == 1


@pytest.mark.parametrize(
    "held", [b"", b"x", b"\xff\xfe", b"nan\n", b"inf\n", b"999999999\n", b"-5\n"]
)
def test_what_says_nothing_holds_nobody_up(tmp_path: Path, held: bytes) -> None:
    path = tmp_path / "box.pace"
    path.write_bytes(held)
    pace = Pace(path, 2.0)
    assert pace.left_s(100.0) == 0.0
    assert pace.take(100.0)
    assert path.read_bytes() == b"100.000\n"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "precious"
    other.write_text("mine")
    (tmp_path / "box.pace").symlink_to(other)
    assert Pace(tmp_path / "box.pace", 2.0).take(100.0)
    assert other.read_text() == "mine"
