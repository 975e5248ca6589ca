"""Hook files of a project and hooks of installed packages, as modules and objects.

A file is code that the project's author wrote down in orchestration.yaml; it is still read
only inside the project. It leaves nothing behind: no byte code on disk, no entry on the
search path. Modules of the project that it imports are compiled from their text, which is
compared with what was trusted: byte code and compiled extensions in the project never run.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from importlib.metadata import EntryPoint
from importlib.util import module_from_spec
from pathlib import Path
from types import CodeType, ModuleType

from sequencer.errors import ConfigurationError, NotTrusted, UnsafePath
from sequencer.files.regular import read_bytes
from sequencer.files.textfile import digest_text
from sequencer.hooks.points import Plugin
from sequencer.packages import how_to_disable, name_of

MAX_BYTES = 1024 * 1024
MODULE_PREFIX = "_sequencer_hooks_"
_ERROR_CHARS = 300


def load_files(
    files: Sequence[str], project: Path, trusted: Mapping[Path, str]
) -> Iterator[Plugin]:
    """Yield each of *files*, loaded as a module of its own.

    While one loads, modules of the project's folder can be imported, installed ones first.

    *trusted* has the files that were trusted with their fingerprints; empty: nobody compares.

    Raises:
        NotTrusted: a file has another fingerprint than in *trusted*; it was not run.
        UnsafePath: a path leaves the project, or is no regular file.
        ConfigurationError: a file is missing, listed twice, or can't be loaded.
    """
    root = project.resolve()
    seen: dict[Path, str] = {}
    for place, written in enumerate(files):
        path = _inside(root, written, f"hooks[{place}]")
        if path in seen:
            raise ConfigurationError(
                f"{written!r} is the same file as {seen[path]!r}",
                where=f"hooks[{place}]",
                hint="list it once; a hook is called as often as it is listed",
            )
        seen[path] = written
        yield Plugin(written, _load(path, root, trusted))


def load_entries(entries: Iterable[EntryPoint]) -> Iterator[Plugin]:
    """Yield what *entries* name, in the order of their names.

    Raises:
        ConfigurationError: one can't be imported, or is a class; its package is named.
    """
    for entry in sorted(entries, key=lambda one: (one.name, name_of(one))):
        name = f"{name_of(entry)}: {entry.name}"
        try:
            value = entry.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ConfigurationError(
                f"the hooks of an installed package can't be imported: {summary(error)}",
                where=f"{name} = {entry.value}",
                hint=how_to_disable(name_of(entry)),
            ) from error
        if isinstance(value, type):
            raise ConfigurationError(
                "an entry point names a module or an object with hooks, not a class",
                where=f"{name} = {entry.value}",
                hint="name an instance of it",
            )
        yield Plugin(name, value, name_of(entry))


def summary(error: BaseException) -> str:
    """Return type and message of *error* on one line, whatever its own ``__str__`` does."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    told = traceback.TracebackException.from_exception(error, limit=0, compact=True)
    line = " ".join("".join(told.format_exception_only())[: 4 * _ERROR_CHARS].split())
    return line if len(line) <= _ERROR_CHARS else f"{line[:_ERROR_CHARS]}…"


