from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import NetworkFileSystem
from sequencer.store import lock as filesystem
from sequencer.store.file import FileStore
from sequencer.store.lock import ensure_local, filesystem_type
from tests.contract import store_cases as cases


def fake_mounts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *mounts: tuple[str, str]) -> None:
    """Let mountinfo have *mounts*, (mount point as it is written there, type), after the root."""
    lines = ["22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"]
    lines += [f"30 22 0:5 / {at} rw - {kind} server:/x rw,a=b" for at, kind in mounts]
    text = "\n".join(lines) + "\n"
    real = Path.read_text

    def read_text(path: Path, *args: str, **kwargs: str) -> str:
        is_asked = str(path) == "/proc/self/mountinfo"
        return text if is_asked else real(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read_text)
    assert filesystem.filesystem_type(Path("/")) == "ext4"
    assert tmp_path.is_absolute()


def escaped(path: Path) -> str:
    table = {" ": "\\040", "\t": "\\011", "\n": "\\012", "\\": "\\134"}
    return "".join(table.get(letter, letter) for letter in str(path))


@pytest.mark.parametrize("name", ["plain", "a b", "tab\there", "line\nend", "back\\slash", "ä"])
def test_the_nearest_mount_point_decides(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = tmp_path / name
    inside = point / "local"
    inside.mkdir(parents=True)
    mounts = ((escaped(point), "nfs4"), (escaped(inside), "ext4"))
    fake_mounts(monkeypatch, tmp_path, *mounts)
    assert filesystem_type(point) == filesystem_type(point / "x" / "y") == "nfs4"
    assert filesystem_type(inside) == "ext4"
    assert filesystem_type(tmp_path) == "ext4"


def test_a_link_into_a_network_folder_is_seen_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "link").symlink_to("net")
    fake_mounts(monkeypatch, tmp_path, (str(tmp_path / "net"), "cifs"))
    with pytest.raises(NetworkFileSystem, match="cifs"):
        ensure_local(tmp_path / "link")


def test_a_store_refuses_a_network_file_system_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_mounts(monkeypatch, tmp_path, (str(tmp_path), "fuse.sshfs"))
    state = tmp_path / "sync" / "state.json"
    with pytest.raises(NetworkFileSystem, match=r"fuse\.sshfs") as caught:
        cases.begin(FileStore(state))
    assert caught.value.exit_code == 3
    assert "allow_network_fs" in str(caught.value)
    assert not list(state.parent.iterdir())
    assert cases.begin(FileStore(state, allow_network_fs=True)).revision == 1
