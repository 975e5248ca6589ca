"""Names made to leave a folder, to be mixed up, or to be taken for a command."""

from __future__ import annotations

import json
import shutil
import unicodedata
from pathlib import Path

import pytest
from hypothesis import strategies as st

from sequencer import Outcome, OutcomeStatus, Step
from sequencer.engine.logs import StepLogs, log_name, steps_folder
from sequencer.errors import UnknownName, UnsafePath
from sequencer.files.textfile import slug
from sequencer.workflows.prompts import PromptReader
from tests.property.amounts import FEW, PART, for_all, in_memory
from tests.unit.cli.calling import call
from tests.unit.saying import attempt

MAX_BYTES = 255
"""What a file system takes for one component."""

marks = st.sampled_from(
    ["..", "/", "\\", ".", "-", "--", "~", " ", "\0", "\n", "\u2028", "\u202e", "\uff0e", "\u2215"]
)
letters = st.sampled_from(
    ["a", "A", "ä", "a\u0308", "ß", "SS", "\u0131", "İ", "K", "\u212a", "ﬁ", "con"]
)
names = st.one_of(
    st.lists(marks | letters, min_size=1, max_size=8).map("".join),
    st.text(min_size=1, max_size=20),
    st.text(min_size=1, max_size=2).map(lambda text: text * 200),
    st.sampled_from(["../../etc/passwd", "-rf", "/etc/passwd", "nul", "a--217d2bf51f16e9dc"]),
)


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


def test_no_spelling_of_an_outside_path_reads_a_file(tmp_path: Path) -> None:
    prompts = tmp_path / "project" / "prompts"
    prompts.mkdir(parents=True)
    secret = tmp_path / "project" / "secret.md"
    secret.write_text("the canary")
    (prompts / "Main.md").write_text("inside")
    ways = st.sampled_from(
        [str(secret), str(secret.with_suffix("")), "secret.md", "../secret", "..\\secret.md"]
    )
    before = st.lists(marks | st.just("prompts"), max_size=4).map("".join)
    after = st.lists(marks | st.just("main.md"), max_size=3).map("".join)

    def check(start: str, way: str, end: str) -> None:
        with pytest.raises((UnsafePath, UnknownName)) as refused:
            PromptReader(prompts).read(start + way + end)
        assert refused.value.exit_code == 2
        assert "the canary" not in str(refused.value)

    for_all(check, before, ways, after, examples=PART)


# --- names that would be commands --------------------------------------------------

WRAPS = [
    "$(touch {})",
    "`touch {}`",
    "; touch {};",
    "a\ntouch {}\n",
    "a'; touch {}; '",
    'a"; touch {}; "',
    "| touch {}",
    "&& touch {} #",
    "-c touch {}",
    "--output={}",
    "> {}",
    "${{IFS}}$(touch {})",
    "{{{{prompt_file}}}} {}",
]
AGENT = 'printf "%s\\0" "$@" "$SEQUENCER_STEP" "$SEQUENCER_RUN_NAME" >> received\n'


def begin(folder: Path, step: str, model: str, branch: str) -> Path:
    """Write a project whose every name is hostile."""
    (folder / "prompts").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text(f"ref: refs/heads/{branch}\n")
    (folder / "prompts" / "main.md").write_text("Do it.\n")
    (folder / "agent.sh").write_text(AGENT)
    document = {
        "workflow": {"name": "mine"},
        "workflows": {"mine": {"steps": [{"name": step, "prompt": "main", "model": model}]}},
        "agent": {"default": "scribe"},
        "agents": {"scribe": {"kind": "command", "argv": ["sh", "agent.sh", "{model}"]}},
    }
    (folder / "orchestration.yaml").write_text(json.dumps(document))
    return folder


def test_a_name_is_never_a_command(tmp_path: Path) -> None:
    with in_memory() as place:
        # Every name contains its path, and names have a maximum length.
        try_hostile_names(tmp_path, place / "canary")


def try_hostile_names(folder_of_projects: Path, canary: Path) -> None:
    made = iter(range(10**6))
    payloads = st.builds(
        lambda start, wrap, end: start + wrap.format(canary) + end,
        st.sampled_from(["", "-", "x "]),
        st.sampled_from(WRAPS),
        st.sampled_from(["", "!", " *"]),
    )
    received = 0

    def check(step: str, model: str, run: str, branch: str) -> None:
        nonlocal received
        folder = begin(folder_of_projects / str(next(made)), step, model, branch)
        ran = call(folder, "run", f"--run={run}", "--max-steps", "1")
        for verb in ("status", "history", "plan"):
            looked = call(folder, verb, f"--run={run}")
            assert looked.code != 70, looked.err
        assert not canary.exists()
        if "\n" in step + model or model.startswith("-"):
            # A name is one line, and the program would take the model for an option.
            assert ran.code == 2, ran.err
            assert not (folder / "received").exists()
            return
        assert ran.code in (0, 2), ran.err
        if ran.code == 0:
            received += 1
            found = (folder / "received").read_bytes().decode().split("\0")
            assert found[:2] == [model, step]
        assert {path.name for path in folder.iterdir()} <= {
            ".git",
            "prompts",
            "agent.sh",
            "orchestration.yaml",
            "received",
            "sync",
            "logs",
        }

    for_all(check, payloads.map(lambda text: text[:100]), *[payloads] * 3, examples=FEW)
    assert received
