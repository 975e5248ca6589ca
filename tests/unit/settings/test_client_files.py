"""What a client would read of a project: each file and key that acts, and none that does not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sequencer.executors.project_files import CLIENTS, files_for
from sequencer.project import client_files
from sequencer.project.client_files import (
    MAX_FILES,
    MAX_KEYS,
    ClientFacts,
    find_client,
    find_clients,
    get_line_file,
    scan,
    stat_signature,
)
from sequencer.project.settings import load

FREE_KEYS = {"claude": "theme", "codex": "tui", "gemini": "ui", "opencode": "theme"}
SETTINGS = [(kind, name) for kind, reads in CLIENTS.items() for name in reads.files]
KEYED = [
    (kind, name) for kind, reads in CLIENTS.items() for name, read in reads.files.items() if read
]
FOLDERS = [(kind, name) for kind, reads in CLIENTS.items() for name in reads.folders]


def looked(kind: str, folder: Path) -> ClientFacts:
    return scan(kind, CLIENTS[kind], folder)


def put(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def written(name: str, keys: dict[str, Any]) -> str:
    """Return *keys* in the form of the file *name*."""
    if name.endswith(".toml"):
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    return json.dumps(keys)


def differs(kind: str, folder: Path, change: Callable[[], object]) -> bool:
    """Return whether a person is asked about *change*; every question has to be noticed."""
    before = looked(kind, folder)
    assert before.is_current()
    change()
    after = looked(kind, folder)
    is_asked = after.lines != before.lines
    assert not (is_asked and before.is_current()), "a change that nobody would look at"
    return is_asked


@pytest.mark.parametrize(("kind", "name"), SETTINGS)
def test_a_file_that_appears_changes_or_disappears_is_asked_about(
    kind: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    assert differs(kind, tmp_path, lambda: put(path, written(name, {"hooks": "a"})))
    assert differs(kind, tmp_path, lambda: put(path, written(name, {"hooks": "b"})))
    assert differs(kind, tmp_path, path.unlink)


@pytest.mark.parametrize(("kind", "name"), KEYED)
def test_a_key_that_acts_is_asked_about_and_a_harmless_one_is_not(
    kind: str, name: str, tmp_path: Path
) -> None:
    path, free = tmp_path / name, FREE_KEYS[kind]
    assert not differs(kind, tmp_path, lambda: put(path, written(name, {free: "dark"})))
    put(path, written(name, {free: "dark", "permissions": ["deny"]}))
    assert not differs(
        kind, tmp_path, lambda: put(path, written(name, {free: "x", "permissions": ["deny"]}))
    )
    assert differs(kind, tmp_path, lambda: put(path, written(name, {free: "x"}))), "a refusal goes"
    put(path, written(name, {}))
    assert differs(kind, tmp_path, lambda: put(path, written(name, {"new_key": True})))
    assert not differs(kind, tmp_path, lambda: put(path, f"{written(name, {'new_key': True})}\n"))


@pytest.mark.parametrize(("kind", "name"), FOLDERS)
def test_a_file_in_a_folder_that_acts_is_asked_about(kind: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name / "deep" / "x.md"
    assert differs(kind, tmp_path, lambda: put(path, "one"))
    assert differs(kind, tmp_path, lambda: put(path, "two"))
    assert differs(kind, tmp_path, lambda: put(path.with_name("y.md"), "two"))
    assert differs(kind, tmp_path, path.unlink)


@pytest.mark.parametrize("kind", CLIENTS)
def test_instructions_are_prompts(kind: str, tmp_path: Path) -> None:
    for name in ("CLAUDE.md", "AGENTS.md", "GEMINI.md", ".claude/CLAUDE.md", ".claude/rules/a.md"):
        put(tmp_path / name, "Be brief.")
    assert looked(kind, tmp_path).lines == frozenset()


@pytest.mark.parametrize(
    "data",
    [
        b'\xef\xbb\xbf{"theme": "a"}',
        b'// a comment\n{"theme": "a"}',
        b'{"theme": "a",}',
        b'{"theme": "a", "theme": "b"}',
        '{"theme": "a"}'.encode("utf-16"),
        b'{"theme": NaN}',
        b"[" * 100_000,
        b'{"theme":' * 5_000 + b"1" + b"}" * 5_000,
        b"\xff\xfe",
        b"",
        b"[]",
    ],
    ids=range(11),
)
def test_an_unreadable_file_counts_as_a_whole(data: bytes, tmp_path: Path) -> None:
    for kind, name in KEYED:
        put(tmp_path / name, data)
        lines = {line for line in looked(kind, tmp_path).lines if get_line_file(line) == name}
        is_empty_toml = name.endswith(".toml") and not data
        expected = [] if is_empty_toml else [f"{kind}, file {name}: sha256"]
        assert [line.rpartition(" ")[0] for line in lines] == expected, data[:20]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    ["a" + ".a" * 400_000 + " = 1", "[" + "a." * 400_000 + "a]", "a = " + "[" * 200_000],
    ids=["dotted key", "table", "arrays"],
)
def test_hostile_toml_is_not_parsed(text: str, tmp_path: Path) -> None:
    put(tmp_path / ".codex/config.toml", text)
    (line,) = looked("codex", tmp_path).lines
    assert line.startswith("codex, file .codex/config.toml: sha256")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": {"b": 1}, "a.b": 2}, {"a": {"b": 3}, "a.b": 2}),
        ({f"k{n}": n for n in range(MAX_KEYS + 1)}, {f"k{n}": 0 for n in range(MAX_KEYS + 1)}),
        ({"a": "x" * 9_000}, {"a": "x" * 8_999 + "y"}),
        ({"a\nclaude, file .mcp.json": 1}, {"a": 1}),
    ],
    ids=["written alike", "many", "long", "a line of its own"],
)
def test_no_key_hides_another(one: dict[str, Any], other: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / ".claude" / "settings.json"
    put(path, json.dumps(one))
    assert differs("claude", tmp_path, lambda: put(path, json.dumps(other)))
    for line in looked("claude", tmp_path).lines:
        assert line.isprintable()
        assert line.isascii() or "…" in line
        assert len(line) < 1_000


SECRET = "hunter2-hunter2-hunter2"  # noqa: S105 - of nobody


@pytest.mark.parametrize(
    "keys",
    [
        {"env": {"X": SECRET}},
        {"mcpServers": {"x": {"env": {"PATH": SECRET}}}},
        {"mcpServers": {"x": {"headers": {"Authorization": SECRET}}}},
        {"hooks": [{"env": {"X": [SECRET]}}]},
        {"apiKey": SECRET, "my_token": SECRET},
        {"url": f"https://ada:{SECRET}@example.org/"},
        {"args": ["--header", f"Authorization: Bearer {SECRET}"]},
        {"args": ["a", f"b\nhttps://ada:{SECRET}@example.org/"]},
    ],
    ids=str,
)
def test_secrets_are_not_shown_and_still_compared(keys: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / ".mcp.json"
    put(path, json.dumps(keys))
    assert SECRET not in "".join(looked("claude", tmp_path).lines)
    other = json.dumps(keys).replace(SECRET, SECRET[::-1])
    assert differs("claude", tmp_path, lambda: put(path, other))


def test_a_file_named_by_a_command_in_the_settings_counts(tmp_path: Path) -> None:
    command = '"$CLAUDE_PROJECT_DIR"/tools/guard.sh && node ./server.js'
    hook = {"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": command}]}]}}
    put(tmp_path / ".claude/settings.json", json.dumps(hook))
    for name in ("tools/guard.sh", "server.js"):
        path = tmp_path / name
        put(path, "one")
        assert differs("claude", tmp_path, lambda path=path: put(path, "two")), name  # type: ignore[misc]


def test_a_file_that_a_command_names_is_noticed_when_it_appears(tmp_path: Path) -> None:
    put(tmp_path / ".mcp.json", '{"mcpServers": {"x": {"command": "tools/server.sh"}}}')
    assert differs("claude", tmp_path, lambda: put(tmp_path / "tools/server.sh", "x"))


def test_a_pattern_in_a_permission_does_not_name_a_file_to_run(tmp_path: Path) -> None:
    put(tmp_path / ".claude/settings.json", '{"permissions": {"deny": ["Read(./.env)"]}}')
    put(tmp_path / ".env", "A=1")
    assert not differs("claude", tmp_path, lambda: put(tmp_path / ".env", "A=2"))


# --- links and what is no file --------------------------------------------------------------


def test_a_link_is_shown_and_not_followed_out_of_the_project(tmp_path: Path) -> None:
    folder, outside = tmp_path / "project", tmp_path / "outside.json"
    (folder / ".claude").mkdir(parents=True)
    put(outside, '{"permissions": {"allow": ["secret-word"]}}')
    (folder / ".claude" / "settings.json").symlink_to(outside)
    (folder / ".claude" / "skills").symlink_to(tmp_path)
    lines = looked("claude", folder).lines
    assert f'claude, file .claude/settings.json: leads to "{outside}"' in lines
    assert f'claude, file .claude/skills: leads to "{tmp_path}"' in lines
    assert len(lines) == 2, "nothing of what is there was read"


def test_a_link_inside_of_the_project_is_read(tmp_path: Path) -> None:
    put(tmp_path / "shared" / "skills" / "x.md", "one")
    (tmp_path / "shared" / "skills" / "loop").symlink_to(".", target_is_directory=True)
    (tmp_path / ".claude").symlink_to("shared")
    assert any("leads to" in line for line in looked("claude", tmp_path).lines)
    path = tmp_path / "shared" / "skills" / "x.md"
    assert differs("claude", tmp_path, lambda: put(path, "two"))

    def lead_elsewhere() -> None:
        put(tmp_path / "other" / "skills" / "x.md", "two")
        (tmp_path / ".claude").unlink()
        (tmp_path / ".claude").symlink_to("other")

    assert differs("claude", tmp_path, lead_elsewhere)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2 * 1024**3)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [_fifo, _device, _sparse, Path.mkdir])
@pytest.mark.parametrize("name", [".claude/settings.json", ".mcp.json", ".claude/skills/x"])
def test_a_special_file_is_neither_read_nor_waited_for(
    make: Callable[[Path], object], name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    assert differs("claude", tmp_path, lambda: make(path)) is (make is not Path.mkdir)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Return a folder of the project with more files than have lines of their own."""
    folder = tmp_path / ".claude" / "skills"
    for number in range(MAX_FILES + 1):
        put(folder / f"{number:03}.md", "x")
    return folder


