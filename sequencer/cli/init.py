"""`init`: create the files of a new project. Existing files are never changed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template

import click
from msgspec import Struct, field

from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.errors import ConfigurationError, UnknownName, UsageRefused
from sequencer.files.regular import read_bytes
from sequencer.files.textfile import CONFIG_NAME, SCHEMA_NAME
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.project.agents import CLIENTS
from sequencer.project.project import open_project
from sequencer.project.settings import Settings, load
from sequencer.store import folder as folders
from sequencer.store.identity import is_inside_agent
from sequencer.workflows.prompts import relative_name


class _ProjectFiles(Struct):
    """The files of the project in *folder*, and what to print about them; names are relative."""

    folder: Path
    created_names: list[str] = field(default_factory=list)
    kept_names: list[str] = field(default_factory=list)
    """Files that existed already."""
    missing_names: list[str] = field(default_factory=list)
    """Prompts that a workflow needs and that only its author can write."""
    notes: list[str] = field(default_factory=list)
    detection_line: str = ""
    """The machine's agents and the project's tests."""
    next_commands: str = "sequencer check, then sequencer run --max-steps 2"
    advice: str = ""
    """Shown before these commands."""

    def keep(self, path: Path) -> None:
        """Note that the existing file *path* stays as it is, unless `init` has created it."""
        name = os.path.relpath(path, self.folder)
        # The files of an example and the prompts of its workflow are partly the same.
        if name not in self.created_names and name not in self.kept_names:
            self.kept_names.append(name)

    def write(self, path: Path, text: str) -> None:
        """Create *path* with *text*, or keep an existing file.

        Raises:
            UsageRefused: the file can't be written.
        """
        name = os.path.relpath(path, self.folder)
        if name in self.created_names:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Mode "x" also refuses a link, even one whose target is missing.
            with path.open("x", encoding="utf-8") as file:
                self.created_names.append(name)
                file.write(text)
        except FileExistsError as error:
            if not path.parent.is_dir():
                raise _make_refusal(error, path.parent) from error
            self.keep(path)
        except OSError as error:
            raise _make_refusal(error, path) from error

    def undo(self) -> None:
        """Remove the created files, and their folders that are empty then.

        Otherwise the next `init` would keep a half-written file.
        """
        for name in reversed(self.created_names):
            path = self.folder / name
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                path.parent.rmdir()


def _make_refusal(error: OSError, path: Path) -> UsageRefused:
    reason = "it is not a folder" if isinstance(error, FileExistsError) else error.strerror
    return UsageRefused(f"can't be written: {reason}", where=str(path))


@verb("init")
@click.argument(
    "folder", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path)
)
@click.option("--example", metavar="NAME", help="Copy this example instead.")
@pass_invocation
def init(invocation: Invocation, folder: Path, example: str | None) -> None:
    """Create orchestration.yaml and prompts/ in DIR (default: here), ready to run.

    It asks nothing. It finds the installed agents, and the command that tests the project.
    It keeps existing files, so you can run it again to add what is missing. If there is an
    orchestration.yaml, it adds the prompts that its workflow needs.
    Examples: two-terminals, review-cadence, cron, flows, procedures, teams.

    \b
    Examples:
      sequencer init
      sequencer init ../other --example two-terminals
    """
    if invocation.config is not None or invocation.run_name is not None:
        raise UsageRefused(
            "--config and --run can't be used with init",
            hint="name the folder: 'sequencer init DIR'",
        )
    project_files = _ProjectFiles(folder.absolute())
    try:
        if example is not None:
            _copy(project_files, example)
        _init(project_files)
    except BaseException:
        project_files.undo()
        raise
    if invocation.is_json:
        facts = {
            "folder": str(project_files.folder),
            "created": project_files.created_names,
            "kept": project_files.kept_names,
            "missing": project_files.missing_names,
        }
        invocation.print_json(facts)
    else:
        suffix = " (write it: no prompt with this name is built in)"
        lines = [project_files.detection_line] if project_files.detection_line else []
        lines += [f"created  {name}" for name in project_files.created_names]
        lines += [f"kept     {name}" for name in project_files.kept_names]
        lines += [f"missing  {name}{suffix}" for name in project_files.missing_names]
        for line in lines:
            invocation.echo(line)
    for note in project_files.notes:
        invocation.notify(f"notice: {note}")
    if not invocation.is_json:
        location = "" if folder == Path() else f"cd {folder} && "
        invocation.notify(f"next: {project_files.advice}{location}{project_files.next_commands}")


def _init(project_files: _ProjectFiles) -> None:
    config = project_files.folder / CONFIG_NAME
    is_new = not os.path.lexists(config)
    if is_new:
        clients = [client for client in CLIENTS if shutil.which(client)]
        if not clients and not os.environ.get(KEY):
            project_files.advice, project_files.next_commands = (
                NO_AGENT,
                "sequencer run --rehearse --max-steps 2",
            )
        command = find_test_command(project_files.folder)
        project_files.write(config, format_configuration(clients, command))
        agents = ", ".join(clients) or "none"
        project_files.detection_line = (
            f"found    agents: {agents}; tests: {' '.join(command) or 'none'}"
        )
    else:
        project_files.keep(config)
    settings = load(project_files.folder, config=config, env={})
    if SCHEMA_NAME.encode() in read_bytes(config):
        # The first line of the configuration names the schema, which editors read.
        project_files.write(
            project_files.folder / SCHEMA_NAME, _read_built_in("orchestration.schema.json")
        )
    _write_prompts(project_files, settings, settings.registry.get(settings.workflow.name))
    if CONFIG_NAME in project_files.created_names:
        _trust(project_files)
    for kind, path in (("state", settings.state_file.parent), ("logs", settings.logs_dir)):
        _write_ignore(project_files, settings, kind, path)


def _copy(project_files: _ProjectFiles, example: str) -> None:
    """Write the files of *example* into the folder; the originals are never run."""
    if example not in EXAMPLES:
        raise UnknownName("example", example, EXAMPLES, where="--example")
    if os.path.lexists(project_files.folder / CONFIG_NAME):
        hint = f"name another folder, for example 'sequencer init {example}'"
        raise UsageRefused(
            "this folder already has a project", where=str(project_files.folder), hint=hint
        )
    source = Path(str(files("sequencer"))).joinpath("builtin", "examples", example)
    excluded_names = {"sync", "logs", "__pycache__"}
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if path.is_file() and excluded_names.isdisjoint(name.parts):
            text = path.read_text(encoding="utf-8")
            if path.name == "README.md":
                # Links to files outside of the example would be broken: those are not copied.
                text = _LINK_OUT.sub(r"\1", text)
            project_files.write(project_files.folder / name, text)
    project_files.next_commands = f"{EXAMPLES[example]}; README.md explains it"


def _trust(project_files: _ProjectFiles) -> None:
    """Trust the project if only files that `init` created can act; otherwise leave a note."""
    if is_inside_agent():
        return
    config = project_files.folder / CONFIG_NAME
    trust = open_project(project_files.folder, config=config, environment={}).trust
    prefixes = ("agents.", "activity.") if not project_files.kept_names else "agents."
    acts = trust.acts
    is_ours = all(line.startswith(prefixes) for line in acts.lines)
    flows = set[str]() if acts.recorded is None else acts.recorded.granting_files
    is_ours = is_ours and flows <= {*project_files.created_names}
    if is_ours and all(_has_only_our_files(line, project_files) for line in acts.lines):
        trust.save_record()
    else:
        project_files.notes.append(
            "more than what 'init' wrote can act here: 'sequencer trust' shows it"
        )


def _has_only_our_files(line: str, project_files: _ProjectFiles) -> bool:
    """Return whether *line*, from the list of acts, names no file but those that `init` created."""
    _, is_file, file_part = line.partition(", file ")
    return not is_file or file_part.startswith(tuple(f"{n}: " for n in project_files.created_names))


def _write_prompts(project_files: _ProjectFiles, settings: Settings, workflow: Workflow) -> None:
    texts, prompts = prompt_texts(), dict[str, str]()
    if settings.router.prompt is not None:
        prompts[relative_name(settings.prompts_dir, settings.router.prompt)] = texts[ROUTER_PROMPT]
    for step in _prompted_steps(settings, workflow):
        name = relative_name(settings.prompts_dir, step.prompt_name)
        # A step with the name of a built-in prompt gets that text, under its own prompt's name.
        prompts[name] = texts.get(name) or texts.get(f"{step.name}.md", "")
    for name in sorted(prompts):
        path = settings.prompts_dir / name
        # A cloned project may name any folder for its prompts; write nothing outside the project.
        if prompts[name] and path.is_relative_to(settings.project_dir):
            project_files.write(path, prompts[name])
        elif not path.exists():
            project_files.missing_names.append(os.path.relpath(path, project_files.folder))
        else:
            project_files.keep(path)


def _prompted_steps(settings: Settings, workflow: Workflow) -> Iterator[Step]:
    """Yield the steps that can't run without a prompt file."""
    for step in workflow.own_steps:
        if step.text is not None:
            continue
        agent = settings.agents.get(step.agent or "")
        if step.prompt is not None or agent is None or agent.kind != "command":
            yield step


