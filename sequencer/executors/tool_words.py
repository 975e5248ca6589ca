"""Common words for tools, and each client's own tools for them.

A step's ``tools`` may say ``bash: false``; each client has its own names for that. A table here
has the names of one client, for the versions that its module was verified with. A word that a
client can't support, or that contradicts the step itself, is an objection, and so an error before
anything starts.

Not promised: that the remaining tools can't do the work of a removed one; a shell writes files
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import chain

from msgspec import Struct

from sequencer.executors.protocol import Executor, HasPermissions, Objection
from sequencer.model.step import Step, ToolName


class ClientTools(Struct, frozen=True):
    """A client's own tools for one word."""

    granted: tuple[str, ...] = ()
    """The tools that ``true`` grants; empty if the client has no such tool."""
    taken: tuple[str, ...] = ()
    """The tools that ``false`` takes away."""
    instead: str = ""
    """The word for a tool that does the same work, if the client has no such tool."""


Table = Mapping[ToolName, ClientTools]

CHANGING: frozenset[ToolName] = frozenset({"write", "edit", "bash"})


def _make_client_tools(*names: str) -> ClientTools:
    return ClientTools(names, names)


CLAUDE: Table = {
    "read": _make_client_tools("Read"),
    "write": _make_client_tools("Write"),
    "edit": _make_client_tools("Edit", "MultiEdit", "NotebookEdit"),
    "bash": ClientTools(("Bash",), ("Bash", "BashOutput", "KillShell", "Monitor", "PowerShell")),
    "glob": _make_client_tools("Glob"),
    "grep": _make_client_tools("Grep"),
    # Later versions have no LS; there a folder is listed by a pattern.
    "list": ClientTools(("Glob", "LS"), ("LS",)),
    "webfetch": _make_client_tools("WebFetch"),
    "websearch": _make_client_tools("WebSearch"),
    # A workflow starts agents too.
    "task": ClientTools(("Task", "Agent"), ("Task", "Agent", "SendMessage", "Workflow")),
    "todoread": _make_client_tools("TodoRead", "TaskGet", "TaskList"),
    "todowrite": _make_client_tools("TodoWrite", "TaskCreate", "TaskUpdate"),
}

CODEX: Table = {
    # It reads, searches and writes with its shell.
    **dict.fromkeys(
        ("read", "glob", "grep", "list", "write", "edit"), ClientTools(("shell_tool",))
    ),
    "bash": ClientTools(("shell_tool",), ("shell_tool", "unified_exec")),
    "webfetch": ClientTools(),
    "websearch": _make_client_tools("web_search"),
    "task": ClientTools(("multi_agent",), ("multi_agent", "multi_agent_v2")),
    "todoread": ClientTools(instead="todowrite"),
    "todowrite": _make_client_tools("update_plan"),
}

GEMINI: Table = {
    "read": ClientTools(("read_file",), ("read_file", "read_many_files")),
    "write": _make_client_tools("write_file"),
    "edit": _make_client_tools("replace"),
    "bash": ClientTools(
        ("run_shell_command",),
        ("run_shell_command", "list_background_processes", "read_background_output"),
    ),
    "glob": _make_client_tools("glob"),
    "grep": _make_client_tools("grep_search", "search_file_content"),
    "list": _make_client_tools("list_directory"),
    "webfetch": _make_client_tools("web_fetch"),
    "websearch": _make_client_tools("google_web_search"),
    "task": ClientTools(
        ("invoke_agent",), ("invoke_agent", "codebase_investigator", "cli_help", "generalist")
    ),
    "todoread": ClientTools(instead="todowrite"),
    "todowrite": _make_client_tools("write_todos"),
}

OPENCODE: Table = {
    "read": _make_client_tools("read"),
    "write": _make_client_tools("write"),
    "edit": ClientTools(("edit",), ("edit", "patch", "multiedit")),
    "bash": _make_client_tools("bash"),
    "glob": _make_client_tools("glob"),
    "grep": _make_client_tools("grep"),
    # Later versions have no tool of that name; there `read` lists a folder.
    "list": ClientTools(("list", "read"), ("list",)),
    "webfetch": _make_client_tools("webfetch"),
    "websearch": _make_client_tools("websearch"),
    "task": _make_client_tools("task"),
    "todoread": ClientTools((), ("todoread",), "todowrite"),
    "todowrite": _make_client_tools("todowrite"),
}

MESSAGES: Table = {
    "read": _make_client_tools("read"),
    "write": _make_client_tools("write"),
    "edit": _make_client_tools("edit"),
    "bash": _make_client_tools("bash"),
    "glob": _make_client_tools("glob"),
    "grep": _make_client_tools("grep"),
    "list": ClientTools(instead="glob"),
    "webfetch": ClientTools(),
    "websearch": ClientTools(),
    "task": ClientTools(),
    "todoread": ClientTools(),
    "todowrite": ClientTools(),
}


