"""What the documents say is there, is there; what they tell to type can be typed."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sequencer import Run, extensions, open_project
from sequencer.errors import WaitsForPerson
from tests.clones import Shared, git
from tests.project.documents import (
    ROOT,
    Command,
    Fence,
    Ran,
    anchors,
    clean_environment,
    commands,
    ensure_shown,
    ensure_true,
    fences,
    inline_code,
    links,
    pages,
    prose,
    run_fences,
    run_region,
    shown,
)
from tests.project.printed_schema import has_key, schema
from tests.project.test_reference import GLOBAL, VARIABLES, VERBS, options
from tests.property.amounts import FACTOR

PAGES = pages()
FENCES = [fence for page in PAGES for fence in fences(page)]
RUN_PAGES = [
    page
    for page in PAGES
    # An example's page is run by the example's own test.
    if any(fence.is_run for fence in fences(page)) and not page.is_relative_to(ROOT / "examples")
]
OWN_FOLDERS = ("sequencer/", "docs/", "tests/", "examples/", "bench/", "packaging/", ".ci/")
BRANCHES = ("sequencer/default", "sequencer/NAME", "sequencer/**", "sequencer/{run}")
"""Of a remote, with the state of a run."""
_VARIABLE = re.compile(r"\bSEQUENCER_[A-Z_]*[A-Z]\b")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_SECTIONS = "|".join(
    key for key, field in schema()["properties"].items() if not field.get("deprecated")
)
OPTIONS = GLOBAL.union(*(options(verb, "--help-all") for verb in VERBS))
NOT_IN_SCHEMA = {"hooks.py", "step_defaults.retry"}
"""A file of a project, and a key that has its own place in the schema, `retry`."""
_KEY = re.compile(rf"(?:{_SECTIONS})(?:\.[a-z_]+)+")


def in_language(*languages: str) -> list[Fence]:
    return [fence for fence in FENCES if fence.language in languages]


def by_place(value: Fence | Path) -> str:
    return value.where if isinstance(value, Fence) else shown(value)


@pytest.mark.parametrize("page", PAGES, ids=by_place)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for where, target in links(page):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        goal = (page.parent / file).resolve() if file else page
        is_missing = not goal.exists() or (anchor and anchor not in anchors(goal))
        if is_missing or not goal.is_relative_to(ROOT):
            broken.append(f"{where}: {target}")
    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, to_read = set(), [ROOT / "README.md"]
    while to_read:
        page = to_read.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        targets = [target.partition("#")[0] for _, target in links(page)]
        to_read += [(page.parent / t).resolve() for t in targets if t and "://" not in t]
    assert {shown(page) for page in set(PAGES) - reached} == set()


@pytest.mark.parametrize("page", PAGES, ids=by_place)
def test_every_command_and_option_in_the_prose_exists(page: Path) -> None:
    known = OPTIONS | {"--option"}
    if page.name == "benchmarks.md":
        known |= set(_OPTION.findall((ROOT / "bench" / "__main__.py").read_text()))
    wrong = []
    for where, code in inline_code(page):
        words = code.split()
        if words[0] == "sequencer" and len(words) > 1 and not words[1].startswith("-"):
            is_known = words[1] in VERBS or words[1] == "COMMAND"
            wrong += [] if is_known else [f"{where}: {code}"]
        is_ours = words[0] == "sequencer" or words[0].startswith("--") or words[0] in VERBS
        unknown = [name for name in _OPTION.findall(code) if name not in known] if is_ours else []
        wrong += [f"{where}: {name}" for name in unknown]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=by_place)
def test_every_path_of_the_project_exists(page: Path) -> None:
    missing = [
        f"{where}: {code}"
        for where, code in inline_code(page)
        if code not in BRANCHES
        and code.startswith(OWN_FOLDERS)
        and not (ROOT / re.sub(r"/[A-Z]+$", "", code)).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=by_place)
def test_every_key_of_the_configuration_exists(page: Path) -> None:
    unknown = []
    for where, code in inline_code(page):
        if _KEY.fullmatch(code):
            path = code.split(".")
            # The library's page calls a run `run`, as its example does.
            is_member = path[0] == "run" and hasattr(Run, path[1])
            is_known = is_member or code in NOT_IN_SCHEMA or has_key(path)
            unknown += [] if is_known else [f"{where}: {code}"]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=by_place)
def test_every_variable_exists(page: Path) -> None:
    unknown = []
    for name in _VARIABLE.findall(page.read_text()):
        path = name.removeprefix("SEQUENCER_").lower().split("__")
        is_known = name in {*VARIABLES, "SEQUENCER_TRUST", FACTOR} or has_key(path)
        unknown += [] if is_known else [name]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=by_place)
def test_every_module_can_be_imported(page: Path) -> None:
    for _, code in inline_code(page):
        groups = {one for one in vars(extensions).values() if isinstance(one, str)}
        if re.fullmatch(r"sequencer(\.[a-z_]+)+", code) and code not in groups:
            module, _, name = code.rpartition(".")
            try:
                importlib.import_module(code)
            except ModuleNotFoundError:
                assert hasattr(importlib.import_module(module), name), code


@pytest.mark.parametrize("fence", in_language("yaml"), ids=by_place)
def test_every_piece_of_configuration_loads(fence: Fence, tmp_path: Path) -> None:
    text = fence.text
    if "agents:" not in text:
        # A piece of a page may name the agents that another piece of it defines.
        others = [f.text for f in in_language("yaml") if f.page == fence.page]
        text += next((other for other in others if other.startswith("agents:")), "")
    (tmp_path / "orchestration.yaml").write_text(text)
    for other in (f for f in FENCES if f.page == fence.page and f.file is not None):
        (tmp_path / str(other.file)).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / str(other.file)).write_text(other.text)
    settings = open_project(tmp_path, environment={}, trust=True).settings
    assert settings.notices == (), fence.where


@pytest.mark.parametrize("fence", in_language("json"), ids=by_place)
def test_every_piece_of_json_is_json(fence: Fence) -> None:
    assert json.loads(fence.text)


@pytest.mark.parametrize(
    "fence",
    # A file of a page is run by the page's commands.
    [fence for fence in in_language("python") if not (fence.is_run and fence.file)],
    ids=by_place,
)
def test_every_piece_of_python_runs(fence: Fence, tmp_path: Path) -> None:
    config = "workflow: {name: procedure}\nagent: {default: rehearsal}\n"
    config += "workflows: {procedure: {steps: [supervisor, main, last]}}\n"
    (tmp_path / "orchestration.yaml").write_text(config)
    (tmp_path / "prompts").mkdir()
    for name in ("supervisor", "main", "last"):
        (tmp_path / "prompts" / f"{name}.md").write_text("Do it.\n")
    subprocess.run(
        [sys.executable, "-c", fence.text],
        cwd=tmp_path,
        env=clean_environment(tmp_path),
        check=True,
        timeout=60,
    )


@pytest.mark.slow(sample=5)
@pytest.mark.parametrize("page", RUN_PAGES, ids=by_place)
def test_the_commands_of_a_page_work_as_described(page: Path, tmp_path: Path) -> None:
    ensure_true(run_region(page, tmp_path))


def test_the_commands_of_readme_tutorial_and_how_tos_are_run() -> None:
    needs_more = {
        "docs/how-to/many-machines.md",  # a Temporal server; the tests of the fleet have one
        "docs/how-to/temporal-in-production.md",
        "docs/how-to/use-from-python.md",  # each piece of its Python is run
        "docs/how-to/windows-and-macos.md",
        "docs/coming-from/hoidn-orchestration.md",  # clones take these turns, see below
        "docs/cookbook/README.md",
    }
    folders = ("coming-from", "cookbook", "how-to")
    expected = {shown(page) for name in folders for page in (ROOT / "docs" / name).glob("*.md")}
    assert expected - needs_more <= {shown(page) for page in RUN_PAGES}
    assert {"README.md", "docs/tutorial.md"} <= {shown(page) for page in RUN_PAGES}


def test_a_page_that_shows_something_else_is_caught() -> None:
    command = Command("echo", ("one", "t…o"), "page:1")
    ensure_shown(Ran(command, 0, "zero\none\ntwo\n"))
    with pytest.raises(AssertionError, match=r"printed no 't…o'"):
        ensure_shown(Ran(command, 0, "two\none\n"))


@pytest.mark.parametrize("page", PAGES, ids=by_place)
def test_no_line_is_too_long_to_review(page: Path) -> None:
    long = [f"{shown(page)}:{n}" for n, line in prose(page) if len(line) > 240]
    is_table_heavy = shown(page).startswith("docs/reference/")
    assert is_table_heavy or long == []


def test_the_changelog_has_this_version() -> None:
    from sequencer import __version__  # noqa: PLC0415

    assert f"## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_every_folder_of_examples_is_listed() -> None:
    listed = (ROOT / "examples" / "README.md").read_text()
    folders = [entry.name for entry in os.scandir(ROOT / "examples") if entry.is_dir()]
    assert [name for name in folders if f"({name}/README.md)" not in listed] == []


# --- what the how-to says about turns that were taken on the branch of the code, typed in clones

PAGE = ROOT / "docs" / "coming-from" / "hoidn-orchestration.md"


def as_theirs(folder: Path) -> Shared:
    """Make a repository in which the state is tracked on the branch of the code."""
    shared = Shared(folder)
    first = shared.clone("first")
    (first / ".gitignore").write_text("logs/\n")
    for name in ("prompts", "sync"):
        (first / name).mkdir()
    for name in ("supervisor", "main"):
        (first / "prompts" / f"{name}.md").write_text(f"# {name}\n")
    state = {"iteration": 7, "expected_actor": "ralph", "status": "waiting-ralph"}
    (first / "sync" / "state.json").write_text(json.dumps(state))
    (first / "orchestration.yaml").write_text("agent: {default: rehearsal}\n")
    git(first, "add", ".")
    git(first, "commit", "-q", "-m", "as it is there")
    git(first, "push", "-q", "origin", "HEAD:main")
    return shared


def typed(folder: Path, place: int) -> dict[str, int]:
    """Type the commands of block *place* of the page's last section; return how each ended."""
    blocks = [fence for fence in fences(PAGE) if fence.language == "console"]
    ended = {}
    for command in commands(blocks[place]):
        done = subprocess.run(
            ["bash", "-c", command.text],
            cwd=folder,
            env=clean_environment(folder.parent),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        ended[command.text] = done.returncode
        assert "Traceback" not in done.stderr
    return ended


@pytest.mark.slow
def test_two_clones_switch_over_as_the_page_describes(tmp_path: Path) -> None:
    shared = as_theirs(tmp_path)
    a, b = shared.clone("a"), shared.clone("b")
    for clone in (a, b):
        git(clone, "branch", "-q", "--set-upstream-to=origin/main")
    first = typed(a, -2)
    # It says what is wrong, and the next line is what it says.
    assert {text for text, code in first.items() if code} == {"sequencer check"}
    assert first["sequencer check"] == 2
    (b / "sync" / "state.json").write_text('{"as": "a poll had left it"}')
    assert set(typed(b, -1).values()) == {0}
    heads = [json.loads((clone / "sync" / "state.json").read_text()) for clone in (a, b)]
    assert [head["step_index"] for head in heads] == [14, 15]
    assert heads[0]["run_id"] == heads[1]["run_id"]
    assert git(b, "ls-files", "sync") == "sync/.gitignore"


# --- the README's setup can be typed, and its test command is the one that CI ends with --------

README = ROOT / "README.md"
TEST_COMMAND = "python -m pytest -q -n 4"
FIRST_SCREEN_LINES = 12
"""Of a README's source, on a page that a browser shows at 1280 by 800."""


def setup_blocks() -> list[Fence]:
    return [fence for fence in fences(README) if fence.language == "sh"]


def setup_lines() -> tuple[str, str, str]:
    (clone, demo), (test,) = (fence.lines for fence in setup_blocks())
    return clone, demo, test


@pytest.mark.parametrize("fence", setup_blocks(), ids=["main job", "tests"])
def test_the_setup_commands_work_in_every_common_shell(fence: Fence) -> None:
    shells = [shell for shell in ("bash", "dash", "zsh") if shutil.which(shell)]
    assert "bash" in shells
    for shell in shells:
        subprocess.run([shell, "-n", "-c", fence.text], check=True, timeout=10)
    # zsh takes a bare [test] for a pattern.
    assert "'.[test]'" in fence.text or "[" not in fence.text


def test_the_setup_commands_need_only_python_git_and_pip() -> None:
    clone, *others = setup_lines()
    assert [part.split()[0] for part in clone.split("&&")] == ["git", "cd"]
    for line in others:
        programs = [shlex.split(part)[0] for part in line.split("&&")]
        made = {".", ".venv/bin/pip", ".venv/bin/sequencer", "pip", "python"}
        assert programs[0] == "python3", programs
        assert set(programs[1:]) <= made, programs


def test_the_first_screen_has_the_clone_and_the_demo_of_an_installed_package() -> None:
    parts = [part.strip() for part in setup_lines()[1].split("&&")]
    assert parts[1:] == [".venv/bin/pip install .", ".venv/bin/sequencer demo"]
    assert setup_blocks()[0].line <= FIRST_SCREEN_LINES
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"sequencer": "sequencer.cli:main"}


