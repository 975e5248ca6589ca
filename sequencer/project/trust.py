"""Facts about what a project can do on this machine, to compare with what a person trusted.

They come only from the project's files, not from variables or flags. Collecting them imports
and starts nothing, and follows no link out of the project. A key that `rules` does not name
counts as one that acts.

Not promised: files that a trusted program reads or starts by itself (a Makefile, the tests) are
not compared.
"""

from __future__ import annotations

import ast
import hashlib
import math
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache, cached_property
from glob import escape
from itertools import islice, product
from pathlib import Path
from typing import Any

from msgspec import Struct, field, to_builtins

from sequencer.files.keys import iter_leaves
from sequencer.files.textfile import compute_digest
from sequencer.files.yamlfile import KeyPath, format_key_path
from sequencer.project.named_files import MAX_WORDS, find_module_paths, find_possible_paths
from sequencer.project.schema import AGENT_KINDS, Schema
from sequencer.project.sources import SECRET_KEY, flatten
from sequencer.project.step_facts import escape_non_ascii, format_cap, hide_secret, to_json_line
from sequencer.project.workflow_facts import Recorded, Workflows, format_path


class Rule(StrEnum):
    """What a change of a key means for trust."""

    ACTS = "acts"
    """Any change needs trust again."""
    CAP = "cap"
    """Raising or removing the cap needs trust again; lowering or adding it does not."""
    STEPS = "steps"
    """The values are compared step by step, see `workflow_facts`."""
    FREE = "free"
    """No change needs trust."""


_KEYS: Mapping[Rule, tuple[str, ...]] = {
    Rule.ACTS: (
        *("agents", "agents_may_decide", "hooks", "setup", "commit", "schedules", "plugins"),
        # They decide where files are read, written and removed.
        *("prompts_dir", "state_file", "logs_dir", "file_mode"),
        # Costs are estimated from these, so they decide when a cost cap applies.
        "prices",
        *("store.kind", "store.allow_network_fs", "store.remote", "store.branch", "store.work"),
        *("store.address", "store.namespace", "store.project", "store.queue"),
        *("store.tls", "store.api_key_env"),
        *("activity.sinks", "activity.comment_tools", "routing.classifier", "webhooks"),
        *("teams.merge", "teams.on_write", "teams.budget.on_hard"),
    ),
    Rule.CAP: (
        *("limits", "run.max_steps", "run.max_cycles", "run.max_cost_usd", "run.step_timeout_s"),
        *("run.max_parallel", "teams.max_size", "teams.max_tasks"),
        *("teams.max_failures", "teams.budget.max_cost_usd", "teams.budget.max_tokens"),
        *("commit.max_file_bytes", "commit.max_report_file_bytes", "commit.max_total_bytes"),
        "setup_timeout_s",
        *("commit.max_report_total_bytes", "commit.max_tracked_output_file_bytes"),
        "commit.max_tracked_output_total_bytes",
    ),
    Rule.STEPS: (
        "workflow",
        "workflows",
        "teams.roles",
        "steps",
        "review",
        "step_defaults",
        "retry",
        # They choose the agent of steps that don't name one, and its folder.
        *("agent", "worktree", "router.review_every_n"),
    ),
    Rule.FREE: (
        # They change only the text that an agent gets.
        *("supervisor_prompt", "main_prompt", "reviewer_prompt", "router"),
        *("routing", "store.ttl_s", "store.journal"),
        *("store.timeout_s", "store.retry_for_s", "store.poll", "store.max_commits"),
        *("commit.message", "logs.max_bytes", "activity.thoughts", "activity.min_interval_s"),
        *("activity.drain_s", "teams.enabled", "teams.threshold", "teams.classifications"),
        *("teams.lead_model", "teams.teammate_model", "teams.fallback_agent"),
        *("teams.fallback_model", "teams.score", "teams.budget.soft", "run.mode"),
        "run.max_wait_s",
    ),
}

_MAX_STEP_LINES = 20
_COST = "limits.cost_usd"
"""Listed even if it has its default: people look for the cost cap first."""


