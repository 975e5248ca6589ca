"""What the syntax tree says about the structure of the program: arrows, cycles, named kinds.

Everything is counted in the text, so the counts are the same on every machine. Imports inside
functions and below ``if TYPE_CHECKING`` count as others do. ``python -m tests.structure`` prints
each count and the places behind it.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PLUGINS = "sequencer.plugins"
STORES = {"git": f"{PLUGINS}.git", "temporal": f"{PLUGINS}.temporal", "file": "sequencer.store"}
"""Kinds of stores, and the room of each: elsewhere nobody asks for one by its name."""
STORE_CLASSES = frozenset(("Dispatcher", "FileStore", "GitStore", "TemporalStore"))
TEAMS = f"{PLUGINS}.teams"
EXTENSION_POINTS = {
    "sequencer.engine.capacity.CapacityRule": "a plug-in of ours has the budgets of teams",
    "sequencer.engine.dispatch.Dispatcher": "a plug-in of ours has a store that gives work orders",
    "sequencer.executors.protocol.Executor": "other packages have kinds of agents",
    "sequencer.project.posting.Posting": "a plug-in of ours posts activity",
    "sequencer.store.protocol.Peer": "a plug-in of ours agrees on transitions with a git remote",
    "sequencer.store.protocol.ReportsWaiting": "a plug-in of ours has a store that pushes",
    "sequencer.store.protocol.Store": "other packages have kinds of stores",
}
"""Protocols that may have one class: the core must not import it, or others write theirs."""


Function = ast.FunctionDef | ast.AsyncFunctionDef


class Arrow(NamedTuple):
    """One import, of a module by a module."""

    source: str
    line: int
    target: str


class Place(NamedTuple):
    """Something that is counted: a line of a module, and what stands there."""

    module: str
    line: int
    what: str


parse: Callable[[str], ast.Module] = cache(ast.parse)


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of the file *path*."""
    return parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of *tree*, as `ast.walk` yields them; they are looked for once."""
    return tuple(ast.walk(tree))


class Program:
    """The modules of the working copy *root*, as they are written."""

    def __init__(self, root: Path) -> None:
        """Parse them."""
        self.trees: dict[str, ast.Module] = {}
        for path in sorted((root / "sequencer").rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.trees[name] = tree_of(path)

    @cached_property
    def arrows(self) -> tuple[Arrow, ...]:
        """Return every import of one of our modules."""
        return tuple(
            Arrow(name, getattr(node, "lineno", 0), target)
            for name, tree in self.trees.items()
            for node in nodes_of(tree)
            for target in self._targets(node)
            if target != name
        )

    def _targets(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in self.trees)
        elif isinstance(node, ast.ImportFrom) and node.module in self.trees:
            below = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name for name in below if name in self.trees]
            yield from found
            if len(found) < len(below):
                yield node.module or ""

    def into_plugins(self) -> list[Place]:
        """Return the imports of the core that name a plug-in."""
        return [
            Place(one.source, one.line, one.target)
            for one in self.arrows
            if is_below(one.target, PLUGINS) and not is_below(one.source, PLUGINS)
        ]

    def cycles(self) -> list[list[str]]:
        """Return the groups of modules that import each other, by whatever way."""
        after: dict[str, set[str]] = {name: set() for name in self.trees}
        for one in self.arrows:
            after[one.source].add(one.target)
        return [sorted(group) for group in _components(after) if len(group) > 1]

    def store_names(self) -> list[Place]:
        """Return where a module outside of a store's room imports, compares or tests its kind."""
        found = [
            Place(one.source, one.line, one.target)
            for one in self.arrows
            for kind, room in STORES.items()
            if kind != "file" and is_below(one.target, room) and not is_below(one.source, room)
        ]
        for name, tree in self.trees.items():
            if any(is_below(name, room) for room in STORES.values()):
                continue
            aliases = _aliases_of_kinds(tree)
            found += [
                Place(name, node.lineno, ast.unparse(node)[:80])
                for node in nodes_of(tree)
                if isinstance(node, ast.Compare | ast.Call | ast.pattern)
                if _names_a_store(node, aliases)
            ]
        return found

    def team_modules(self) -> dict[str, list[int]]:
        """Return the modules of the core that import teams or test for one, with the lines."""
        found: dict[str, list[int]] = {}
        for one in self.arrows:
            if is_below(one.target, TEAMS) and not is_below(one.source, PLUGINS):
                found.setdefault(one.source, []).append(one.line)
        for name, tree in self.trees.items():
            if is_below(name, PLUGINS):
                continue
            for node in nodes_of(tree):
                if _tests_for_a_team(node):
                    found.setdefault(name, []).append(getattr(node, "lineno", 0))
        return found

    def event_readers(self) -> list[str]:
        """Return the modules that ask what an event of the journal means, and should ask history/.

        The model writes events; whoever else only names one to write it does not count.
        """
        homes = ("sequencer.history", "sequencer.model")
        return sorted(
            name
            for name, tree in self.trees.items()
            if not any(is_below(name, home) for home in homes) and _interprets_events(tree)
        )

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """Return every class, by its full name; classes inside of others are below their module."""
        return {
            f"{name}.{node.name}": node
            for name, tree in self.trees.items()
            for node in nodes_of(tree)
            if isinstance(node, ast.ClassDef)
        }

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self.classes:
            found.setdefault(name.rpartition(".")[2], []).append(name)
        return found

    def bases(self, name: str) -> Iterator[str]:
        """Yield the direct bases of the class *name* that are ours; a name stands for all alike."""
        for base in self.classes[name].bases:
            for one in self._by_name.get(_name_of(base), ()):
                if one != name:
                    yield one

    def whole(self, name: str) -> frozenset[str]:
        """Return the methods of the class *name*, with those of the bases that are ours."""
        found = set(_methods(self.classes[name]))
        for base in self.bases(name):
            found |= self.whole(base)
        return frozenset(found)

    def lonely_protocols(self) -> list[str]:
        """Return the protocols that are no `EXTENSION_POINTS` and have one implementation."""
        return [name for name in self.protocols_of_one_class() if name not in EXTENSION_POINTS]

    def protocols_of_one_class(self) -> list[str]:
        """Return the protocols that one class has all methods of, and no other class."""
        every = [self.whole(name) for name, node in self.classes.items() if not _is_protocol(node)]
        return sorted(
            name
            for name, node in self.classes.items()
            if _is_protocol(node)
            and (methods := _methods(node))
            and sum(methods <= own for own in every) == 1
        )

    def undocumented(self) -> list[Place]:
        """Return the public methods that neither have a docstring nor inherit one.

        The helpers below say what inherits. As with ruff's D102, whose work this is, a setter, an
        overload and a class inside of a function need none.
        """
        return [
            Place(name.rpartition(".")[0], method.lineno, f"{node.name}.{method.name}")
            for name, node in self.classes.items()
            if not node.name.startswith("_") and name not in self._inner_classes
            for method in _functions(node)
            if _needs_docstring(method) and not ast.get_docstring(method)
            if not self.documented_by(name, method)
        ]

    def documented_by(self, name: str, method: Function) -> list[str]:
        """Return our classes that document *method* of the class *name*.

        They are its bases, and the protocols that it implements: it has all their methods, and
        *method* takes what theirs takes.
        """
        above = [
            base
            for base in self._ancestors(name)
            for other in _functions(self.classes[base])
            if other.name == method.name and ast.get_docstring(other)
        ]
        members = self._members(name)
        return above + [
            protocol
            for protocol, methods in self._protocols.items()
            if method.name in methods and protocol != name and methods.keys() <= members
            if ast.get_docstring(methods[method.name])
            if _parameters(methods[method.name]) <= _parameters(method)
        ]

    def docstrings(self) -> Iterator[Place]:
        """Yield the text of each docstring, also of fields and constants."""
        for name, tree in self.trees.items():
            for node in nodes_of(tree):
                match node:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        yield Place(name, node.lineno, inspect.cleandoc(text))

    def stale_references(self) -> list[Place]:
        """Return the names after "see" in docstrings that nothing in the program has."""
        return [
            Place(place.module, place.line, name)
            for place in self.docstrings()
            for names in _SEEN_NAMES.finditer(place.what)
            for name in _QUOTED.findall(names[0])
            if not self._has_name(name)
        ]

    def _has_name(self, name: str) -> bool:
        """Return whether *name* is a module, or something in one, in a class or in a function.

        Of what it is in, any part of the path may be left out from the left.
        """
        if any(f".{module}".endswith(f".{name}") for module in self.trees):
            return True
        if "." not in name:
            return any(name in names for names in self._names.values())
        owner, _, last = name.rpartition(".")
        return any(last in names for names in self._names_of(owner))

    def _names_of(self, owner: str) -> Iterator[frozenset[str]]:
        for module, names in self._names.items():
            if f".{module}".endswith(f".{owner}"):
                yield names
        for name in self.classes:
            if f".{name}".endswith(f".{owner}"):
                yield self._members(name)

    @cached_property
    def _names(self) -> dict[str, frozenset[str]]:
        """Return what each module defines, at its top or inside."""
        return {name: frozenset(_defined_in(tree)) for name, tree in self.trees.items()}

    @cached_property
    def _inner_classes(self) -> frozenset[str]:
        return frozenset(
            f"{name}.{node.name}"
            for name, tree in self.trees.items()
            for function in nodes_of(tree)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            for node in ast.walk(function)
            if isinstance(node, ast.ClassDef)
        )

    @cached_property
    def _protocols(self) -> dict[str, dict[str, Function]]:
        """Return the methods of every protocol, with those of the protocols it extends."""
        return {
            name: {
                method.name: method
                for one in (*self._ancestors(name), name)
                for method in _functions(self.classes[one])
            }
            for name, node in self.classes.items()
            if _is_protocol(node)
        }

    def _ancestors(self, name: str) -> Iterator[str]:
        for base in self.bases(name):
            yield base
            yield from self._ancestors(base)

    def _members(self, name: str) -> frozenset[str]:
        """Return the methods and fields of the class *name* and of its bases that are ours."""
        found = set()
        for one in (name, *self._ancestors(name)):
            for node in nodes_of(self.classes[one]):
                match node:
                    case ast.FunctionDef(name=member) | ast.AsyncFunctionDef(name=member):
                        found.add(member)
                    case ast.AnnAssign(target=ast.Name(id=member)):
                        found.add(member)
                    case ast.Attribute(value=ast.Name(id="self"), attr=member, ctx=ast.Store()):
                        found.add(member)
        return frozenset(found)

    def families(self) -> dict[str, int]:
        """Return how many classes of data there are of each family."""
        found: dict[str, int] = {}
        for tree in self.trees.values():
            for node in nodes_of(tree):
                if isinstance(node, ast.ClassDef):
                    bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                    # A `Section` is a `Frozen`.
                    bases |= {"Frozen"} if "Section" in bases else set()
                    marks = {ast.unparse(one).partition("(")[0] for one in node.decorator_list}
                    for family in _FAMILIES & (bases | marks):
                        found[family] = found.get(family, 0) + 1
        return found


