"""Words for tools that mean the same for every client, and the tools behind them.

A step's ``tools`` says ``bash: false``; each client has its own names for what that is.
A table here holds the names of one client, for the versions that its module was verified
with. What a client can't be asked for, or what the step says twice and differently, is an
objection, and so an error before anything starts. Not promised: that a tool that stays
can't do what one that is gone did; a shell writes files too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import chain
from typing import NamedTuple

from sequencer.executors.protocol import Executor, HasPermissions, Objection
from sequencer.model.step import Step, ToolName


class Behind(NamedTuple):
    """A client's own tools behind one word."""

    granted: tuple[str, ...] = ()
    """What ``true`` is about; nothing where the client has no such tool."""
    taken: tuple[str, ...] = ()
    """What ``false`` takes away."""
    instead: str = ""
    """What does the job where the client has no such tool."""


Table = Mapping[ToolName, Behind]

CHANGING: frozenset[ToolName] = frozenset({"write", "edit", "bash"})


def _same(*names: str) -> Behind:
    return Behind(names, names)


CLAUDE: Table = {
    "read": _same("Read"),
    "write": _same("Write"),
    "edit": _same("Edit", "MultiEdit", "NotebookEdit"),
    "bash": Behind(("Bash",), ("Bash", "BashOutput", "KillShell", "Monitor", "PowerShell")),
    "glob": _same("Glob"),
    "grep": _same("Grep"),
    # Later versions have no LS; there a folder is listed by a pattern.
    "list": Behind(("Glob", "LS"), ("LS",)),
    "webfetch": _same("WebFetch"),
    "websearch": _same("WebSearch"),
    # A workflow starts agents too.
    "task": Behind(("Task", "Agent"), ("Task", "Agent", "SendMessage", "Workflow")),
    "todoread": _same("TodoRead", "TaskGet", "TaskList"),
    "todowrite": _same("TodoWrite", "TaskCreate", "TaskUpdate"),
}

CODEX: Table = {
    # It reads, searches and writes with its shell.
    **dict.fromkeys(("read", "glob", "grep", "list", "write", "edit"), Behind(("shell_tool",))),
    "bash": Behind(("shell_tool",), ("shell_tool", "unified_exec")),
    "webfetch": Behind(),
    "websearch": _same("web_search"),
    "task": Behind(("multi_agent",), ("multi_agent", "multi_agent_v2")),
    "todoread": Behind(instead="todowrite"),
    "todowrite": _same("update_plan"),
}

GEMINI: Table = {
    "read": Behind(("read_file",), ("read_file", "read_many_files")),
    "write": _same("write_file"),
    "edit": _same("replace"),
    "bash": Behind(
        ("run_shell_command",),
        ("run_shell_command", "list_background_processes", "read_background_output"),
    ),
    "glob": _same("glob"),
    "grep": _same("grep_search", "search_file_content"),
    "list": _same("list_directory"),
    "webfetch": _same("web_fetch"),
    "websearch": _same("google_web_search"),
    "task": Behind(
        ("invoke_agent",), ("invoke_agent", "codebase_investigator", "cli_help", "generalist")
    ),
    "todoread": Behind(instead="todowrite"),
    "todowrite": _same("write_todos"),
}

OPENCODE: Table = {
    "read": _same("read"),
    "write": _same("write"),
    "edit": Behind(("edit",), ("edit", "patch", "multiedit")),
    "bash": _same("bash"),
    "glob": _same("glob"),
    "grep": _same("grep"),
    # Later versions have no tool of that name; there `read` lists a folder.
    "list": Behind(("list", "read"), ("list",)),
    "webfetch": _same("webfetch"),
    "websearch": _same("websearch"),
    "task": _same("task"),
    "todoread": Behind((), ("todoread",), "todowrite"),
    "todowrite": _same("todowrite"),
}

MESSAGES: Table = {
    "read": _same("read"),
    "write": _same("write"),
    "edit": _same("edit"),
    "bash": _same("bash"),
    "glob": _same("glob"),
    "grep": _same("grep"),
    "list": Behind(instead="glob"),
    "webfetch": Behind(),
    "websearch": Behind(),
    "task": Behind(),
    "todoread": Behind(),
    "todowrite": Behind(),
}