class Acts(Struct, frozen=True, dict=True):
    """The facts about what a project can do."""

    lines: tuple[str, ...]
    """One fact per line, sorted."""
    caps: Mapping[str, float]
    """Key -> the maximum that it allows, infinity for no cap."""
    files: Mapping[str, Mapping[Path, str]] = field(default_factory=dict)
    """Owner (``agents.NAME``, ``setup`` or ``hooks``) -> the files that it runs, with their
    fingerprints."""
    workflows: Workflows | None = None
    """The current workflows; None: these are the facts of a record."""
    kept: Recorded | None = None
    """The workflows in a record; None: it was written before workflows were compared."""

    @property
    def recorded(self) -> Recorded | None:
        """Return the facts of the workflows' steps, to store or compare."""
        return self.kept if self.workflows is None else self.workflows.recorded

    @cached_property
    def digest(self) -> str:
        """Return the fingerprint of all facts except the project's caps."""
        return compute_fingerprint(self.lines, (), self.recorded)

    @cached_property
    def summary(self) -> list[str]:
        """Return the facts to ask a person about; a long list has one line per workflow."""
        if self.workflows is None or len(list(self.workflows.lines)) <= _MAX_STEP_LINES:
            return self.described
        return self._list_facts(self.workflows.grouped)

    @property
    def described(self) -> list[str]:
        """Return every fact, for people."""
        return self._list_facts(() if self.workflows is None else self.workflows.lines)

    def _list_facts(self, steps: Iterable[str]) -> list[str]:
        """Return all facts including *steps*, but only the caps that differ from the default."""
        default_caps = {name: _parse_cap(default) for name, default in _caps_by_default().items()}
        caps = [
            f"{name}: {format_cap(cap)}"
            for name, cap in self.caps.items()
            if name == _COST or cap != default_caps.get(name)
        ]
        return [*self.lines, *steps, *caps]

    def diff_from(self, trusted: Acts) -> list[str]:
        """Return what goes beyond *trusted*: ``- `` the trusted line, ``+ `` the current one."""
        removed_lines = [f"- {line}" for line in trusted.lines if line not in set(self.lines)]
        added_lines = [f"+ {line}" for line in self.lines if line not in set(trusted.lines)]
        changes = sorted(
            [*removed_lines, *added_lines],
            key=lambda text: (_get_line_key(text[2:]), text[0] == "+"),
        )
        if self.workflows is not None:
            for old_line, new_line in self.workflows.changes(trusted.recorded, trusted.caps):
                changes += [f"- {old_line}"] if old_line else []
                changes += [f"+ {new_line}"] if new_line else []
        for name, cap in self.caps.items():
            old_cap = trusted.caps.get(name, -math.inf)
            if cap > old_cap:
                changes += [f"- {name}: {format_cap(old_cap)}", f"+ {name}: {format_cap(cap)}"]
        return changes


def compute_fingerprint(lines: Iterable[str], grants: Iterable[str], steps: Recorded | None) -> str:
    """Return the fingerprint of a record; *grants* are lines that only old records have."""
    step_texts = () if steps is None else (to_json_line(to_builtins(steps.steps)),)
    text = "\n".join((*lines, *sorted(grants), *step_texts))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def list_acts(
    written: Mapping[str, Any],
    project: Path,
    git_settings: Mapping[str, str] | None = None,
    flows: Iterable[Path] = (),
) -> Acts:
    """Return what the project in the folder *project* can do; *written*: the values of its file.

    *git_settings* are the settings of its repository that make git run or fetch something.
    *flows* are files of workflows outside the project's folders that will run too.
    """
    root = Path(os.path.realpath(project))
    lines = [f"git.{name}: {to_json_line(value)}" for name, value in (git_settings or {}).items()]
    caps = {name: _parse_cap(default) for name, default in _caps_by_default().items()}
    for path, value in flatten(dict(written), ()):
        rule = find_rule(path)
        if rule is Rule.CAP:
            caps[format_key_path(path)] = _parse_cap(value)
        elif rule is Rule.ACTS:
            lines.append(_format_fact(path, value))
    files = {
        name: dict(fingerprints)
        for name, fingerprints in list_owned_files(written, root)
        if fingerprints
    }
    for owner, fingerprints in files.items():
        lines += [
            f"{owner}, file {escape_non_ascii(format_path(path, root))}: {text}"
            for path, text in fingerprints.items()
            if text != ABSENT
        ]
    workflows = Workflows(written, root, flows)
    return Acts(tuple(sorted(set(lines))), caps, files, workflows)


