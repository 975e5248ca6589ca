from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.plugins.posting.protocol import Activity, ActivityType
from sequencer.plugins.posting.text import hide_secrets, sanitize_activity, strip_controls
from tests.unit.posting.runs import REDACTION, SECRET


def activity(**fields: str | None) -> Activity:
    plain = Activity(type=ActivityType.RESPONSE, at="now", step="main", step_index=0)
    return Activity(**{**{n: getattr(plain, n) for n in plain.__struct_fields__}, **fields})


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("as it is: ä 漢 🎉\n\ttab", "as it is: ä 漢 🎉\n\ttab"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x00b\x08c\x7fd\x9be", "abcd"),
        ("dos\r\nmac\runix\n", "dos\nmac\nunix\n"),
        ("half \ud83d a pair", "half \ufffd a pair"),
    ],
)
def test_control_characters_are_removed(text: str, plain: str) -> None:
    assert strip_controls(text) == plain


def test_a_secret_split_by_control_characters_is_found() -> None:
    cut_up = f"{SECRET[:9]}\x1b[1m{SECRET[9:]}"
    assert hide_secrets(f"it is {cut_up}.", REDACTION) == "it is [secret]."


def test_half_of_a_secret_at_a_cut_is_removed(tmp_path: Path) -> None:
    body = "x" * 90 + SECRET
    for length in range(91, 90 + len(SECRET)):
        cut = sanitize_activity(activity(body=body), REDACTION, tmp_path, length)
        assert cut.body.startswith("x" * 90 + "\n\n[cut after ")
        assert SECRET[:2] not in cut.body


NAME = "results/0-1-0123456789abcdef/output.txt"


@pytest.mark.parametrize(
    "name", ["../outside.txt", "/etc/hostname", "results/../outside.txt", "state.json", f"./{NAME}"]
)
def test_no_file_outside_of_the_run_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside.txt").write_text("private")
    (tmp_path / "run" / "results").mkdir(parents=True)
    told = sanitize_activity(activity(output_file=name), REDACTION, tmp_path / "run", 1000)
    assert told.body == f"[the file that the record names is not a step's output: `{name}`]"


def test_an_output_that_is_missing_or_not_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "results/0-2/output.txt").mkdir(parents=True)
    (tmp_path / "results/0-3").mkdir()
    (tmp_path / "results/0-3/output.txt").symlink_to("/etc/hostname")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/output.txt").write_text("private")
    (tmp_path / "results/0-4").symlink_to(tmp_path / "elsewhere")
    for token in range(1, 5):
        name = f"results/0-{token}/output.txt"
        told = sanitize_activity(activity(output_file=name), REDACTION, tmp_path, 1000)
        assert told.body == f"[the output can no longer be read: `{name}`]"
