"""Logs of steps and branches with names made to leave the folder of logs, or to be mixed up."""

from __future__ import annotations

import shutil
import unicodedata
from pathlib import Path

from hypothesis import strategies as st

from sequencer.engine.logs import StepLogs, log_name, steps_folder
from sequencer.files.textfile import slug
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Step
from tests.property.amounts import PART, for_all, in_memory
from tests.unit.hostile_names import names
from tests.unit.saying import attempt

MAX_BYTES = 255
"""What a file system takes for one component."""


def twins(name: str) -> list[str]:
    """Return names that some file system takes for *name*."""
    forms = [unicodedata.normalize(form, name) for form in ("NFC", "NFD", "NFKC", "NFKD")]
    return [*forms, name.upper(), name.lower(), name.casefold(), name.swapcase(), name + "."]


def test_similar_names_have_different_slugs() -> None:
    def check(name: str) -> None:
        different = {name, *twins(name), slug(name).upper(), name[:-1], name + " "}
        folded = {unicodedata.normalize("NFKC", slug(one)).casefold() for one in different}
        assert len(folded) == len(different)
        for one in different:
            assert Path(slug(one)).parts == (slug(one),)
            assert slug(one) not in (".", "..")

    for_all(check, names, examples=PART)


def test_the_path_of_a_log_stays_in_its_folder() -> None:
    logs = Path("/project/logs")

    def check(branch: str, run: str | None, step: str, index: int, attempt: int) -> None:
        name = log_name(index, step, attempt)
        path = steps_folder(logs, branch, run) / name
        parts = path.relative_to(logs).parts
        assert parts[-1] == name
        assert parts[-2] == "steps"
        assert len(parts) == (5 if run else 3)
        for part in parts:
            assert part not in (".", "..")
            assert part.isascii()
            assert part.isprintable()
            assert len(part) <= MAX_BYTES
            assert not part.startswith("-")
        assert name.startswith(f"iter-{index + 1:05d}_{slug(step)}.")

    indexes = st.integers(0, 2**63 - 2)
    attempts = st.integers(0, 2**63)
    for_all(check, names, st.none() | names, names, indexes, attempts, examples=PART)


def tree(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_dir()}


def test_a_log_is_written_only_in_its_folder() -> None:
    with in_memory() as folder:
        ensure_logs_stay_in_their_folder(folder)


def ensure_logs_stay_in_their_folder(folder: Path) -> None:
    project = folder / "outer" / "project"
    (project / ".git").mkdir(parents=True)
    warnings: list[str] = []
    git = project / ".git" / "HEAD"

    def check(branch: str, step: str) -> None:
        git.write_text(f"ref: refs/heads/{branch}\n", errors="surrogateescape")
        shutil.rmtree(project / "logs", ignore_errors=True)
        before = tree(folder)
        log = StepLogs(project / "logs", project, step, warn=warnings.append).open(
            attempt(
                Step.model_construct(name=step),
                agent="a",
                state_path=project / "state.json",
                result_path=project / "result.json",
            )
        )
        log.write(b"x")
        log.close(Outcome(status=OutcomeStatus.OK))
        assert warnings == []
        assert tree(folder) - before == {Path(log.path)}
        assert Path(log.path).resolve().is_relative_to(project / "logs")
        head, *rest = Path(log.path).read_text().split("\n")[:4]
        assert head.startswith("# step ")
        assert rest[1].startswith("# started ")

    branches = names.map(lambda name: name.encode("utf-8", "replace").decode())
    for_all(check, branches, names, examples=PART // 2)
