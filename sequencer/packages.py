"""Installed packages that extend Sequencer: their names, their entry points and their errors.

A package is named by its distribution. Its errors are reported as its own: never as a bug of this
program, and never as a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sequencer.errors import PackageFailed, SequencerError

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

_SHOWN_CHARS = 300


def ensure_fields(created: object, **kinds: Any) -> None:
    """Check that each attribute of *created* that *kinds* names has its type, or one of its types.

    Raises:
        TypeError: an attribute has another type; the authors of the package read the message.
    """
    for name, kind in kinds.items():
        if not isinstance(value := getattr(created, name), kind):
            owner = type(created).__name__
            raise TypeError(f"{name} of {owner} can't be {describe(value)}")


def get_distribution_name(point: EntryPoint) -> str:
    """Return the name of the distribution that provides *point*."""
    return point.dist.name if point.dist is not None else "an unnamed package"


def format_entry_point(point: EntryPoint) -> str:
    """Return *point* as its package writes it, to say where an error is."""
    return f"{point.group}: {point.name} = {point.value}"


def sequencer_entry_points() -> Iterator[EntryPoint]:
    """Yield the entry points of installed packages for Sequencer without loading them.

    A package whose metadata is malformed has none here; see `malformed_packages`.
    """
    for package in _packages():
        points = _read_entry_points(package)
        yield from points if not isinstance(points, Exception) else ()


def malformed_packages() -> Iterator[PackageFailed]:
    """Yield an error for each installed package for Sequencer whose metadata is malformed."""
    for package in _packages():
        if isinstance(error := _read_entry_points(package), Exception):
            what = f"has a malformed entry_points.txt: {describe_error(error)}"
            yield package_error(package.name, what)


def _packages() -> Iterator[Distribution]:
    """Yield the installed packages for Sequencer, each in the version that Python imports."""
    from importlib.metadata import distributions  # noqa: PLC0415 - slow to import

    seen = set[str]()
    for package in distributions():
        # Read this file first: the name is in another file, which is slow to parse.
        if "[sequencer." in (package.read_text("entry_points.txt") or "") and (
            package.name not in seen
        ):
            seen.add(package.name)
            yield package


def _read_entry_points(package: Distribution) -> list[EntryPoint] | Exception:
    """Return the entry points of *package* for Sequencer, or why they can't be read."""
    try:
        return [point for point in package.entry_points if point.group.startswith("sequencer.")]
    except Exception as error:  # noqa: BLE001 - importlib raises whatever its parser stumbles over
        return error


def describe_error(error: BaseException) -> str:
    """Return the type and the message of *error* on one line.

    >>> describe_error(KeyError("x")), describe_error(SystemExit())
    ("KeyError: 'x'", 'SystemExit')
    """
    try:
        text = " ".join(str(error).split())[:_SHOWN_CHARS]
    except Exception:  # noqa: BLE001 - a package's own __str__ can raise anything
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def describe_bug(error: BaseException) -> str:
    """Return the type and the message of *error*, and the file and line of the package's code."""
    place, frame = "", error.__traceback__
    while frame is not None:
        module = str(frame.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if module != "sequencer" and module not in sys.stdlib_module_names:
            file_name = os.path.basename(frame.tb_frame.f_code.co_filename)  # noqa: PTH119
            place = f" ({file_name}, line {frame.tb_lineno})"
        frame = frame.tb_next
    return describe_error(error) + place


def describe(value: object) -> str:
    """Return *value* in a few words; an object's own repr may be endless."""
    if value is None or isinstance(value, (str, int, float)):
        return ascii(value)[:_SHOWN_CHARS]
    return f"an object of type {type(value).__name__}"


def package_error(package: str, what: str, where: str | None = None) -> PackageFailed:
    """Return the error that says *what* is wrong with *package*."""
    return PackageFailed(
        f"the package {package!r} {what}",
        where=where,
        hint=disable_hint(package),
    )


def disable_hint(package: str) -> str:
    """Return what to do about a fault of *package*."""
    return f"report it to its authors, or disable it: plugins: {{{package}: off}}"


def to_package_error(error: BaseException) -> PackageFailed | None:
    """Return *error* as `PackageFailed` if a package's code raised it, or else None."""
    if isinstance(error, (SequencerError, KeyboardInterrupt)):
        return None
    package = find_package_that_raised(error)
    if package is None:
        return None
    failure = package_error(package, f"failed: {describe_bug(error)}")
    failure.__cause__ = error
    return failure


def find_package_that_raised(error: BaseException) -> str | None:
    """Return the package with entry points for Sequencer whose code raised *error*, if one did."""
    modules, frame = set[str](), error.__traceback__
    while frame is not None:
        modules.add(str(frame.tb_frame.f_globals.get("__name__", "")).partition(".")[0])
        frame = frame.tb_next
    for entry in sequencer_entry_points():
        # `entry.module` raises if the value is malformed.
        if entry.value.partition(":")[0].strip().partition(".")[0] in modules:
            return get_distribution_name(entry)
    return None


def may_add(group: str) -> bool:
    """Return whether an installed package may have entry points in *group*.

    This reads the files that importlib.metadata would read, but does not load that module, which
    takes ten times longer. If a path is not a folder of packages, the answer is yes.
    """
    from importlib.machinery import PathFinder  # noqa: PLC0415 - the idle tick has no use for it

    finders = (finder for finder in sys.meta_path if finder is not PathFinder)
    if any(hasattr(finder, "find_distributions") for finder in finders):
        return True
    try:
        return any(
            group.encode() in _read_entry_point_files(*key) for key in _list_package_folders()
        )
    except OSError:
        return True


def _list_package_folders() -> Iterator[tuple[str, int]]:
    """Yield the folders of packages, each with the time of its last change."""
    for folder in sys.path:
        with suppress(FileNotFoundError):
            yield folder or ".", os.stat(folder or ".").st_mtime_ns  # noqa: PTH116


@lru_cache(maxsize=64)
def _read_entry_point_files(folder: str, changed_ns: int) -> bytes:
    """Return the entry points of all packages in *folder*, which was last changed *changed_ns*.

    Raises:
        OSError: it is not a folder, or can't be read.
    """
    del changed_ns  # only part of the cache key: packages are replaced, never edited
    texts = list[bytes]()
    for name in os.listdir(folder):  # noqa: PTH208 - no Path for each name
        if name.endswith((".dist-info", ".egg-info", "EGG-INFO")):
            place = os.path.join(folder, name, "entry_points.txt")  # noqa: PTH118 - the same
            with suppress(OSError), open(place, "rb") as file:  # noqa: PTH123 - the same
                texts.append(file.read())
    return b"\n".join(texts)