def rewrite(path: Path, text: str) -> None:
    """Change *path* and restore its time of modification, as `touch -r` does."""
    status = path.stat()
    put(path, text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_many_files_in_a_folder_have_one_line(many: Path, tmp_path: Path) -> None:
    (line,) = looked("claude", tmp_path).lines
    assert f"folder .claude/skills: {MAX_FILES + 1} files by names and contents: sha256" in line
    assert differs("claude", tmp_path, lambda: put(many / "007.md", "longer"))
    assert differs("claude", tmp_path, lambda: put(many / "new.md", "x"))


def test_a_changed_one_of_many_files_is_asked_about_even_if_its_time_is_restored(
    many: Path, tmp_path: Path
) -> None:
    assert differs("claude", tmp_path, lambda: rewrite(many / "007.md", "y"))
    assert differs("claude", tmp_path, lambda: rewrite(many / "500.md", "y"))


def test_one_of_many_files_that_is_only_touched_is_not_asked_about(
    many: Path, tmp_path: Path
) -> None:
    assert not differs("claude", tmp_path, (many / "007.md").touch)


@pytest.mark.slow
def test_contents_beyond_the_limit_are_compared_by_times(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_files, "MAX_HASHED_BYTES", MAX_FILES - 1)
    (line,) = looked("claude", tmp_path).lines
    assert "names and contents, 2 of them by sizes and times: sha256" in line
    assert not differs("claude", tmp_path, (many / "007.md").touch)
    assert differs("claude", tmp_path, lambda: rewrite(many / "007.md", "y"))
    assert differs("claude", tmp_path, lambda: rewrite(many / "500.md", "y"))


def test_a_link_among_many_files_is_asked_about_and_not_followed_outside(
    many: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    outside = tmp_path_factory.mktemp("outside")
    for name in ("one", "two"):
        put(outside / name, "secret")
    put(tmp_path / "shared.md", "one")
    link, inner_link = many / "link", many / "inner.md"
    link.symlink_to(outside / "one")
    inner_link.symlink_to(tmp_path / "shared.md")
    before = looked("claude", tmp_path).lines
    rewrite(outside / "one", "secre2")
    assert looked("claude", tmp_path).lines == before
    assert differs("claude", tmp_path, lambda: put(tmp_path / "shared.md", "two"))

    def lead_elsewhere() -> None:
        link.unlink()
        link.symlink_to(outside / "two")
        os.utime(outside / "two", ns=(0, (outside / "one").stat().st_mtime_ns))

    assert differs("claude", tmp_path, lead_elsewhere)


def test_a_copy_of_many_files_has_the_same_line(many: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(many, copy / ".claude" / "skills", copy_function=shutil.copyfile)
    assert looked("claude", copy).lines == looked("claude", tmp_path).lines


def test_folders_without_end_are_not_entered(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for part in (".claude", "skills", *["d"] * 1_500):
        os.mkdir(part, dir_fd=at)
        below = os.open(part, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    (line,) = looked("claude", tmp_path).lines
    assert "not compared" in line
    subprocess.run(["rm", "-rf", tmp_path / ".claude"], check=True)


# --- where they lie, and for whom -----------------------------------------------------------


@pytest.mark.parametrize("kind", CLIENTS)
def test_folders_up_to_the_root_of_the_repository_count(kind: str, tmp_path: Path) -> None:
    root, project = tmp_path / "root", tmp_path / "root" / "a" / "project"
    project.mkdir(parents=True)
    name = next(iter(CLIENTS[kind].files))
    put(root / name, written(name, {"x": 1}))
    assert looked(kind, project).lines == frozenset(), "without a repository it stays in the folder"
    (root / ".git").mkdir()
    assert {get_line_file(line) for line in looked(kind, project).lines} == {f"../../{name}"}
    put(tmp_path / name, written(name, {"x": 1}))
    assert len({get_line_file(line) for line in looked(kind, project).lines}) == 1


def test_the_users_own_folder_is_not_part_of_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".git").mkdir()
    put(tmp_path / ".claude" / "settings.json", '{"hooks": {}}')
    (tmp_path / "project").mkdir()
    assert looked("claude", tmp_path / "project").lines == frozenset()
    assert looked("claude", tmp_path).lines


@pytest.mark.parametrize(
    ("sources", "reads"),
    [
        (["user"], False),
        ([], False),
        (["user", "project"], True),
        (["local"], True),
        (None, True),
        ("user", True),
    ],
)
def test_claude_without_settings_of_the_project_reads_nothing(sources: object, reads: bool) -> None:
    options = {} if sources is None else {"setting_sources": sources}
    assert (files_for("claude", options) is not None) is reads
    assert files_for("command", options) is None


_SCRIPT = "agent: x\nagents: {x: {kind: command, argv: ['true']}}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (_SCRIPT, set()),
        ("agent: x\nagents: {x: {kind: codex}}\n", {"codex"}),
        ("agent: gemini\n", {"gemini"}),
        ("agent: auto\n", set(CLIENTS)),
        ("limits: {steps: 3}\n", set(CLIENTS)),
        ("agent: x\nagents: {x: {kind: claude, setting_sources: [user]}}\n", set()),
        ("agent: claude\nagents: {claude: {setting_sources: [user]}}\n", set()),
        ("agent: claude\nagents: {x: {kind: claude, setting_sources: [user]}}\n", {"claude"}),
        (
            f"{_SCRIPT}steps: [{{name: a, text: b, agent: opencode}}]\n",
            {"opencode"},
        ),
        (
            _SCRIPT.replace("agent: x", "agent: {default: x, fallback: [codex]}"),
            {"codex"},
        ),
    ],
)
def test_only_clients_an_agent_may_use_count(text: str, expected: set[str], tmp_path: Path) -> None:
    put(tmp_path / "orchestration.yaml", text)
    assert set(find_clients(load(tmp_path, env={}), [])) == expected


@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        (b"agent: codex", {"codex"}),
        (b"agent: 'gemini'", {"gemini"}),
        (b"automatic codexes", set()),
        (b'agent: "cl\\x61ude"', set(CLIENTS)),
    ],
)
def test_a_workflow_may_name_a_client_too(flow: bytes, expected: set[str], tmp_path: Path) -> None:
    put(tmp_path / "orchestration.yaml", _SCRIPT)
    assert set(find_clients(load(tmp_path, env={}), [flow])) == expected