_SEEN_NAMES = re.compile(r"\b[Ss]ee\s+(?:also\s+)?`[^`\n]+`(?:(?:,| and|, and| or)\s+`[^`\n]+`)*")
_QUOTED = re.compile(r"`([^`]+)`")


def _defined_in(tree: ast.AST) -> Iterator[str]:
    for node in nodes_of(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name


_FAMILIES = frozenset(("Struct", "NamedTuple", "dataclass", "TypedDict", "BaseModel", "Frozen"))


def _functions(node: ast.ClassDef) -> Iterator[Function]:
    for one in node.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            yield one


def _methods(node: ast.ClassDef) -> frozenset[str]:
    return frozenset(
        one.name
        for one in _functions(node)
        if not (one.name.startswith("__") and one.name != "__call__")
    )


def _needs_docstring(method: Function) -> bool:
    marks = {ast.unparse(one).rpartition(".")[2] for one in method.decorator_list}
    is_public = not method.name.startswith("_") or method.name == "__call__"
    return is_public and not marks & {"setter", "deleter", "overload"}


def _parameters(method: Function) -> frozenset[str]:
    """Return the names that *method* takes; one that it doesn't use may begin with `_`."""
    given = method.args
    names = (one.arg.lstrip("_") for one in (*given.posonlyargs, *given.args, *given.kwonlyargs))
    return frozenset(names) - {"self", "cls"}


def _name_of(base: ast.expr) -> str:
    """Return the name of a class from what a subclass calls it: ``Generic`` of ``a.Generic[T]``."""
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(_name_of(base) == "Protocol" for base in node.bases)


_WRITERS = frozenset({"Fact", "fact_at", "report", "str"})
"""Functions that get an event to write it."""


def _interprets_events(tree: ast.AST) -> bool:
    """Return whether *tree* reads an event of a fact, or names one for anything but writing."""
    written = {
        id(argument)
        for node in nodes_of(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _WRITERS
        for argument in node.args
    }
    has_events = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "sequencer.model.transitions"
        and any(alias.name == "Event" for alias in node.names)
        for node in nodes_of(tree)
    )
    for node in nodes_of(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="Event")) if has_events:
                if id(node) not in written and node.attr.isupper():
                    return True
            case ast.Compare(left=left, comparators=others):
                if any(map(_reads_event, (left, *others))) and "fact" in ast.unparse(node):
                    return True
    return False


