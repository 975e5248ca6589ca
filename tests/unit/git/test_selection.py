"""What is committed after a step, and what is not, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.executors.redaction import Redaction
from sequencer.git.selection import Selection, Selector, secrets_by
from sequencer.settings.schema import CommitOptions
from tests.unit.git.clones import SECRET, commit, git, repository, tree_at, write


def selected(folder: Path, **options: object) -> Selection:
    return selected_in(folder, "", options)


def selected_in(folder: Path, project: str, options: dict[str, object]) -> Selection:
    tree = tree_at(folder, project)
    chosen = CommitOptions.model_validate(options)
    is_secret = secrets_by(Redaction(["hunter2-hunter2"]))
    return Selector(tree, chosen, is_secret).select(tree.status())


def taken(folder: Path, **options: object) -> list[str]:
    return [one.path for one in selected(folder, **options).chosen]


def reasons(folder: Path, **options: object) -> dict[str, str]:
    return {one.path: one.reason for one in selected(folder, **options).skipped}


def test_paths_mean_everything_that_has_changed_there(tmp_path: Path) -> None:
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


def test_tracked_outputs_are_never_new(tmp_path: Path) -> None:
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


def test_what_somebody_has_staged_is_theirs(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"both": "1", "mine": "1", "dropped": "1"})
    write(folder, {"both": "2", "mine": "2", "added": "1", "announced": "1"})
    git(folder, "add", "both", "added")
    git(folder, "add", "-N", "announced")
    git(folder, "rm", "-q", "--cached", "dropped")
    write(folder, {"both": "3"})
    assert taken(folder, paths=["**"]) == ["mine"]
    assert set(reasons(folder, paths=["**"])) == {"both", "added", "announced", "dropped"}
    assert set(reasons(folder, paths=["**"]).values()) == {"has changes that somebody has staged"}


def test_the_runs_own_files(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"sync/state.json": "{}"})
    write(folder, {"sync/state.json": "{1}", "sync/journal.jsonl": "x", "logs/main/a.log": "x"})
    assert taken(folder, paths=["**"]) == []
    assert set(reasons(folder, paths=["**"]).values()) == {"is a file of the run"}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"key.txt": SECRET}, "holds what looks like a key"),
        ({"notes.md": "it is hunter2-hunter2"}, "holds what looks like a key"),
        ({".env": "A=1"}, "has a name under which secrets are kept"),
        ({"deep/.env.production": "A=1"}, "has a name under which secrets are kept"),
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


def test_what_is_excluded_is_excluded_from_all(tmp_path: Path) -> None:
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


def test_a_file_in_a_folders_place_and_the_other_way_round(tmp_path: Path) -> None:
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
    some: dict[str, object] = {"paths": ["was file/*", "was folder", "was folder/a"]}
    assert taken(folder, **some) == ["was folder/a"]
    for clashing in ("was folder", "was file/a"):
        assert "where its folder is" in reasons(folder, **some)[clashing]


def test_the_answer_is_the_same_every_time(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    write(folder, {f"{number:03}": "x" * number for number in range(60)})
    options: dict[str, object] = {"paths": ["**"], "max_total_bytes": 500}
    assert selected(folder, **options) == selected(folder, **options)
    assert sum(one.size for one in selected(folder, **options).chosen) <= 500