def _write_ignore(
    project_files: _ProjectFiles, settings: Settings, kind: str, folder: Path
) -> None:
    our_folders = (settings.project_dir, settings.prompts_dir)
    if any(path == folder or folder in path.parents for path in our_folders):
        # Ignoring everything there would hide the project itself from git.
        project_files.notes.append(
            f"the {kind} files are in {folder}: add them to .gitignore by hand"
        )
        return
    try:
        folders.make_folder(folder)
    except OSError as error:
        raise _make_refusal(error, folder) from error
    is_foreign = any(
        not entry.name.startswith(("state.json", "journal", ".git")) and entry.is_file()
        for entry in folder.iterdir()
    )
    if is_foreign and not (folder / ".gitignore").exists():
        project_files.notes.append(f"{folder} has other files, so no .gitignore was written")
        return
    project_files.write(folder / ".gitignore", IGNORE_ALL)


ROUTER_PROMPT = "router.md"
IGNORE_ALL = "# What a run writes belongs to this machine.\n*\n!.gitignore\n!.gitkeep\n"
EXAMPLES = {
    "two-terminals": "sequencer run --position supervisor --max-steps 3, and in another terminal "
    "sequencer run --position main --max-steps 3",
    "review-cadence": "sequencer plan --count 6, then sequencer run --max-steps 6",
    "cron": "sequencer tick, then sequencer status",
    "flows": "sequencer run code-review --state base=main, then sequencer inbox",
    "procedures": 'sequencer start "Debug login timeout" --label bug, then sequencer inbox',
    "teams": "sequencer plan greeting, then sequencer run greeting",
}
"""Example -> the commands to type first."""
_LINK_OUT = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")
KEY = "ANTHROPIC_API_KEY"
"""If this variable is set, `auto` finds an agent that needs no program."""
GIT = ("git status", "git diff", "git log", "git add", "git commit")
TESTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("pyproject.toml", "pytest", ("python", "-m", "pytest")),
    ("pytest.ini", "", ("python", "-m", "pytest")),
    ("package.json", r'"test"\s*:', ("npm", "test")),
    ("Cargo.toml", "", ("cargo", "test")),
    ("go.mod", "", ("go", "test", "./...")),
    ("pom.xml", "", ("mvn", "test")),
    ("Makefile", r"(?m)^test:", ("make", "test")),
)
"""(project file, pattern in that file, command that runs the tests)."""


