"""The moving picture of two terminals: recorded from real processes, and drawn."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from tests.pictures import terminals
from tests.pictures.moving import Frame, Line, moving_picture


def _line(text: str, color: str = "") -> Line:
    return ((text, color),)


def _texts(picture: str) -> dict[str, str]:
    """Return each text that is drawn, with its own tag."""
    found = re.findall(r"(<text[^>]*>)(.*?)</text>", picture)
    return {unescape(re.sub("<[^>]*>", "", inside)): tag for tag, inside in found}


def test_a_line_is_visible_only_while_it_was_on_screen() -> None:
    frames = [
        Frame(0, "At first", ((_line("<one>", "red"),),)),
        Frame(4, "Later", ((_line("<one>", "red"),),)),
        Frame(6, "Later", ((_line("two"),),)),
    ]
    picture = moving_picture(frames, ["shell"], (20, 1), 2)
    texts = _texts(picture)
    assert sorted(texts) == ["<one>", "At first", "Later", "shell", "two"]
    assert 'fill="#ff7b72"' in picture
    # Without motion the end is what is seen.
    assert {text for text, tag in texts.items() if "gone" in tag} == {"<one>", "At first"}
    rules = dict(re.findall(r"@keyframes (k\d+)\{(.*)\}\n?", picture))
    found = re.search(r"animation:(k\d+) 8s", texts["<one>"])
    assert found is not None
    assert rules[found[1]].startswith("0.00%{visibility:visible}75.00%{visibility:hidden}")
    assert "style" not in texts["shell"]


def test_the_picture_shows_a_real_takeover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "project"
    folder.mkdir()
    frames = terminals.recorded(folder, 1.0)
    end = "\n".join("".join(text for text, _ in line) for line in frames[-1].screens[0])
    assert re.search(r"taken-over +supervisor +2 ", end)
    accepted = re.findall(r"succeeded +\w+ +(\d) ", end)
    # Those that fit on the screen, up to the last one.
    assert "".join(accepted) in "012345"
    assert accepted[-1] == "5"
    # The first frame is what most people see, and a still picture starts with.
    first = ["\n".join("".join(t for t, _ in line) for line in s) for s in frames[0].screens]
    assert all("$ sequencer run --position " in screen for screen in first)
    assert "[2] main" in first[1]
    assert frames[0].at < 0.1
    size = (terminals.COLUMNS, terminals.ROWS)
    picture = moving_picture(frames, terminals.TITLES, size, terminals.REST_S)
    assert "Two terminals take turns in one run." in _texts(picture)
    assert len(picture) < 300_000
    # On a phone of 390 pixels, with a margin of 16: letters are 13 pixels of the drawing.
    (width,) = re.findall(r'viewBox="0 0 ([\d.]+) ', picture)
    assert 13 * (390 - 2 * 16) / float(width) >= 10.5