def writing_objection(step: Step, executor: Executor) -> Objection | None:
    """Return why the agent of *executor* can't change files in *step*; None: it can.

    Not considered: tools that a client's own settings or MCP servers add.
    """
    words, permissions = step.tools or {}, None
    if isinstance(executor, HasPermissions) and not any(words.get(word) for word in CHANGING):
        permissions = executor.permissions()
    if step.single_turn or step.disallow_all_tools:
        reason = "it has no tools in this step"
    elif all(words.get(word) is False for word in CHANGING):
        reason = "tools takes write, edit and bash away"
    elif step.allowed_tools is not None and any(
        is_read_only(step.allowed_tools, table) for table in (CLAUDE, OPENCODE, MESSAGES)
    ):
        # For these clients allowed_tools lists all tools that exist, by the client's own names.
        reason = f"its tools in this step are {', '.join(step.allowed_tools) or 'none'}"
    elif permissions is not None and not permissions.can_write:
        reason = f"its entry says {permissions.summary}"
    else:
        return None
    hint = "allow it to write, or expect text or nothing of the step"
    return Objection(f"expects: change, because it can't change files: {reason}", hint)


def is_read_only(names: Iterable[str], table: Table) -> bool:
    """Return whether each of *names* is a tool in *table* that changes nothing.

    >>> is_read_only(["Read", "Grep"], CLAUDE), is_read_only(["Read", "mcp__x"], CLAUDE)
    (True, False)
    """
    words = (table[word] for word in table if word not in CHANGING and word != "task")
    return {*names} <= {name for tools in words for name in (*tools.granted, *tools.taken)}


def granted_tools(step: Step, table: Table) -> tuple[str, ...]:
    """Return the tools that *step* grants; they run without asking."""
    return tuple(
        dict.fromkeys(chain(*(table[word].granted for word in _select_words(step, value=True))))
    )


def removed_tools(step: Step, table: Table) -> tuple[str, ...]:
    """Return the tools that *step* takes away with its ``tools``."""
    return tuple(
        dict.fromkeys(chain(*(table[word].taken for word in _select_words(step, value=False))))
    )


def tool_objections(
    step: Step, table: Table, name: str, disallowed: Iterable[str] = ()
) -> list[Objection]:
    """Return an objection for each of the ``tools`` of *step* that agent *name* can't support.

    *table* has the tools of its client, *disallowed* those that the agent's entry takes away.
    """
    result = []
    removed_names = removed_tools(step, table)
    for word in _select_words(step, value=True):
        names, setting = table[word].granted, f"tools: {word}: true"
        if not names:
            alternative = table[word].instead
            hint = f", and write {alternative}: true instead" if alternative else ""
            result.append(Objection(f"{setting}: it has no such tool", f"leave {word} out{hint}"))
        elif lost_names := sorted(set(names) & set(removed_names)):
            other_word = next(
                other_word
                for other_word in _select_words(step, value=False)
                if set(lost_names) & set(table[other_word].taken)
            )
            hint = f"give {word} and {other_word} the same value, or leave one of them out"
            reason = f"{setting}, but {other_word}: false takes {_join_names(lost_names)} away"
            result.append(Objection(reason, hint))
        else:
            result += _find_list_conflicts(step, word, names, name, disallowed)
    if step.allowed_tools is not None:
        for word in _select_words(step, value=False):
            allowed_names = [
                tool for tool in step.allowed_tools if _base_name(tool) in table[word].taken
            ]
            if allowed_names:
                reason = (
                    f"tools: {word}: false, but allowed_tools names {_join_names(allowed_names)}"
                )
                result.append(
                    Objection(reason, f"take it out of allowed_tools, or leave {word} out")
                )
    return result


def plan_mode_objections(step: Step, mode_key: str) -> list[Objection]:
    """Return an objection for each tool of *step* that changes files: plan mode forbids it.

    *mode_key* is the key of the agent's entry that sets the mode, such as
    ``agents.claude.permission_mode``.
    """
    changing_words = [word for word in _select_words(step, value=True) if word in CHANGING]
    return [
        Objection(
            f"tools: {word}: true, but {mode_key} is plan, which can't change anything",
            f"set {mode_key} to default, or leave {word} out",
        )
        for word in changing_words
    ]


def _find_list_conflicts(
    step: Step, word: ToolName, names: tuple[str, ...], name: str, disallowed_tools: Iterable[str]
) -> Iterable[Objection]:
    setting = f"tools: {word}: true"
    for switch in ("single_turn", "disallow_all_tools"):
        if getattr(step, switch):
            hint = f"leave {switch} or {word} out"
            yield Objection(f"{setting}, but {switch} takes all tools away", hint)
    allowed_tools = step.allowed_tools
    if allowed_tools is not None and not _match_names(allowed_tools, names):
        reason = f"{setting}, but allowed_tools does not name {names[0]} as a whole"
        yield Objection(reason, f"add {names[0]} to allowed_tools, or leave {word} out")
    for key, tool_names in (
        ("disallowed_tools", step.disallowed_tools or ()),
        (f"agents.{name}.disallowed_tools", disallowed_tools),
    ):
        lost_names = _match_names(tool_names, names)
        if lost_names:
            reason = f"{setting}, but {key} takes {_join_names(lost_names)} away"
            yield Objection(reason, f"take it out of {key}, or leave {word} out")


def _match_names(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    entries = tuple(patterns)
    return [name for name in names if any(fnmatchcase(name, entry) for entry in entries)]


def _select_words(step: Step, *, value: bool) -> list[ToolName]:
    return [word for word, is_on in (step.tools or {}).items() if is_on is value]


def _base_name(tool: str) -> str:
    return tool.partition("(")[0]


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(names)
