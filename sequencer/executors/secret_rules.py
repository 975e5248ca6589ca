"""What the keys, logins and tokens of well-known services look like, as a table.

The beginnings, letters and lengths are those of the rules of gitleaks 8.30.1
(config/gitleaks.toml, MIT License, Copyright (c) 2019 Zachary Rice); the lengths are somewhat
smaller, because a key that was cut off is one too. Taken are rules that a text can be searched
for in one pass: with a fixed beginning, and then letters of one class. Each has a name for
people. Not promised: keys without a shape of their own, as a mere row of hexadecimal digits is.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass

WORD = rb"[A-Za-z0-9]"
DASH = rb"[A-Za-z0-9_-]"
_HEX = rb"[a-fA-F0-9]"
_DOTS = rb"[A-Za-z0-9_.=-]"
_BASE64 = rb"[A-Za-z0-9+/=]"
_UPPER = rb"[A-Z0-9]"
GUARD = 16
"""Letters at most that are looked at before beginnings are compared: most text stops earlier."""
LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.~+/=-"
"""All that a key consists of; beginnings may have others."""


def _any(_: bytes) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class KeyRule:
    """How keys of one kind begin and go on."""

    name: str
    starts: tuple[bytes, ...]
    body: bytes
    """A class of letters."""
    least: int
    before: bytes = WORD
    """What may not stand before it; without it `task-` would hold an `sk-` key."""
    whole: bytes = b""
    """What follows the beginning, where that is more than a row of letters of the class."""
    shown: bool = False
    """Whether the beginning is no part of the secret."""
    holds: Callable[[bytes], bool] = _any
    """What a look at the letters alone can't tell."""


def _is_login(token: bytes) -> bool:
    """Return whether *token* is what Basic authentication sends: a name, a colon, a password."""
    kept = token.rstrip(b"=")
    try:
        login = base64.b64decode(kept + b"=" * (-len(kept) % 4), altchars=b"-_")
        return b":" in login and login.decode().isprintable()
    except (binascii.Error, ValueError):
        return False


_PLACEHOLDER = re.compile(
    rb"(?i)[^:]{0,19}:(?:[$%]?[{(\[].*|\$[a-z_]*|%s|x{2,}|\*+|\.{2,}"
    rb"|pass|passwd|password|pw|secret|token|[a-z_]*_token)?"
)


def _is_userinfo(text: bytes) -> bool:
    """Return whether there is a password before the ``@``, and not what stands for one."""
    return _PLACEHOLDER.fullmatch(text) is None


# In prose a bearer is a person: a short word without a digit is no token.
_BEARER = rb"(?:(?=[A-Za-z._~+/-]*[0-9])[A-Za-z0-9_.~+/-]{8,}|[A-Za-z0-9_.~+/-]{20,})=*"
_USERINFO = rb"(?:[A-Za-z0-9_-]{20,256}|[^\s/?#@:\"'<>\\]{0,256}:[^\s/?#@\"'<>\\]{0,256})(?=@)"

