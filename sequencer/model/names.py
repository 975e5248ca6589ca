"""Names that come from outside and end up in file names.

``slug`` is the only way from a branch, step or run name to a path component. It is
injective: two different names never share a folder or a log file.
"""

from __future__ import annotations

import hashlib
import re

MAX_COMPONENT_BYTES = 120
"""A slug is at most this long, so that prefix, suffix and attempt still fit into 255 bytes."""

_PLAIN = re.compile(r"[a-z0-9_](?:[a-z0-9_.]|-(?!-))*", re.ASCII)
_LIKE_AN_ATTEMPT = re.compile(r".*\.\d+", re.ASCII | re.DOTALL)
"""``main.2`` is how the log of the second attempt at ``main`` begins."""
_DIGEST_CHARS = 16


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