def cannot_write(step: Step, executor: Executor) -> Objection | None:
    """Return why the agent of *executor* can't change files in *step*; None: it may.

    Not promised: what a client's own settings or other servers add.
    """
    words, permissions = step.tools or {}, None
    if isinstance(executor, HasPermissions) and not any(words.get(word) for word in CHANGING):
        permissions = executor.permissions()
    if step.single_turn or step.disallow_all_tools:
        reason = "it has no tools in this step"
    elif all(words.get(word) is False for word in CHANGING):
        reason = "tools takes write, edit and bash away"
    elif step.allowed_tools is not None and any(
        only_reads(step.allowed_tools, table) for table in (CLAUDE, OPENCODE, MESSAGES)
    ):
        # These take the names of their own tools, and no others are there.
        reason = f"its tools in this step are {', '.join(step.allowed_tools) or 'none'}"
    elif permissions is not None and not permissions.can_write:
        reason = f"its entry says {permissions.says}"
    else:
        return None
    hint = "allow it to write, or expect text or nothing of the step"
    return Objection(f"expects: change, because it can't change files: {reason}", hint)


def only_reads(names: Iterable[str], table: Table) -> bool:
    """Return whether each of *names* is a tool in *table* that changes nothing itself.

    >>> only_reads(["Read", "Grep"], CLAUDE), only_reads(["Read", "mcp__x"], CLAUDE)
    (True, False)
    """
    known = (table[word] for word in table if word not in CHANGING and word != "task")
    return {*names} <= {name for behind in known for name in (*behind.granted, *behind.taken)}


def granted(step: Step, table: Table) -> tuple[str, ...]:
    """Return the tools that *step* wants to be there and to run unasked."""
    return tuple(dict.fromkeys(chain(*(table[word].granted for word in _words(step, value=True)))))


def taken(step: Step, table: Table) -> tuple[str, ...]:
    """Return the tools that *step* takes away by a word."""
    return tuple(dict.fromkeys(chain(*(table[word].taken for word in _words(step, value=False)))))


def objections(
    step: Step, table: Table, name: str, disallowed: Iterable[str] = ()
) -> list[Objection]:
    """Return why agent *name* can't honour the words of *step*, whose tools are *table*.

    *disallowed* are the tools that the agent's own entry takes away.
    """
    found = []
    gone = taken(step, table)
    for word in _words(step, value=True):
        names, said = table[word].granted, f"tools: {word}: true"
        if not names:
            instead = table[word].instead
            hint = f", and write {instead}: true instead" if instead else ""
            found.append(Objection(f"{said}: it has no such tool", f"leave {word} out{hint}"))
        elif lost := sorted(set(names) & set(gone)):
            other = next(w for w in _words(step, value=False) if set(lost) & set(table[w].taken))
            hint = f"give {word} and {other} the same value, or leave one of them out"
            found.append(Objection(f"{said}, but {other}: false takes {_listed(lost)} away", hint))
        else:
            found += _against_lists(step, word, names, name, disallowed)
    if step.allowed_tools is not None:
        for word in _words(step, value=False):
            kept = [tool for tool in step.allowed_tools if _base(tool) in table[word].taken]
            if kept:
                reason = f"tools: {word}: false, but allowed_tools names {_listed(kept)}"
                found.append(
                    Objection(reason, f"take it out of allowed_tools, or leave {word} out")
                )
    return found


def plan_objections(step: Step, where: str) -> list[Objection]:
    """Return why a client in a mode called plan, as *where* says, can't be let change things."""
    changing = [word for word in _words(step, value=True) if word in CHANGING]
    return [
        Objection(
            f"tools: {word}: true, but {where} is plan, which can't change anything",
            f"set {where} to default, or leave {word} out",
        )
        for word in changing
    ]


def _against_lists(
    step: Step, word: ToolName, names: tuple[str, ...], name: str, disallowed: Iterable[str]
) -> Iterable[Objection]:
    said = f"tools: {word}: true"
    for switch in ("single_turn", "disallow_all_tools"):
        if getattr(step, switch):
            hint = f"leave {switch} or {word} out"
            yield Objection(f"{said}, but {switch} takes all tools away", hint)
    allowed = step.allowed_tools
    if allowed is not None and not _named(allowed, names):
        reason = f"{said}, but allowed_tools does not name {names[0]} as a whole"
        yield Objection(reason, f"add {names[0]} to allowed_tools, or leave {word} out")
    for where, listed in (
        ("disallowed_tools", step.disallowed_tools or ()),
        (f"agents.{name}.disallowed_tools", disallowed),
    ):
        lost = _named(listed, names)
        if lost:
            reason = f"{said}, but {where} takes {_listed(lost)} away"
            yield Objection(reason, f"take it out of {where}, or leave {word} out")


def _named(listed: Iterable[str], names: Iterable[str]) -> list[str]:
    entries = tuple(listed)
    return [name for name in names if any(fnmatchcase(name, entry) for entry in entries)]


def _words(step: Step, *, value: bool) -> list[ToolName]:
    return [word for word, is_on in (step.tools or {}).items() if is_on is value]


def _base(tool: str) -> str:
    return tool.partition("(")[0]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