@cache
def rules() -> Mapping[str, Rule]:
    """Return the rule of each key or section; the longest name that matches decides."""
    return {key: rule for rule, keys in _KEYS.items() for key in keys}


def find_rule(path: KeyPath) -> Rule:
    """Return the rule for a change of the value at *path*."""
    for length in range(len(path), 0, -1):
        rule = rules().get(".".join(map(str, path[:length])))
        if rule is not None:
            return rule
    return Rule.ACTS


@cache
def _caps_by_default() -> Mapping[str, Any]:
    return {
        format_key_path(path): value
        for path, value in iter_leaves(Schema)
        if find_rule(path) is Rule.CAP
    }


def _parse_cap(value: Any) -> float:
    """Return a cap as a number; an unreadable cap allows everything."""
    try:
        cap = math.inf if value is None or value == "" else float(value)
    except (TypeError, ValueError):
        return math.inf
    return math.inf if math.isnan(cap) else cap


def _format_fact(path: KeyPath, value: Any) -> str:
    is_secret = SECRET_KEY.fullmatch(str(path[-1])) is not None
    text = to_json_line(value)
    if is_secret:
        text = hide_secret(text)
    return f"{escape_non_ascii(format_key_path(path))}: {text}"


def _get_line_key(line: str) -> str:
    return line.partition(": ")[0]


_PROGRAMS = ("argv", "program", "extra_args", "env")
"""Options of an agent that may name a file. In ``env``, a variable can make a program load one."""
_MAX_FOLDERS = 20
"""Maximum number of folders that are searched from the variables of one agent."""
_FILE_NAME = re.compile(r"(?!-)[\w./@+-]*[./][\w./@+-]*")
_MAX_ABSENT = 64
ABSENT = "not there"
"""Replaces the fingerprint of a named file that may appear, or get content, during a run."""
EMPTY = compute_digest(b"")
MAX_BYTES = 64 * 1024 * 1024
"""A larger file is compared by its size and change time."""


def list_owned_files(
    written: Mapping[str, Any], root: Path
) -> Iterator[tuple[str, dict[Path, str]]]:
    """Yield (owner, files with their fingerprints) for each owner that runs project files."""
    entries = written.get("agents")
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        yield f"agents.{name}", files_of_agent(entry, root)
    setup, commands = written.get("setup"), dict[Path, str]()
    for command in setup if isinstance(setup, list) else ():
        commands |= _find_command_files(
            root, command if isinstance(command, list) else [str(command)]
        )
    yield "setup", commands
    hooks = written.get("hooks")
    items = hooks.split(",") if isinstance(hooks, str) else hooks
    if isinstance(items, list):
        yield "hooks", _follow_imports(root, [str(item).strip() for item in items])


def files_of_agent(entry: Any, root: Path) -> dict[Path, str]:
    """Return the files below the real path *root* that an agent's *entry* names.

    The values are their fingerprints, as `list_owned_files` yields them.
    """
    files: dict[Path, str] = {}
    for option in _options_with_files(entry) if isinstance(entry, dict) else ():
        value = entry.get(option)
        value = list(value.values()) if isinstance(value, dict) else value
        items = [value] if isinstance(value, str) else value
        files |= _find_command_files(root, items if isinstance(items, list) else [])
    return files | _search_env_folders(entry, root)


def _options_with_files(entry: Mapping[str, Any]) -> Collection[str]:
    """Return the options of *entry* that may name a file: all of them, if a package's agent."""
    is_ours = entry.get("kind") in (None, *AGENT_KINDS)
    return _PROGRAMS if is_ours else [key for key in entry if key != "kind"]


def _search_env_folders(entry: Any, root: Path) -> dict[Path, str]:
    """Return the files that an agent's programs and modules resolve to in the folders of `env`.

    ``PATH``, ``PYTHONPATH`` and any other variable may name folders of the project.
    """
    env = entry.get("env") if isinstance(entry, dict) else None
    values = map(str, env.values()) if isinstance(env, dict) else ()
    parts = dict.fromkeys(part for value in values for part in value.split(":") if part)
    folders = [part for part in parts if (root / part).is_dir()][:_MAX_FOLDERS]
    files: dict[Path, str] = {}
    for option in _PROGRAMS[:3] if folders else ():
        value = entry.get(option)
        command = value if isinstance(value, list) else [value] if value else []
        words = (
            word
            for word in (*find_possible_paths(command), *find_module_paths(command))
            if word[:1] != "/"
        )
        for word, folder in islice(product(words, folders), MAX_WORDS):
            files |= _follow_imports(root, [f"{folder}/{word}"])
    return files