RULES = (
    KeyRule("OpenAI, Anthropic and others", (b"sk-",), DASH, 16, DASH),
    KeyRule("GitHub", (b"gho_", b"ghp_", b"ghr_", b"ghs_", b"ghu_"), WORD, 20),
    KeyRule("GitHub, fine-grained", (b"github_pat_",), rb"[A-Za-z0-9_]", 20),
    KeyRule(
        "GitLab",
        (
            b"glpat-", b"gldt-", b"glrt-", b"glptt-", b"glcbt-", b"glffct-", b"glft-", b"glimt-",
            b"glagent-", b"gloas-", b"glsoat-", b"GR1348941",
        ),
        DASH, 16, whole=rb"[\w-]{16,}(?:\.[0-9a-z]{9})?",
    ),
    KeyRule("AWS", (b"AKIA", b"ASIA", b"ABIA", b"ACCA"), _UPPER, 16),
    KeyRule("AWS Bedrock", (b"ABSK",), _BASE64, 60),
    KeyRule("Google", (b"AIza",), DASH, 30, DASH),
    KeyRule("Slack", tuple(b"xox%c-" % letter for letter in b"abeoprs"), rb"[A-Za-z0-9-]", 10),
    KeyRule("Slack, app", (b"xapp-",), rb"[A-Za-z0-9-]", 20),
    KeyRule("Slack, webhook", (b"hooks.slack.com/services/",), rb"[A-Za-z0-9+/]", 30),
    KeyRule(
        "Stripe",
        (b"sk_live_", b"sk_test_", b"sk_prod_", b"rk_live_", b"rk_test_", b"rk_prod_"), WORD, 10,
    ),
    KeyRule("npm", (b"npm_",), WORD, 30),
    KeyRule("Hugging Face", (b"hf_", b"api_org_"), WORD, 30),
    KeyRule("PyPI", (b"pypi-",), DASH, 50),
    KeyRule("Shopify", (b"shpat_", b"shpca_", b"shppa_", b"shpss_"), _HEX, 28),
    KeyRule("DigitalOcean", (b"doo_v1_", b"dop_v1_", b"dor_v1_"), _HEX, 40),
    KeyRule("Linear", (b"lin_api_",), WORD, 30),
    KeyRule("Grafana", (b"glsa_", b"glc_"), rb"[A-Za-z0-9+/=_]", 30),
    KeyRule("RubyGems", (b"rubygems_",), _HEX, 40),
    KeyRule("SendGrid", (b"SG.",), _DOTS, 60),
    KeyRule("Sendinblue", (b"xkeysib-",), rb"[A-Za-z0-9-]", 60),
    KeyRule("HashiCorp Vault", (b"hvs.", b"hvb."), DASH, 60),
    KeyRule("Databricks", (b"dapi",), rb"[a-f0-9-]", 32),
    KeyRule("Doppler", (b"dp.pt.",), WORD, 40),
    KeyRule("Dynatrace", (b"dt0c01.",), rb"[A-Za-z0-9.]", 60),
    KeyRule("Notion", (b"ntn_",), WORD, 40),
    KeyRule("Perplexity", (b"pplx-",), WORD, 40),
    KeyRule("PlanetScale", (b"pscale_tkn_", b"pscale_oauth_", b"pscale_pw_"), _DOTS, 30),
    KeyRule("Postman", (b"PMAK-",), rb"[a-fA-F0-9-]", 50),
    KeyRule("Prefect", (b"pnu_",), WORD, 30),
    KeyRule("Pulumi", (b"pul-",), _HEX, 36),
    KeyRule("ReadMe", (b"rdme_",), WORD, 60),
    KeyRule("Sentry", (b"sntrys_", b"sntryu_"), rb"[A-Za-z0-9+/=_]", 40),
    KeyRule("Shippo", (b"shippo_live_", b"shippo_test_"), _HEX, 36),
    KeyRule("Square", (b"sq0atp-",), DASH, 20),
    KeyRule("Fly.io", (b"fo1_", b"fm1a_", b"fm1r_", b"fm2_"), rb"[A-Za-z0-9+/=_-]", 40),
    KeyRule("EasyPost", (b"EZAK", b"EZTK"), WORD, 50),
    KeyRule("1Password", (b"ops_eyJ",), _BASE64, 100),
    KeyRule("age", (b"AGE-SECRET-KEY-1",), _UPPER, 50),
    KeyRule("Artifactory", (b"AKCp",), WORD, 60),
    KeyRule("Alibaba", (b"LTAI",), WORD, 18),
    KeyRule("OpenShift", (b"sha256~",), DASH, 40),
    KeyRule("Heroku", (b"HRKU-AA",), DASH, 50),
    KeyRule("Atlassian", (b"ATATT3",), rb"[A-Za-z0-9_=-]", 100),
    KeyRule(
        "JSON Web Token", (b"eyJ",), DASH, 10, DASH,
        rb"[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]*={0,2}",
    ),
    KeyRule(
        "Bearer", (b"Bearer ", b"bearer ", b"BEARER "), rb"[A-Za-z0-9_.~+/=-]", 8,
        whole=_BEARER, shown=True,
    ),
    KeyRule(
        "Basic", (b"Basic ", b"basic ", b"BASIC "), rb"[A-Za-z0-9+/_-]", 8,
        whole=rb"[A-Za-z0-9+/_-]{8,}={0,2}", shown=True, holds=_is_login,
    ),
    KeyRule(
        "a login in an address", (b"://",), rb"[^\s/?#@\"'<>\\]", 2, before=rb"[^A-Za-z0-9+.-]",
        whole=_USERINFO, shown=True, holds=_is_userinfo,
    ),
)  # fmt: skip
"""Each start stands in one rule only."""
_ANCHORS = b"~_-.:JAbBZGp"
"""By which of its letters a start is searched for, rare ones first; the fewer there are of these
the faster is the search, and all starts have one."""