def test_a_fact_names_its_client_and_file() -> None:
    assert find_client("claude, file .mcp.json, mcpServers.x.command: 1") == "claude"
    assert find_client("agents.claude, file a.sh: sha256 0") is None
    assert get_line_file("codex, folder .codex/rules: 900 files") == ".codex/rules"


# --- what it costs --------------------------------------------------------------------------


@pytest.fixture
def stats(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keep the paths that are looked at."""
    seen: list[str] = []
    look = os.stat

    def counted(path: Any, *rest: Any, **more: Any) -> os.stat_result:
        seen.append(str(path))
        return look(path, *rest, **more)

    monkeypatch.setattr(os, "stat", counted)
    return seen


def test_checking_for_changes_costs_one_look_per_name(tmp_path: Path, stats: list[str]) -> None:
    found = looked("claude", tmp_path)
    stats.clear()
    assert found.is_current()
    assert sorted(Path(path).name for path in stats) == [".claude", ".envrc", ".mcp.json"]
    put(tmp_path / ".claude/settings.json", "{}")
    put(tmp_path / ".claude/skills/a/SKILL.md", "x")
    found = looked("claude", tmp_path)
    stats.clear()
    assert found.is_current()
    assert len(stats) == len(set(stats)) == 7, "and one for each file and folder that is there"


def test_a_signature_distinguishes_one_file_from_another(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert stat_signature(str(path)) is None
    assert stat_signature("a\0b") is None
    put(path, "x")
    before = stat_signature(str(path))
    other = tmp_path / "b"
    put(other, "y")
    other.replace(path)
    assert stat_signature(str(path)) != before
