"""Names that come from outside and end up in file names.

``slug`` is the only way from a branch, step or run name to a path component. It is
injective: two different names never share a folder or a log file.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from functools import lru_cache

MAX_COMPONENT_BYTES = 120
"""A slug is at most this long, so that prefix, suffix and attempt still fit into 255 bytes."""

_PLAIN = re.compile(r"[a-z0-9_](?:[a-z0-9_.]|-(?!-))*", re.ASCII)
_LIKE_AN_ATTEMPT = re.compile(r".*\.\d+", re.ASCII | re.DOTALL)
"""``main.2`` is how the log of the second attempt at ``main`` begins."""
_DIGEST_CHARS = 16
_NO_BRANCH = re.compile(
    r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|//|@\{|\A[-/.]|[/.]\Z|/\.|\.lock(?:/|\Z)|\A@\Z"
)


@lru_cache(maxsize=256)
def slug(name: str) -> str:
    r"""Return one path component for *name*; different names give different components.

    A name of lower-case ASCII letters, digits, ``_``, ``.`` and single ``-`` that starts with
    none of the marks is kept as it is; any other gets the first 64 bits of its SHA-256
    behind ``--``, which no kept name contains. Upper case counts as "other" because
    macOS folds case, and ``main.2`` because logs count attempts so.

    >>> slug("main"), slug("feature/x")
    ('main', 'feature-x--217d2bf51f16e9dc')
    >>> slug("../../etc")[:5], slug("-rf")[:4]
    ('etc--', 'rf--')
    """
    is_kept = (
        _PLAIN.fullmatch(name) is not None
        and not name.endswith(("-", "."))
        and _LIKE_AN_ATTEMPT.fullmatch(name) is None
        and len(name) <= MAX_COMPONENT_BYTES
    )
    if is_kept:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    readable = re.sub(r"[^a-z0-9_]+", "-", name.lower(), flags=re.ASCII).strip("-")[:40].strip("-")
    return f"{readable or 'x'}--{digest}"


def ref_part(slugged: str) -> str:
    """Return one part of a git ref's name for a slug; git takes fewer names than folders do.

    >>> ref_part("nightly"), ref_part("x.lock")[:8], ref_part("a..b")[:5]
    ('nightly', 'x-lock--', 'a-b--')
    """
    is_refused = slugged.endswith(".lock") or ".." in slugged
    # No name holds a NUL, so nobody else gets the digest.
    return slug(f"{slugged}\0") if is_refused else slugged


def is_branch_name(text: str) -> bool:
    """Return whether git takes *text* as the name of a branch (git-check-ref-format).

    >>> is_branch_name("sequencer/default"), is_branch_name("a..b"), is_branch_name("-f")
    (True, False, False)
    """
    return bool(text) and _NO_BRANCH.search(text) is None


def command(run_name: str | None, words: str) -> str:
    """Return ``sequencer WORDS`` about the run called *run_name*, to be typed as it stands."""
    if run_name is None:
        return f"'sequencer {words}'"
    quoted = shlex.quote(run_name)
    typed = f"sequencer --run {quoted} {words}"
    # Quotes around quotes would have to be taken apart by hand.
    return typed if quoted != run_name else f"'{typed}'"