def find_test_command(folder: Path) -> tuple[str, ...]:
    """Return the command for the tests of the project in *folder*; empty: none found.

    Nothing from the project is run.
    """
    for name, pattern, command in TESTS:
        with contextlib.suppress(ConfigurationError):
            if re.search(pattern, read_bytes(folder / name).decode("utf-8", "replace")):
                return command
    return ()


COMMENT_COLUMN = 40


def format_configuration(clients: Sequence[str], tests: Sequence[str] = ()) -> str:
    """Return orchestration.yaml for a machine with *clients* and a project with *tests*."""
    commands = [*GIT, *([" ".join(tests)] if tests else [])]
    tools = {
        "claude": ", ".join(f'"Bash({command} *)"' for command in commands),
        "opencode": ", ".join(f'"{command}*": allow' for command in commands),
    }
    text = Template(_read_built_in("init", "agents.yaml")).substitute(tools)
    entries = re.findall(r"(?m)^\w+:.*\n(?:  .*\n)*", text)
    client_entries = [entry for entry in entries if entry.partition(":")[0] in clients]
    if tests:
        client_entries.append(f"tests: {{kind: command, argv: [{', '.join(tests)}], free: true}}\n")
    lines = "".join(client_entries).splitlines()
    agents = "agents:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""
    comment = f"   # installed too: {', '.join(clients[1:])}" if clients[1:] else ""
    # A cap on the cost works only if the agent reports every cost.
    is_priced = list(clients[:1]) == ["claude"]
    limits = f"limits: {{{'cost_usd: 50, ' if is_priced else ''}steps: 500}}"
    return (
        Template(_read_built_in("init", "orchestration.yaml"))
        .substitute(
            schema=SCHEMA_NAME,
            agent=f"{clients[0]}{comment}" if clients else "auto   # " + NO_CLIENT,
            limits=f"{limits:<{COMMENT_COLUMN}}",
            agents=agents,
        )
        .rstrip()
        + "\n"
    )


NO_AGENT = "install claude, codex, gemini or opencode; or try it without one: "
NO_CLIENT = "install claude, codex, gemini or opencode; 'sequencer run --rehearse' needs none"


def _read_built_in(*path: str) -> str:
    return files("sequencer").joinpath("builtin", *path).read_text(encoding="utf-8")


@cache
def prompt_texts() -> dict[str, str]:
    """Return the prompts that come with the program, by file name."""
    names = (entry.name for entry in files("sequencer").joinpath("builtin", "prompts").iterdir())
    return {name: _read_built_in("prompts", name) for name in sorted(names) if name.endswith(".md")}
