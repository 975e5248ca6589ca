"""The one place that asks for a home folder, also where nobody has one."""

from __future__ import annotations

import ast
import pwd
from pathlib import Path

import pytest

import sequencer
from sequencer.errors import ConfigurationError
from sequencer.files.textfile import expand_home, path_at_home, resolve_path


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: object) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(pwd, "getpwnam", unknown)


def test_home_is_what_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert [expand_home(path) for path in ("~", "~/a", "a/~", "/b")] == [
        *("/home/me", "/home/me/a", "a/~", "/b"),
    ]
    assert path_at_home(".config") == Path("/home/me/.config")


@pytest.mark.usefixtures("homeless")
def test_without_a_home_nothing_is_guessed(tmp_path: Path) -> None:
    for written in ("~", "~/a", "~somebody/a"):
        assert expand_home(written) == written
    with pytest.raises(ConfigurationError, match="your home folder is unknown") as refused:
        path_at_home(".config", "XDG_CONFIG_HOME")
    assert refused.value.hint == "set HOME or XDG_CONFIG_HOME to a folder of yours"
    for written in ("~", "~/prompts"):
        with pytest.raises(ConfigurationError, match="your home folder is unknown"):
            resolve_path(tmp_path, written, "prompts_dir")
    # A folder may be called so.
    assert resolve_path(tmp_path, "~backup", "prompts_dir") == tmp_path / "~backup"


def test_an_empty_home_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    assert expand_home("~/a") == "~/a"
    with pytest.raises(ConfigurationError):
        path_at_home(".config")


def test_nothing_else_asks_for_a_home_folder() -> None:
    asking = set()
    for path in Path(sequencer.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in {"expanduser", "home"}:
                asking.add((path.name, ast.unparse(node)))
    assert asking == {("textfile.py", "os.path.expanduser")}