def line_in(file: str, error: BaseException) -> int | None:
    """Return the line of *file* that *error* came through last; None: through none of it."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == file]
    return lines[-1] if lines else None


def _inside(root: Path, written: str, where: str) -> Path:
    if not written or "\0" in written:
        raise ConfigurationError(f"expected a path, not {written!r}", where=where)
    path = Path(os.path.realpath(root / written))
    if not path.is_relative_to(root):
        raise UnsafePath(
            f"{written!r} leads out of the project ({path})",
            where=where,
            hint=f"put the file below {root}",
        )
    if path.suffix != ".py":
        raise ConfigurationError(
            f"{written!r} is not a Python file", where=where, hint="a hook file's name ends in .py"
        )
    return path


def _load(path: Path, root: Path, trusted: Mapping[Path, str]) -> ModuleType:
    file = str(path)
    name = MODULE_PREFIX + hashlib.sha256(os.fsencode(file)).hexdigest()[:16]
    spec = ModuleSpec(name, None, origin=file)
    module = module_from_spec(spec)
    module.__file__ = file
    source = _source(path)
    if trusted:
        _ensure_same(file, trusted.get(path), source)
    try:
        # dont_inherit: this module's own __future__ imports are not the hook file's.
        code: CodeType = compile(source, file, "exec", dont_inherit=True)
        with _importable(root, trusted):
            # Dataclasses and pickles look their module up by its name.
            sys.modules[name] = module
            exec(code, vars(module))  # noqa: S102 - it is what a hook file is for
    except (KeyboardInterrupt, NotTrusted):
        sys.modules.pop(name, None)
        raise
    except BaseException as error:
        sys.modules.pop(name, None)
        line = line_in(file, error)
        raise ConfigurationError(
            f"the hook file can't be loaded: {summary(error)}",
            where=f"{file}:{line}" if line else file,
            hint="fix it, or remove it from hooks in orchestration.yaml",
        ) from error
    return module


@contextmanager
def _importable(root: Path, trusted: Mapping[Path, str]) -> Iterator[None]:
    """Let modules in *root* be imported, behind all others."""
    below, last = _Modules(root, trusted, is_last=False), _Modules(root, trusted, is_last=True)
    sys.meta_path[:] = [below, *sys.meta_path, last]
    try:
        yield
    finally:
        sys.meta_path[:] = [one for one in sys.meta_path if one not in (below, last)]


class _Modules(MetaPathFinder):
    """Finds the project's modules, in the source alone that was trusted.

    Byte code beside a module and a library of its name would act without having been shown, and
    so would a file that takes the place of a module that an installed package only looks for.
    """

    def __init__(self, root: Path, trusted: Mapping[Path, str], *, is_last: bool) -> None:
        """Find what is in *root* itself if it is the *last* one asked, else what is in packages.

        *trusted* has the fingerprints; empty: all of the project may act.
        """
        self._root = root
        self._trusted = trusted
        self._is_last = is_last
        # An environment may be in the project: what is installed there is no module of it.
        places = [Path(entry) for entry in sys.path if entry]
        self._installed = [one for one in places if root in one.parents]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a module of the project; None: this finder does not have it.

        The module loads only if its file was trusted, see `_TrustedSource`.
        """
        if (path is None) != self._is_last:
            return None
        for folder in [self._root] if path is None else map(Path, path):
            if not folder.is_relative_to(self._root):
                continue
            if any(folder.is_relative_to(one) for one in self._installed):
                continue
            loader = partial(_TrustedSource, self._trusted)
            finder = FileFinder(str(folder), (loader, [".py"]))  # type: ignore[arg-type]
            found = finder.find_spec(fullname, target)
            if found is not None:
                return found
        return None


class _TrustedSource(SourceFileLoader):
    """Loads a module from its source, and leaves no byte code there."""

    def __init__(self, trusted: Mapping[Path, str], fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._trusted = trusted

    def get_code(self, fullname: str) -> CodeType:
        """Return the code compiled from the source; byte code beside it is not read.

        Raises:
            ImportError: the file was not trusted.
            NotTrusted: its content has changed since.
        """
        file = self.get_filename(fullname)
        source = self.get_data(file)
        if self._trusted:
            real = Path(os.path.realpath(file))
            # One that leads out of the project is trusted by its own name.
            before = self._trusted.get(real, self._trusted.get(Path(file)))
            if before is None:
                raise ImportError(
                    f"{file} is not among the files that were trusted with the hooks; name it "
                    "in an import statement of a hook file",
                    name=fullname,
                    path=file,
                )
            _ensure_same(file, before, source)
        code: CodeType = compile(source, file, "exec", dont_inherit=True)
        return code


def _ensure_same(file: str, trusted: str | None, source: bytes) -> None:
    """Return if *file* with *source* is what was *trusted*; too large ones have no digest.

    Raises:
        NotTrusted: it is not, or nobody trusted it.
    """
    now = digest_text(source)
    line = f"hooks, file {file}: "
    if trusted is None:
        raise NotTrusted(file, (), (f"+ {line}{now}",))
    if trusted.startswith("sha256 ") and trusted != now:
        raise NotTrusted(file, (), (f"- {line}{trusted}", f"+ {line}{now}"))


def _source(path: Path) -> bytes:
    try:
        # The links in its path were followed before.
        return read_bytes(path, MAX_BYTES, os.O_NOFOLLOW)
    except ConfigurationError as error:
        raise UnsafePath(
            f"the hook file {error.message}",
            where=error.where,
            hint="hooks in orchestration.yaml are files, relative to its folder",
        ) from error
