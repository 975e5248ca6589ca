"""The figures that keep this code easy to read and its tests honest."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from sequencer import errors
from tests.figures import broken, counted_steps, written
from tests.project.documents import ROOT
from tests.structure import EXTENSION_POINTS, Program, nodes_of, tree_of

MAX_FILE_LINES, MAX_FUNCTION_LINES = 600, 50
MAX_MOCKS_PER_TEST = 0.2
EXIT_CODES = {1, 2, 3, 4, 70, 75, 130}
BANNED_MODULE_NAMES = {"utils", "util", "helpers", "helper", "types", "common", "misc"}
_MOCK = re.compile(r"\bMagicMock\(|\bMock\(|\bpatch(?:\.\w+)?\(|\bmonkeypatch\.setattr\(")


def modules_in(*folders: str) -> list[Path]:
    """Return the Python files below *folders*; virtual environments are hidden folders."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(p for p in found if not any(x[0] == "." for x in p.relative_to(ROOT).parts))


SOURCES = modules_in("sequencer")
TESTS = modules_in("tests")
SCRIPTS = modules_in("bench", "examples")


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def functions_of(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes_of(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def test_no_file_is_too_long() -> None:
    long = {
        shown(p): n for p in (*SOURCES, *TESTS, *SCRIPTS) if (n := lines_of(p)) > MAX_FILE_LINES
    }
    assert long == {}


def test_no_function_is_too_long() -> None:
    long = {
        f"{shown(path)}:{function.lineno} {function.name}": length
        for path in (*SOURCES, *SCRIPTS)
        for function in functions_of(tree_of(path))
        if (length := (function.end_lineno or 0) - function.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert long == {}


@pytest.mark.timeout(300)
def test_nothing_grew() -> None:
    """Whoever raises a figure of `RATCHET` changes that file, and says why."""
    assert broken(written(ROOT) | counted_steps(ROOT)) == []


def test_no_extension_point_is_exempted_without_need() -> None:
    """One that is gone or renamed, or has a second class by now, leaves the table."""
    assert EXTENSION_POINTS.keys() - Program(ROOT).protocols_of_one_class() == set()


def test_no_module_has_a_meaningless_name() -> None:
    assert [shown(path) for path in SOURCES if path.stem in BANNED_MODULE_NAMES] == []


def test_tests_use_few_mocks() -> None:
    # This file names them to look for them.
    texts = [path.read_text() for path in TESTS if path != Path(__file__)]
    mocks = sum(len(_MOCK.findall(text)) for text in texts)
    tests = sum(len(re.findall(r"^ *def test_", text, re.MULTILINE)) for text in texts)
    assert mocks / tests <= MAX_MOCKS_PER_TEST, f"{mocks} mocks in {tests} tests"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_at_import_time(path: Path, known: set[str]) -> set[str]:
    """Return the project's modules that are loaded when *path* is."""
    found = set()
    todo: list[ast.AST] = list(tree_of(path).body)
    while todo:
        node = todo.pop()
        is_for_checkers = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_checkers:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (below & known) or {node.module}
        todo += ast.iter_child_nodes(node)
    return found & known


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return the names on a cycle of *graph*, or nothing."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            for other in sorted(graph.get(name, ())):
                if cycle := visit(other, [*path, name]):
                    return cycle
            done.add(name)
        return []

    return next((cycle for name in sorted(graph) if (cycle := visit(name, []))), [])


def test_there_are_no_circular_imports() -> None:
    known = {module_name(path) for path in SOURCES}
    graph = {module_name(path): imports_at_import_time(path, known) for path in SOURCES}
    assert sum(map(len, graph.values())) > len(known), "the imports were not found"
    assert find_cycle(graph) == []


def test_the_search_for_circular_imports_finds_one() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def deliberate_errors() -> list[type[errors.SequencerError]]:
    return [
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, errors.SequencerError)
    ]


@pytest.mark.parametrize("cls", deliberate_errors(), ids=lambda cls: cls.__name__)
def test_every_deliberate_error_has_an_exit_code_and_a_docstring(
    cls: type[errors.SequencerError],
) -> None:
    assert cls.exit_code in EXIT_CODES
    assert cls.__doc__
    # 70 says "a bug": nothing deliberate may end with it.
    assert cls is errors.SequencerError or cls.exit_code != 70


def guilty_places(is_guilty: Callable[[ast.AST], bool], paths: Iterable[Path]) -> list[str]:
    """Return where in *paths* something is guilty."""
    return [
        f"{shown(path)}:{getattr(node, 'lineno', 0)}"
        for path in paths
        for node in nodes_of(tree_of(path))
        if is_guilty(node)
    ]


def called(node: ast.AST) -> str:
    """Return the name of the function that *node* calls, if it is a call of one by name."""
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)):
            return f"{module}.{name}"
    return ""


def test_no_module_has_mutable_global_state() -> None:
    assert guilty_places(lambda node: isinstance(node, ast.Global), SOURCES) == []


def uses_a_shell(node: ast.AST) -> bool:
    """Return whether *node* is a call that gives a text to a shell."""
    if not isinstance(node, ast.Call):
        return False
    is_off = {"shell": False}
    given = {k.arg: getattr(k.value, "value", True) for k in node.keywords if k.arg == "shell"}
    return given not in ({}, is_off) or called(node) in SHELLS


SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}


def test_nothing_is_passed_to_a_shell() -> None:
    assert guilty_places(uses_a_shell, (*SOURCES, *SCRIPTS)) == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("run(a, shell=True)", True),
        ("run(a, shell=flag)", True),
        ("run(a, shell=False)", False),
        ("run(a)", False),
        ("os.system(a)", True),
    ],
)
def test_the_search_for_shells_finds_them(code: str, expected: bool) -> None:
    assert uses_a_shell(ast.parse(code, mode="eval").body) is expected


def test_no_soft_lock_is_used() -> None:
    guilty = [shown(path) for path in SOURCES if "SoftFileLock(" in path.read_text()]
    assert guilty == []
    made = [p for p in SOURCES if re.search(r"\bFileLock\(", p.read_text())]
    assert made
    assert all("fallback_to_soft=False" in path.read_text() for path in made)


PRINTERS = {
    *("print", "sys.stdout.write", "sys.stderr.write", "traceback.print_exc"),
    "logging.exception",
}


def test_nothing_prints_without_hiding_secrets() -> None:
    # The guard is a program of its own; the idle tick repeats what was said before.
    exempt = ("sequencer/executors/guard.py", "sequencer/cli/idle.py")
    guilty = guilty_places(lambda node: called(node) in PRINTERS, SOURCES)
    assert [where for where in guilty if not where.startswith(exempt)] == []


def test_yaml_is_loaded_safely() -> None:
    unsafe = re.compile(r"yaml\.(?:unsafe_|full_)?load\(|UnsafeLoader|FullLoader|pickle\.|\beval\(")
    assert [shown(path) for path in SOURCES if unsafe.search(path.read_text())] == []


def test_every_module_has_a_short_docstring() -> None:
    missing, long = [], []
    for path in SOURCES:
        docstring = ast.get_docstring(tree_of(path))
        if not docstring and path.read_text().strip():
            missing.append(shown(path))
        elif docstring and len(docstring.splitlines()) > 12:
            long.append(shown(path))
    assert (missing, long) == ([], [])