def _find_command_files(root: Path, command: Sequence[Any]) -> dict[Path, str]:
    """Return the fingerprints of the files that *command* may run, with Python's modules."""
    paths = list(find_module_paths(command))
    files = _follow_imports(root, paths)
    for item in find_possible_paths(command):
        # An empty file does nothing, and often is only a marker: touch done.txt
        named_files = _fingerprint_file(root, item)
        files |= {path: ABSENT if text == EMPTY else text for path, text in named_files.items()}
        paths += [] if named_files else [item]
    absent_files = dict.fromkeys(islice(_find_absent_files(root, paths), _MAX_ABSENT), ABSENT)
    return absent_files | files


def _find_absent_files(root: Path, paths: Iterable[str]) -> Iterator[Path]:
    """Yield each of *paths* that looks like a file name but does not exist yet."""
    for name in paths:
        if _FILE_NAME.fullmatch(name):
            path = Path(os.path.normpath(root / name))
            if path != root and path.is_relative_to(root) and not path.exists():
                yield path


def _fingerprint_file(root: Path, name: str) -> dict[Path, str]:
    """Return the fingerprint of the project file called *name*, or an empty dict."""
    if not name or "\0" in name or len(name) > 4096:  # noqa: PLR2004 - no path is longer
        return {}
    path = Path(os.path.normpath(root / name))
    if not path.is_relative_to(root):
        return {}
    real_path = Path(os.path.realpath(path))
    if not real_path.is_relative_to(root):
        return {path: fingerprint_link(path, real_path)[0]} if real_path.is_file() else {}
    text = fingerprint(real_path)
    if text is None:
        return {}
    # Record both: the link may be pointed at another file, and the file may change.
    return (
        {real_path: text}
        if real_path == path
        else {path: fingerprint_link(path, real_path)[1], real_path: text}
    )


def fingerprint_link(path: Path, real: Path) -> tuple[str, str]:
    """Return the fingerprints of the link *path* to *real*, for outside and inside the project.

    The second one is relative to the link, so it is the same in each work tree.
    """
    relative = os.path.relpath(real, path.parent)
    return f"leads to {to_json_line(str(real))}", f"leads to {to_json_line(relative)}"


def fingerprint(path: Path) -> str | None:
    """Return the fingerprint of the regular file *path*; None: it is not a regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode):
        os.close(fd)
        return None
    with os.fdopen(fd, "rb") as file:
        if facts.st_size > MAX_BYTES:
            return f"{facts.st_size} bytes, of {facts.st_ctime_ns}"
        return f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"


def _follow_imports(root: Path, hooks: Iterable[str]) -> dict[Path, str]:
    """Return the fingerprints of *hooks* and of the modules of the project that they import."""
    files: dict[Path, str] = {}
    queue = list(hooks)
    while queue:
        for path, text in _fingerprint_file(root, queue.pop()).items():
            if path not in files:
                files[path] = text
                queue += _imports(path, root)
                queue += _find_compiled_files(path, root)
    return files


def _find_compiled_files(module: Path, root: Path) -> Iterator[str]:
    """Yield the compiled files that Python loads instead of the source file *module*."""
    if module.suffix != ".py":
        return
    name, folder = escape(module.stem), module.parent
    for path in (*folder.glob(f"{name}.*"), *folder.glob(f"{name}/__init__.*")):
        # Python ignores byte code next to a source file, except for a package's __init__.pyc.
        if path.suffix in (".so", ".pyd") or path.name == "__init__.pyc":
            yield str(path.relative_to(root))


def _imports(path: Path, root: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        # The process that loads the file reports the error.
        return
    folder = path.parent.relative_to(root)
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module or ''}.{a.name}" for a in node.names)]
        for name in filter(None, (name.strip(".") for name in names)):
            parts = name.split(".")
            for length in range(1, len(parts) + 1):
                module = "/".join(parts[:length])
                # A relative import may mean any parent folder.
                for base in {folder, *folder.parents}:
                    yield str(base / f"{module}.py")
                    yield str(base / module / "__init__.py")