@dataclass(frozen=True, slots=True)
class Start:
    """One beginning of a rule's keys."""

    text: bytes
    rule: KeyRule
    key: re.Pattern[bytes]
    """Matches a key from its beginning; the group is what is hidden of it."""
    back: int
    """How many letters before the end of what was found it is."""

    def place(self, hit: re.Match[bytes]) -> int:
        """Return where it begins that *hit* has found."""
        return hit.end() - self.back


def _border(rule: KeyRule) -> bytes:
    r"""Return a pattern for what a key may stand behind.

    The letters that end an escape are none of a word: ``\n`` in JSON, ``%3D`` in an address,
    ``\x1b[1m`` that makes it bold.
    """
    escapes = (rb"\\[nrtbf]", rb"\\u[0-9a-fA-F]{4}", rb"%[0-9A-Fa-f]{2}", rb"[0-9;\[]m")
    ways = b"|".join(b"(?<=" + escape + b")" for escape in escapes)
    return b"(?:(?<!%b)|%b)" % (rule.before, ways)


def _start(text: bytes, rule: KeyRule, back: int) -> Start:
    whole = rule.whole or b"%b{%d,}" % (rule.body, rule.least)
    form = b"%b(%b)" if rule.shown else b"(%b%b)"
    return Start(text, rule, re.compile(form % (re.escape(text), whole), re.ASCII), back)


def _anchored(text: bytes, rule: KeyRule, letters: int) -> tuple[int, bytes, bytes]:
    """Return the anchor of *text*, what is looked at first, and what then makes it certain."""
    anchor = next(letter for letter in _ANCHORS if letter in text)
    place = text.rindex(anchor) + 1
    guard = b"(?=%b%b{%d})" % (re.escape(text[place:]), rule.body, min(rule.least, letters))
    return anchor, guard, b"(?<=%b%b)()" % (_border(rule), re.escape(text[:place]))


def _search(letters: int) -> tuple[re.Pattern[bytes], tuple[Start, ...]]:
    """Return what finds each start with some *letters* after it, and by group which it was.

    Few letters are searched for, and only behind these the starts are compared: an alternative
    for each start would be tried at every letter of the text.
    """
    by_anchor: dict[int, dict[bytes, list[tuple[bytes, Start]]]] = {}
    for rule in RULES:
        for text in rule.starts:
            anchor, guard, certain = _anchored(text, rule, letters)
            back = text.rindex(anchor) + 1
            groups = by_anchor.setdefault(anchor, {}).setdefault(guard, [])
            groups.append((certain, _start(text, rule, back)))
    found, parts = [], []
    for anchor, guards in by_anchor.items():
        ways = []
        for guard, group in guards.items():
            found += [start for _, start in group]
            ways.append(guard + b"(?:" + b"|".join(certain for certain, _ in group) + b")")
        parts.append(re.escape(bytes([anchor])) + b"(?:" + b"|".join(ways) + b")")
    return re.compile(b"|".join(parts), re.ASCII), tuple(found)


SEARCH, FOUND = _search(GUARD)
"""One pass over a text; a match's last group says which of `FOUND` it is."""
BEGUN, BEGINNINGS = _search(0)
"""The same for a start alone: at the end of a text that is not all there."""


def _parts() -> dict[bytes, re.Pattern[bytes]]:
    borders: dict[bytes, set[bytes]] = {}
    for rule in RULES:
        for text in rule.starts:
            for length in range(1, len(text)):
                borders.setdefault(text[:length], set()).add(_border(rule))
    return {part: re.compile(b"|".join(sorted(some))) for part, some in borders.items()}


PARTS = _parts()
"""What may become a start, with what has to match where it begins."""
LONGEST_START = max(map(len, PARTS)) + 1