def test_a_position_is_explained_before_it_is_used() -> None:
    text = README.read_text()
    assert text.index("A **position** is a place in that cycle") < text.index("--position")


def test_the_extra_that_the_tests_need_is_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert "test" in extras
    assert any(name.startswith("pytest-xdist") for name in extras["test"]), "for -n 4"


def test_ci_ends_with_the_readmes_test_command() -> None:
    last = setup_lines()[2].split("&&")[-1].strip()
    script = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.strip()]
    assert last == TEST_COMMAND
    assert script[-1] == TEST_COMMAND
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=True, timeout=10)


def test_the_quick_start_is_short() -> None:
    shown = [fence for fence in fences(README) if fence.is_run]
    assert 5 <= sum(len(fence.lines) for fence in shown) <= 20


@pytest.mark.slow
def test_the_section_about_flowcharts_works_as_printed(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    left = shutil.ignore_patterns("sync", "logs")
    shutil.copytree(ROOT / "examples", clone / "examples", ignore=left)
    (shown,) = [one for one in fences(README) if "sequencer run code-review" in one.text]
    ran = run_fences([shown], clone)
    waits = [one.command.text for one in ran if one.exit_code == WaitsForPerson.exit_code]
    assert [one.command.text for one in ran if one.exit_code not in (0, 4)] == []
    assert waits == ["sequencer run code-review --state base=main", "sequencer run code-review"]
    assert "the run is completed after 7 steps" in ran[-1].output
    assert "Is the report right?" in ran[-3].output


def test_the_promise_comes_before_the_quick_start() -> None:
    text = README.read_text()
    promise = text.index("exactly-once; agent runs are at-least-once")
    assert promise < text.index("Not guaranteed") < text.index("## Quick start")
    for sentence in (
        "No state is ever guessed",
        "Nothing runs forever by accident",
        "Waiting is free",
    ):
        assert promise < text.index(sentence) < text.index("Not guaranteed")


def test_the_markers_are_explained() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    markers = [marker.partition(":")[0] for marker in options["markers"]]
    assert [m for m in markers if f"python -m pytest -m {m}" not in page] == []


def test_the_license_is_the_one_that_the_package_names() -> None:
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")
    assert "MIT license" in README.read_text()
    assert Path(ROOT / "pyproject.toml").read_text().count('license = "MIT"') == 1


def test_the_comparison_is_complete_and_names_its_sources() -> None:
    text = README.read_text()
    start = text.index("| | `while` loop")
    rows = [row.strip("|").split("|") for row in text[start:].partition("\n\n")[0].splitlines()]
    assert {len(row) for row in rows} == {6}
    assert [row[0] for row in rows[1:] if not all(cell.strip() for cell in row)] == []
    sources = re.findall(r"github\.com/([\w/-]+)/tree/[0-9a-f]{40}\)", text)
    assert sources == ["mikeyobrien/ralph-orchestrator", "dagucloud/dagu"]


def test_every_picture_exists_and_was_generated_by_a_command() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README.read_text())
    makers = "".join(path.read_text() for path in (ROOT / "tests" / "pictures").glob("*.py"))
    makers += (ROOT / "CONTRIBUTING.md").read_text()
    assert len(pictures) >= 4
    assert [one for one in pictures if not (ROOT / one).is_file()] == []
    assert [one for one in pictures if Path(one).stem not in makers] == []


def test_the_number_of_documented_commands_run_does_not_shrink() -> None:
    run = sum(len(commands(fence)) for fence in in_language("console") if fence.is_run)
    assert run >= 338, f"only {run} commands are in regions that a test runs"


_CODE_NAME = re.compile(r"`(?:[A-Za-z]\w*\.)*(\w+)`")


def unknown_names(page: str) -> list[str]:
    """Return the names in backticks on *page* that are no word of the program."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "sequencer").rglob("*.py"))
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    return sorted({name for name in _CODE_NAME.findall(page) if name not in words})


def test_names_on_the_page_of_the_architecture_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert unknown_names(page) == []
    assert unknown_names("`Run.does_not_exist` of `Run.head` and `next_move`") == ["does_not_exist"]
