"""Secrets of every rule, made up while the tests run: no scanner finds one in these files."""

from __future__ import annotations

import base64
import random
import string

from sequencer.executors.redaction import RULES

_CHANCE = random.Random(14)  # noqa: S311 - they open nothing
_SPECIAL = ("JSON Web Token", "Bearer", "Basic", "a login in an address")


def letters(count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "".join(_CHANCE.choices(alphabet, k=count))


def _body(body: bytes, least: int) -> str:
    if b"a-f" in body:
        return letters(least + 4, "0123456789abcdef")
    return letters(least + 4, string.ascii_uppercase + "234567" if b"a-z" not in body else
                   string.ascii_letters + string.digits)  # fmt: skip


def plain_keys() -> dict[str, str]:
    """Return a key for each beginning of a rule that hides all of it."""
    return {
        start.decode(): start.decode() + _body(rule.body, rule.least)
        for rule in RULES
        if rule.name not in _SPECIAL
        for start in rule.starts
    }


def _coded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


JWT = ".".join((_coded('{"alg":"HS256","typ":"JWT"}'), _coded('{"sub":"1234567890"}'), letters(43)))
LOGIN = f"{letters(6)}:{letters(14)}"
BASIC = base64.b64encode(LOGIN.encode()).decode()
BEARER = letters(12) + "7" + letters(12)

SECRETS: dict[str, tuple[str, str]] = {
    **{name: ("", key) for name, key in plain_keys().items()},
    "glpat, routable": ("", "gl" + "pat-" + letters(27) + ".0a1b2c3d4"),
    "jwt": ("", JWT),
    "bearer": ("Authorization: Bearer ", BEARER),
    "basic": ("Authorization: Basic ", BASIC),
    "basic, curl": ("-H 'authorization: basic ", BASIC),
    "url": ("https://", LOGIN),
    "url of a database": ("postgres://", f"app:{letters(9)}!$%40x"),
    "url with a token alone": ("https://", letters(40, "0123456789abcdef")),
    "url with a token as the user": ("https://", f"{letters(30)}:"),
}
"""By name: what stands before the secret and stays, and the secret."""


def said(name: str) -> str:
    """Return the secret of that name as it stands in a text."""
    before, secret = SECRETS[name]
    return f"{before}{secret}" + ("@host.example/a.git" if name.startswith("url") else "")
