"""What the documents say is there, is there; what they tell to type can be typed."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from sequencer.cli.context import Invocation
from sequencer.cli.program import COMMANDS, group
from sequencer.documents.keys import annotation_at
from sequencer.documents.reader import KeyPath
from sequencer.engine.run import Run
from sequencer.settings.schema import Schema
from sequencer.settings.settings import load
from sequencer.settings.sources import IDENTITY_VARIABLES, PREFIX
from sequencer.settings.trust import VARIABLE
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
    run_region,
    shown,
)
from tests.property.amounts import FACTOR

PAGES = pages()
FENCES = [fence for page in PAGES for fence in fences(page)]
RUN_PAGES = [
    page
    for page in PAGES
    # An example's page is run by the example's own test.
    if any(fence.is_run for fence in fences(page)) and not page.is_relative_to(ROOT / "examples")
]
OWN_FOLDERS = ("sequencer/", "docs/", "tests/", "examples/", "bench/", ".ci/")
BRANCHES = ("sequencer/default", "sequencer/NAME", "sequencer/**", "sequencer/{run}")
"""Of a remote, with the state of a run."""
_VARIABLE = re.compile(r"\bSEQUENCER_[A-Z_]*[A-Z]\b")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_SECTIONS = "|".join(Schema.model_fields)
_KEY = re.compile(rf"(?:{_SECTIONS})(?:\.[a-z_]+)+")


def in_language(*languages: str) -> list[Fence]:
    return [fence for fence in FENCES if fence.language in languages]


def by_place(value: Fence | Path) -> str:
    return value.where if isinstance(value, Fence) else shown(value)


def sequencer_arguments(text: str) -> list[list[str]]:
    """Return the arguments of each call of sequencer in a command line."""
    found = []
    for part in re.split(r"&&|\|\||[|;()]| &", text):
        words = shlex.split(part.partition(" > ")[0], comments=True)
        if words and Path(words[0]).name == "sequencer":
            found.append(words[1:])
    return found


def parse(arguments: list[str]) -> None:
    """Parse *arguments* with the real commands, without running anything."""
    root = group()
    with root.make_context("sequencer", list(arguments), obj=Invocation()) as context:
        name, command, rest = root.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert command is not None, name
        with command.make_context(name, rest, parent=context):
            pass


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


@pytest.mark.parametrize("fence", in_language("console", "sh"), ids=by_place)
def test_every_command_in_a_block_parses(fence: Fence) -> None:
    for command in commands(fence):
        for arguments in sequencer_arguments(command.text):
            try:
                parse(arguments)
            except click.UsageError as error:
                pytest.fail(f"{command.where}: {command.text}: {error.format_message()}")


def test_the_parser_of_commands_refuses_what_is_wrong() -> None:
    parse(["run", "--max-steps", "4"])
    for wrong in (["run", "--max-stepz", "4"], ["next", "--count", "many"], ["status", "x", "y"]):
        with pytest.raises(click.UsageError):
            parse(wrong)


@pytest.mark.parametrize("page", PAGES, ids=by_place)
def test_every_command_and_option_in_the_prose_exists(page: Path) -> None:
    options = {
        name
        for verb in COMMANDS
        if (command := group().get_command(click.Context(click.Command("x")), verb))
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    options |= {"--help", "--option"}
    if page.name == "benchmarks.md":
        options |= set(_OPTION.findall((ROOT / "bench" / "__main__.py").read_text()))
    wrong = []
    for where, code in inline_code(page):
        words = code.split()
        if words[0] == "sequencer" and len(words) > 1 and not words[1].startswith("-"):
            is_known = words[1] in COMMANDS or words[1] == "COMMAND"
            wrong += [] if is_known else [f"{where}: {code}"]
        is_ours = words[0] == "sequencer" or words[0].startswith("--") or words[0] in COMMANDS
        unknown = [name for name in _OPTION.findall(code) if name not in options] if is_ours else []
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
            path: KeyPath = tuple(code.split("."))
            # The library's page calls a run `run`, as its example does.
            is_member = path[0] == "run" and hasattr(Run, str(path[1]))
            is_known = is_member or annotation_at(Schema, path) is not None
            unknown += [] if is_known else [f"{where}: {code}"]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=by_place)
def test_every_variable_exists(page: Path) -> None:
    unknown = []
    for name in _VARIABLE.findall(page.read_text()):
        path: KeyPath = tuple(name.removeprefix(PREFIX).lower().split("__"))
        is_known = (
            name in {*IDENTITY_VARIABLES, VARIABLE, FACTOR}
            or annotation_at(Schema, path) is not None
        )
        unknown += [] if is_known else [name]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=by_place)
def test_every_module_can_be_imported(page: Path) -> None:
    for _, code in inline_code(page):
        added = ("commands", "executors", "kinds", "stores")
        groups = {f"sequencer.{group}" for group in added}
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
    settings = load(tmp_path, env={})
    assert settings.notices == (), fence.where


@pytest.mark.parametrize("fence", in_language("json"), ids=by_place)
def test_every_piece_of_json_is_json(fence: Fence) -> None:
    assert json.loads(fence.text)


@pytest.mark.parametrize("fence", in_language("python"), ids=by_place)
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


@pytest.mark.parametrize("page", RUN_PAGES, ids=by_place)
def test_what_a_page_runs_works_as_it_says(page: Path, tmp_path: Path) -> None:
    ensure_true(run_region(page, tmp_path))


def test_the_readme_and_the_tutorial_are_run() -> None:
    assert [shown(page) for page in RUN_PAGES] == [
        "README.md",
        "docs/how-to/answer-a-flow.md",
        "docs/how-to/checks-as-steps.md",
        "docs/how-to/draw-a-flow-and-run-it.md",
        "docs/how-to/gantt.md",
        "docs/how-to/metrics.md",
        "docs/how-to/teams.md",
        "docs/how-to/trust-a-project.md",
        "docs/how-to/two-machines.md",
        "docs/tutorial.md",
    ]


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