def _reads_event(node: ast.AST) -> bool:
    match node:
        case ast.Subscript(slice=ast.Constant(value="event"), ctx=ast.Load()):
            return True
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value="event"), *_]):
            return True
        case ast.Attribute(attr="event"):
            return True
    return False


_PUBLIC = frozenset({"sequencer.errors", "sequencer.testing"})
"""Modules of the library, besides ``sequencer`` itself."""


def inner_imports(root: Path) -> list[str]:
    """Return the test files outside of unit/ that import more than the package's public names."""
    found = []
    for path in sorted((root / "tests").rglob("*.py")):
        parts = path.relative_to(root).parts
        if parts[1] == "unit":
            continue
        nodes = nodes_of(tree_of(path))
        names = [
            name
            for node in nodes
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
        ]
        if any(name.startswith("sequencer.") and name not in _PUBLIC for name in names):
            found.append("/".join(parts))
    return found


def is_below(name: str, package: str) -> bool:
    """Return whether module *name* is *package* or inside of it."""
    return name == package or name.startswith(f"{package}.")


def _aliases_of_kinds(tree: ast.Module) -> frozenset[str]:
    """Return the names that stand for kinds of stores, or for classes of them, in *tree*."""
    found = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if _has_kind(node.value, frozenset()) and not isinstance(node.value, ast.Dict):
                found |= {one.id for one in targets if isinstance(one, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            found |= {
                alias.asname or alias.name for alias in node.names if alias.name in STORE_CLASSES
            }
    return frozenset(found)


def _has_kind(node: ast.AST, aliases: frozenset[str]) -> bool:
    """Return whether *node* is the name of a kind of store, or a collection of such names."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value in STORES
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return bool(node.elts) and any(_has_kind(one, aliases) for one in node.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("frozenset", "set", "tuple") and any(
            _has_kind(one, aliases) for one in node.args
        )
    return isinstance(node, ast.Name) and node.id in aliases


def _names_a_store(node: ast.AST, aliases: frozenset[str]) -> bool:
    match node:
        case ast.Compare():
            sides = (node.left, *node.comparators)
            # Much else has a kind that is called "file".
            is_file = any(isinstance(one, ast.Constant) and one.value == "file" for one in sides)
            about = " ".join(map(ast.unparse, sides))
            return any(_has_kind(one, aliases) for one in sides) and (
                not is_file or "store" in about
            )
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
            names = {one.id for one in ast.walk(kinds) if isinstance(one, ast.Name)}
            return bool(names & (STORE_CLASSES | aliases))
        case ast.MatchValue(value=ast.Constant(value=value)):
            return isinstance(value, str) and value in STORES
    return False


def _tests_for_a_team(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr=attribute):
            return attribute in ("is_team", "team")
        case ast.Compare():
            return any(
                isinstance(one, ast.Constant) and one.value == "team"
                for one in (node.left, *node.comparators)
            )
    return False


def _components(after: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """Yield the strongly connected groups of a graph (Tarjan, without recursion)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    for start in after:
        if start in number:
            continue
        work = [(start, iter(sorted(after[start])))]
        number[start] = low[start] = len(number)
        stack.append(start)
        while work:
            name, rest = work[-1]
            for target in rest:
                if target not in number:
                    number[target] = low[target] = len(number)
                    stack.append(target)
                    work.append((target, iter(sorted(after[target]))))
                    break
                if target in stack:
                    low[name] = min(low[name], number[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == number[name]:
                    place = stack.index(name)
                    yield set(stack[place:])
                    del stack[place:]


def figures(root: Path) -> dict[str, int]:
    """Return what is counted in the working copy *root*."""
    program = Program(root)
    return {
        "imports of plug-ins by the core": len(program.into_plugins()),
        "modules in a cycle of imports": sum(map(len, program.cycles())),
        "places that name a kind of store": len(program.store_names()),
        "modules of the core that know teams": len(program.team_modules()),
        "modules outside history/ that interpret events": len(program.event_readers()),
        "protocols with one implementation": len(program.lonely_protocols()),
        "families of data classes": len(program.families()),
        "test files outside unit/ with inner imports": len(inner_imports(root)),
    }


def main() -> None:
    """Print the counts and the places."""
    program = Program(Path(sys.argv[1]) if sys.argv[1:] else ROOT)
    for title, places in (
        ("imports of plug-ins by the core", program.into_plugins()),
        ("places that name a kind of store", program.store_names()),
    ):
        print(f"{title}: {len(places)}")
        for one in places:
            print(f"  {one.module}:{one.line}  {one.what}")
    cycles = program.cycles()
    print(f"modules in a cycle of imports: {sum(map(len, cycles))}")
    for group in cycles:
        print(f"  {', '.join(group)}")
    teams = program.team_modules()
    print(f"modules of the core that know teams: {len(teams)}")
    for name, lines in teams.items():
        print(f"  {name}: {', '.join(map(str, sorted(lines)))}")
    print(f"modules outside history/ that interpret events: {', '.join(program.event_readers())}")
    print(f"protocols with one implementation: {', '.join(program.lonely_protocols())}")
    print(f"families of data classes: {program.families()}")


if __name__ == "__main__":
    main()
