from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.errors import ConfigurationError, UnknownName, UnsafePath
from sequencer.workflows.prompts import (
    MAX_PROMPT_BYTES,
    PromptReader,
    existing_prompts,
    prompt_path,
    relative_name,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "prompts"
    (made / "team").mkdir(parents=True)
    (made / "main.md").write_text("do it\n", encoding="utf-8")
    (made / "team" / "plan.txt").write_text("plan", encoding="utf-8")
    (tmp_path / "secret.md").write_text("secret", encoding="utf-8")
    return made


@pytest.mark.parametrize("name", ["main.md", "main", "prompts/main.md", "prompts/main"])
def test_the_spellings_of_one_prompt(folder: Path, name: str) -> None:
    assert PromptReader(folder).read(name) == "do it\n"
    assert relative_name(folder, name) == "main.md"


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../secret.md",
        "../prompts/main.md",
        "team/../main.md",
        "./main.md",
        "team//plan.txt",
        "main.md/",
        "/etc/passwd",
        "main.md\0",
        "main\n.md",
        "main\u2028.md",
        "..\\secret.md",
        "x" * 301,
        "\x1b[2J",
    ],
)
def test_an_unsafe_name_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(UnsafePath) as refused:
        PromptReader(folder).read(name)
    text = str(refused.value)
    assert "\0" not in text
    assert "\x1b" not in text
    assert len(text) < 400


def test_a_broken_link_and_a_loop_are_unknown(folder: Path) -> None:
    (folder / "gone.md").symlink_to("nothing.md")
    (folder / "loop.md").symlink_to("loop.md")
    for name in ("gone.md", "loop.md"):
        with pytest.raises((UnknownName, UnsafePath)):
            PromptReader(folder).read(name)


@pytest.mark.timeout(5)
def test_a_fifo_a_socket_and_a_folder_never_hang(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(folder / "fifo.md")
    (folder / "folder.md").mkdir()
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.md")
        for name in ("fifo.md", "folder.md", "socket.md"):
            with pytest.raises(UnsafePath, match="not a regular file"):
                PromptReader(folder).read(name)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_refusing_a_folder_leaves_no_descriptor_open(folder: Path) -> None:
    (folder / "folder.md").mkdir()
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for _ in range(20):
        with pytest.raises(UnsafePath):
            PromptReader(folder).read("folder")
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) <= before + 1


def test_bytes_that_are_not_utf8_are_named_with_line_and_offset(folder: Path) -> None:
    (folder / "bad.md").write_bytes(b"one\ntwo\nthr\xffee\n")
    with pytest.raises(ConfigurationError, match=r"byte 0xff at offset 11") as refused:
        PromptReader(folder).read("bad")
    assert refused.value.where == f"{folder / 'bad.md'}:3"


def test_five_mebibytes_are_the_limit(folder: Path) -> None:
    (folder / "big.md").write_bytes(b"x" * MAX_PROMPT_BYTES)
    assert len(PromptReader(folder).read("big")) == MAX_PROMPT_BYTES
    (folder / "big.md").write_bytes(b"x" * (MAX_PROMPT_BYTES + 1))
    with pytest.raises(ConfigurationError, match="more than 5242880 bytes"):
        PromptReader(folder).read("big")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_read_permission_is_reported(folder: Path) -> None:
    (folder / "main.md").chmod(0)
    with pytest.raises(ConfigurationError, match="can't be read"):
        PromptReader(folder).read("main")


@pytest.mark.parametrize("name", ["main", "team/plan.txt"])
def test_a_prompt_in_an_unreadable_folder_is_not_called_missing(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever needs no prompt would go on without the one that is there."""
    unreadable, iterate = (folder / name).parent, Path.iterdir

    def refuse(path: Path) -> Iterator[Path]:
        if path == unreadable:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return iterate(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(ConfigurationError, match="can't be read: Permission denied") as refused:
        PromptReader(folder).read(name)
    assert not isinstance(refused.value, UnknownName)
    assert refused.value.where == str(unreadable)


def test_a_prompt_in_a_folder_that_may_only_be_listed_is_not_called_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ConfigurationError, match="can't be read: Permission denied"):
        prompt_path(folder, "main")


def test_a_prompt_below_a_file_or_no_folder_is_unknown(folder: Path) -> None:
    for made, name in ((folder, "main.md/x"), (folder / "gone", "main"), (folder, "gone/x")):
        with pytest.raises(UnknownName):
            PromptReader(made).read(name)


def test_the_list_is_sorted_and_bounded(folder: Path) -> None:
    (folder / ".hidden.md").touch()
    (folder / ".git").mkdir()
    (folder / ".git" / "x.md").touch()
    assert existing_prompts(folder) == ["main.md", "team/plan.txt"]
    for number in range(300):
        (folder / f"p{number:03}.md").touch()
    assert len(existing_prompts(folder)) == 200
