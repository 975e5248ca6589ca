"""What may be committed: options, names, contents, caps, and keys in commits of agents."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sequencer.executors.redaction import Redaction
from sequencer.frozen.fields import ValidationError
from sequencer.model.outcome import OutcomeStatus
from sequencer.plugins.git.code import selection as vetting
from sequencer.plugins.git.code.checkout import ClosedFolder, FolderResult
from sequencer.plugins.git.code.selection import (
    Content,
    FileNotCommitted,
    Selection,
    Selector,
    ensure_fit_name,
    find_new_secrets,
    is_unchanged,
    make_secret_check,
    read_content,
)
from sequencer.plugins.git.process import Git
from sequencer.project.schema import PLACEHOLDERS, CommitOptions, WorkOptions
from tests.unit.git.clones import (
    ENVIRONMENT,
    SECRET,
    commit,
    git,
    repository,
    said,
    tree_at,
    tree_of,
    write,
)
from tests.unit.git.teams import branches, is_sound, opened, project, remains, worked
from tests.unit.git.teams import workplaces as workplaces_of

IS_SECRET = make_secret_check(Redaction(["hunter2-hunter2"]))


def looked_at(folder: Path, name: str = "file", cap: int = 1000) -> Content:
    return read_content(folder, name, cap, IS_SECRET)


def why(folder: Path, name: str = "file", cap: int = 1000) -> str:
    with pytest.raises(FileNotCommitted) as unfit:
        looked_at(folder, name, cap)
    return str(unfit.value)


@pytest.mark.parametrize(
    "text",
    [
        f"key = {SECRET}",
        "ghp_" + "a" * 36,
        "AKIA" + "ABCDEFGH12345678",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
        "password: hunter2-hunter2",
        "Authorization: Bearer abc123def456",
        "x" * 900 + "\n" + SECRET,
    ],
)
def test_a_file_with_what_looks_like_a_key_is_unfit(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    assert why(tmp_path, cap=10_000) == "contains what looks like a key"


def test_text_that_only_mentions_keys_is_fit(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("an sk- key; the task-force of 2024; a bearer of news\n")
    assert looked_at(tmp_path).size > 0


def test_anything_but_a_regular_file_is_unfit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    assert why(tmp_path, "fifo") == "is not a regular file"
    assert why(tmp_path, "folder") == "is not a regular file"
    assert "No such file" in why(tmp_path, "missing")


@pytest.mark.parametrize("target", ["other", "./other", "sub/../other", "dangling", "sub"])
def test_a_link_within_the_repository(tmp_path: Path, target: str) -> None:
    (tmp_path / "other").write_text(SECRET)
    (tmp_path / "sub").mkdir()
    (tmp_path / "file").symlink_to(target)
    found = looked_at(tmp_path)
    assert (found.mode, found.target) == (0o120000, target.encode())


@pytest.mark.parametrize("target", ["/etc/passwd", "../x", "sub/../../x", "up/x", "{top}/other"])
def test_a_link_that_leads_out(tmp_path: Path, target: str) -> None:
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    (top / "other").write_text("x")
    (top / "up").symlink_to("..")
    (top / "file").symlink_to(target.format(top=top))
    assert why(top) == "is a link that leads out of the repository"


def test_a_link_into_the_git_folder_is_unfit(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "file").symlink_to(".git/config")
    assert why(tmp_path) == "is a link into .git"


def test_a_file_behind_a_link(tmp_path: Path) -> None:
    outside, top = tmp_path / "outside", tmp_path / "top"
    outside.mkdir()
    top.mkdir()
    (outside / "file").write_text("not of this repository")
    (top / "sub").symlink_to(outside)
    assert why(top, "sub/file") == "is in a linked folder"


@pytest.mark.parametrize(
    "path",
    [".env", ".env.local", ".envrc", "sub/.env", ".ENV", ".env/x", ".netrc", "a/.pgpass"],
)
def test_names_used_for_secrets_are_unfit(path: str) -> None:
    with pytest.raises(FileNotCommitted, match="that is used for secrets"):
        ensure_fit_name(path, IS_SECRET)


@pytest.mark.parametrize("path", [".git/config", "sub/.git", "sub/.GIT/x"])
def test_names_below_git(path: str) -> None:
    with pytest.raises(FileNotCommitted, match=r"below \.git"):
        ensure_fit_name(path, IS_SECRET)


@pytest.mark.parametrize("path", ["env", "my.env", ".gitignore", "x.git/y", "environment.md"])
def test_names_that_only_look_alike(path: str) -> None:
    ensure_fit_name(path, IS_SECRET)


def test_a_file_counts_as_unchanged_until_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    found = looked_at(tmp_path)
    assert is_unchanged(tmp_path, "file", found)
    path.write_text("two")
    assert not is_unchanged(tmp_path, "file", found)


def test_each_key_opens() -> None:
    assert CommitOptions(paths=("x",)).is_open
    assert CommitOptions(report_extensions=(".md",)).is_open
    assert CommitOptions(tracked_output_extensions=(".npy",)).is_open


@pytest.mark.parametrize("pattern", ["../x", "a/../b", "", "/", "a\0b", "//"])
def test_patterns_stay_in_the_repository(pattern: str) -> None:
    for key in ("paths", "doc_whitelist", "report_path_globs", "tracked_output_globs", "exclude"):
        with pytest.raises(ValidationError):
            CommitOptions.model_validate({key: [pattern]})
    with pytest.raises(ValidationError):
        WorkOptions.model_validate({"tolerated": [pattern]})


@pytest.mark.parametrize("name", ["main", "feature/x", "current", "none", "v1.2", "ä", "a@b"])
def test_valid_branch_names_are_accepted(name: str) -> None:
    assert WorkOptions(branch=name).branch == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "-x", "a b", "a..b", "a//b", "/a", "a/", "a.lock", "a.lock/b", ".a", "a/.b", "a."),
        *("a~1", "a^", "a:b", "a?", "a*", "a[b", "a\\b", "a@{1}", "@", "a\nb", "a\x7f"),
    ],
)
def test_names_git_does_not_allow_for_branches_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        WorkOptions(branch=name)


def test_a_message_may_only_use_known_placeholders() -> None:
    every = " ".join(f"{{{word}}}" for word in PLACEHOLDERS)
    facts = {word: f"<{word}>" for word in PLACEHOLDERS}
    told = CommitOptions(message=every).first_line(facts)
    assert told == " ".join(f"<{word}>" for word in PLACEHOLDERS)
    with pytest.raises(ValidationError, match="is unknown here"):
        CommitOptions(message="{who}")
    with pytest.raises(ValidationError):
        CommitOptions(message="two\nlines")


def test_inserted_values_are_not_expanded_again() -> None:
    told = CommitOptions(message="{step} {run}").first_line({"step": "{run}", "run": "r"})
    assert told == "{run} r"


def selected(folder: Path, **options: object) -> Selection:
    return selected_in(folder, "", options)


def selected_in(folder: Path, project: str, options: dict[str, object]) -> Selection:
    tree = tree_at(folder, project)
    chosen = CommitOptions.model_validate(options)
    is_secret = make_secret_check(Redaction(["hunter2-hunter2"]))
    return Selector(tree, chosen, is_secret).select(tree.read_status())


def taken(folder: Path, **options: object) -> list[str]:
    return [one.path for one in selected(folder, **options).chosen]


def reasons(folder: Path, **options: object) -> dict[str, str]:
    return {one.path: one.reason for one in selected(folder, **options).skipped}


def test_a_path_selects_everything_that_has_changed_below_it(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"out/changed": "1", "out/gone": "1", "else": "1"})
    write(folder, {"out/changed": "22", "out/new": "333", "else": "2"})
    (folder / "out" / "gone").unlink()
    found = selected(folder, paths=["out/"])
    assert [(one.path, str(one.change), one.size) for one in found.chosen] == [
        ("out/changed", "modified", 2),
        ("out/gone", "deleted", 0),
        ("out/new", "added", 3),
    ]
    assert {one.key for one in found.chosen} == {"paths"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"report_extensions": [".png", ".MD"]}, ["a.png", "deep/b.md", "deep/c.PNG"]),
        ({"report_path_globs": ["deep/**"]}, ["deep/b.md", "deep/c.PNG", "deep/d.txt"]),
        (
            {"report_extensions": [".png"], "report_path_globs": ["deep/**"]},
            ["deep/c.PNG"],
        ),
        ({"report_extensions": [".png"], "reports": False}, []),
    ],
)
def test_reports(tmp_path: Path, options: dict[str, object], expected: list[str]) -> None:
    folder = repository(tmp_path / "r", {"deep/gone.png": "1"})
    write(folder, {"a.png": "1", "deep/b.md": "1", "deep/c.PNG": "1", "deep/d.txt": "1"})
    (folder / "deep" / "gone.png").unlink()
    assert taken(folder, **options) == expected


def test_new_files_are_never_tracked_outputs(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"fix/a.json": "1", "fix/b.npy": "1", "fix/c.json": "1"})
    write(folder, {"fix/a.json": "2", "fix/b.npy": "2", "fix/new.json": "2"})
    (folder / "fix" / "c.json").unlink()
    globs = ["fix/**"]
    assert taken(folder, tracked_output_globs=globs) == ["fix/a.json", "fix/b.npy"]
    extensions: dict[str, object] = {
        "tracked_output_globs": globs,
        "tracked_output_extensions": [".json"],
    }
    assert taken(folder, **extensions) == ["fix/a.json"]
    assert taken(folder, **extensions, tracked_outputs=False) == []


def test_changes_a_person_has_staged_are_not_taken(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"both": "1", "mine": "1", "dropped": "1"})
    write(folder, {"both": "2", "mine": "2", "added": "1", "announced": "1"})
    git(folder, "add", "both", "added")
    git(folder, "add", "-N", "announced")
    git(folder, "rm", "-q", "--cached", "dropped")
    write(folder, {"both": "3"})
    assert taken(folder, paths=["**"]) == ["mine"]
    assert set(reasons(folder, paths=["**"])) == {"both", "added", "announced", "dropped"}
    assert set(reasons(folder, paths=["**"]).values()) == {"has staged changes"}


def test_the_runs_own_files(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"sync/state.json": "{}"})
    write(folder, {"sync/state.json": "{1}", "sync/journal.jsonl": "x", "logs/main/a.log": "x"})
    assert taken(folder, paths=["**"]) == []
    assert set(reasons(folder, paths=["**"]).values()) == {"is a file of the run"}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"key.txt": SECRET}, "contains what looks like a key"),
        ({"notes.md": "it is hunter2-hunter2"}, "contains what looks like a key"),
        ({".env": "A=1"}, "has a name that is used for secrets"),
        ({"deep/.env.production": "A=1"}, "has a name that is used for secrets"),
        ({f"{SECRET}.txt": "x"}, "has a name that looks like a key"),
    ],
)
def test_secrets(tmp_path: Path, files: dict[str, str], reason: str) -> None:
    folder = repository(tmp_path / "r")
    write(folder, {**files, "fine": "x"})
    assert taken(folder, paths=["**"]) == ["fine"]
    assert reasons(folder, paths=["**"]) == dict.fromkeys(files, reason)


def test_each_family_has_caps_of_its_own(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"t1.bin": "1", "t2.bin": "1"})
    write(folder, dict.fromkeys(("doc", "r1.md", "r2.md", "r3.md"), "x" * 10))
    write(folder, {"t1.bin": "x" * 10, "t2.bin": "x" * 10, "r4.md": "x" * 9, "r5.md": "x" * 4})
    options: dict[str, object] = {
        "paths": ["doc"],
        "max_file_bytes": 10,
        "report_extensions": [".md"],
        "max_report_file_bytes": 9,
        "max_report_total_bytes": 12,
        "tracked_output_globs": ["*.bin"],
        "max_tracked_output_file_bytes": 10,
        "max_tracked_output_total_bytes": 19,
    }
    assert taken(folder, **options) == ["doc", "r4.md", "t1.bin"]
    told = reasons(folder, **options)
    assert told["r1.md"] == "has 10 bytes, more than 9"
    assert told["r5.md"] == "does not fit into the 12 bytes of report_extensions"
    assert told["t2.bin"] == "does not fit into the 19 bytes of tracked_output_globs"


def test_the_cap_of_a_commit(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    write(folder, {"a.md": "x" * 10, "b": "x" * 10, "c": "x" * 5})
    options: dict[str, object] = {
        "paths": ["b", "c"],
        "report_extensions": [".md"],
        "max_total_bytes": 15,
    }
    assert taken(folder, **options) == ["a.md", "c"]
    assert "15 bytes" in reasons(folder, **options)["b"]


def test_an_excluded_path_is_excluded_from_all_families(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"tmp/t.bin": "1"})
    write(folder, {"tmp/a.md": "1", "tmp/t.bin": "2", "b.md": "1"})
    options: dict[str, object] = {
        "paths": ["**/a.md"],
        "report_extensions": [".md"],
        "tracked_output_globs": ["**"],
        "exclude": ["tmp/"],
    }
    assert taken(folder, **options) == ["b.md"]
    assert reasons(folder, **options)["tmp/a.md"] == "is excluded by 'tmp/'"


def test_the_first_key_that_declares_a_path_counts(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    write(folder, {"a.md": "1"})
    found = selected(folder, doc_whitelist=["*.md"], paths=["*.md"], report_extensions=[".md"])
    assert [one.key for one in found.chosen] == ["paths"]


def test_other_repositories(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    inner = repository(tmp_path / "inner")
    git(folder, "-c", "protocol.file.allow=always", "submodule", "-q", "add", str(inner), "sub")
    git(folder, "commit", "-qm", "with a submodule")
    commit(folder / "sub", {"x": "1"})
    repository(folder / "nested")
    assert taken(folder, paths=["**"]) == []
    told = reasons(folder, paths=["**"])
    assert told == {"sub": "is a submodule", "nested/": "is another repository"}


def test_a_file_may_replace_a_folder_and_a_folder_may_replace_a_file(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"was folder/a": "1", "was folder/b": "1", "was file": "1"})
    for name in ("a", "b"):
        (folder / "was folder" / name).unlink()
    (folder / "was folder").rmdir()
    (folder / "was file").unlink()
    write(folder, {"was folder": "x", "was file/a": "x"})
    assert taken(folder, paths=["**"]) == [
        *("was file", "was file/a", "was folder", "was folder/a", "was folder/b"),
    ]
    # Without the word of all that would go, nothing takes its place.
    some: dict[str, object] = {"paths": ["was file/*", "was folde?", "was folder/a"]}
    assert taken(folder, **some) == ["was folder/a"]
    for clashing in ("was folder", "was file/a"):
        assert "where its folder would be" in reasons(folder, **some)[clashing]


def test_the_answer_is_the_same_every_time(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    write(folder, {f"{number:03}": "x" * number for number in range(60)})
    options: dict[str, object] = {"paths": ["**"], "max_total_bytes": 500}
    assert selected(folder, **options) == selected(folder, **options)
    assert sum(one.size for one in selected(folder, **options).chosen) <= 500


PEM = "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----\n"
OTHER = f"ghp_{'z9' * 18}"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return project(tmp_path / "here", {"a": "a\n", "b": "b\n"})


def refused(here: Path, work: Callable[[Path], object]) -> ClosedFolder:
    """Let *work* be done, and see that nothing of it is merged and nothing is lost."""
    before = said(here, "rev-parse", "HEAD")
    left = worked(workplaces_of(here), work)
    assert (left.result, left.error is not None) == (FolderResult.KEPT, True)
    assert said(here, "rev-parse", "HEAD") == before
    assert branches(here) == [left.branch]
    assert remains(here) == []
    assert is_sound(here)
    told = f"{left.error} {left.hint} {left.notices}"
    assert not any(key in told for key in (SECRET, OTHER, "hunter2", "MIIE"))
    assert str(left.branch) in told
    return left


@pytest.mark.parametrize("text", [SECRET, OTHER, "hunter2-hunter2", PEM.format("MIIE" * 20)])
def test_a_commit_that_adds_a_key_is_not_merged(here: Path, text: str) -> None:
    left = refused(here, lambda at: commit(at, {"d/k.py": f"KEY = '{text}'\n", "a": "1\n"}))
    assert left.files == ("d/k.py",)
    assert "'d/k.py' contains what looks like a key" in str(left.error)
    assert f"KEY = '{text}'" in said(here, "show", f"{left.branch}:d/k.py")


def test_a_key_that_a_later_commit_removes_is_not_merged(here: Path) -> None:
    """It would stand in the history for whoever gets that."""

    def work(at: Path) -> None:
        commit(at, {"k.py": SECRET})
        commit(at, {"k.py": "KEY = os.environ['KEY']\n"})

    assert refused(here, work).files == ("k.py",)


def test_a_key_in_a_message_or_a_name_counts_too(here: Path) -> None:
    def work(at: Path) -> None:
        write(at, {f"keys/{SECRET}.txt": "x"})
        git(at, "add", "-A")
        git(at, "commit", "-q", "-m", f"uses\n\n{OTHER}")

    left = refused(here, work)
    names = sorted(left.files)
    assert (names[0][:7], names[1]) == ("commit ", "keys/…")
    assert "has what looks like a key in its message" in str(left.error)


def test_a_key_that_was_already_there_blocks_nothing(here: Path) -> None:
    commit(here, {"fixture": f"{SECRET}\nother\n", "moved": f"{OTHER}\n"})

    def work(at: Path) -> None:
        commit(at, {"fixture": f"{SECRET}\nedited\n"})
        git(at, "mv", "moved", "elsewhere")
        git(at, "commit", "-q", "-m", "moved")

    assert worked(workplaces_of(here), work).result is FolderResult.MERGED
    assert tree_of(here)["elsewhere"] == f"100644 {OTHER}\n"
    left = worked(
        workplaces_of(here), lambda at: commit(at, {"fixture": f"{SECRET}\n{OTHER}\n"}), token=2
    )
    assert left.files == ("fixture",)


def test_work_with_a_key_does_not_wait_for_a_turn(here: Path) -> None:
    place = opened(workplaces_of(here))
    commit(place.cwd, {"k.py": SECRET})
    turns: list[int] = []
    place.close(OutcomeStatus.OK, lambda: turns.append(1))
    assert turns == []


def test_nothing_is_merged_when_git_cannot_list_new_objects(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(vetting, "_list_new_objects", broken)
    before = said(here, "rev-parse", "HEAD")
    left = worked(workplaces_of(here), lambda at: commit(at, {"a": "1\n"}))
    assert left.result is FolderResult.REFUSED
    assert "can't be merged: no memory" in str(left.error)
    assert said(here, "rev-parse", "HEAD") == before


# --- the look itself ---------------------------------------------------------------------


def found(here: Path, *, max_bytes: int = 10**6) -> list[tuple[str, str]]:
    known = [said(here, "rev-parse", "first")]
    return list(
        find_new_secrets(
            Git(here, ENVIRONMENT),
            said(here, "rev-parse", "HEAD"),
            known,
            is_secret=lambda data: b"KEY" in data,
            is_new=lambda path, _: path != "old",
            max_bytes=max_bytes,
        )
    )


def test_every_new_blob_is_searched_however_many_there_are(here: Path) -> None:
    git(here, "tag", "first")
    commit(here, {f"f{number:02}": f"{number}\n" * 20 for number in range(30)})
    commit(
        here, {"f07": "a KEY\n", "old": "KEY", "empty": "", "odd\nname": "1 KEY", "ä ö": "2 KEY"}
    )
    names = [path for path, _ in found(here)]
    assert sorted(names) == ["f07", "odd\nname".partition("\n")[0], "ä ö"]


def test_files_above_the_cap_are_not_read(here: Path) -> None:
    git(here, "tag", "first")
    commit(here, {"large": "KEY" * 100, "small": "KEY"})
    assert [path for path, _ in found(here, max_bytes=50)] == ["small"]
