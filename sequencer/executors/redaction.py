"""Hides secrets in text that is stored, and removes control sequences for terminals.

Two kinds of secrets are known: the values of variables whose names say that they are secret,
and strings that look like keys of well-known services. The table of keys is from the rules of
gitleaks 8.30.1 (config/gitleaks.toml, MIT License, Copyright (c) 2019 Zachary Rice), with
somewhat smaller lengths, because a key that was cut off is still a secret.

Not promised: to find other secrets, secrets that were encoded (for example in base64) or split
on purpose, secrets that are longer than `WINDOW`, or keys without a special form.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache

from msgspec import Struct

WORD = rb"[A-Za-z0-9]"
DASH = rb"[A-Za-z0-9_-]"
_HEX = rb"[a-fA-F0-9]"
_DOTS = rb"[A-Za-z0-9_.=-]"
_BASE64 = rb"[A-Za-z0-9+/=]"
_UPPER = rb"[A-Z0-9]"
GUARD = 16
"""Maximum letters of a key to check before its prefix; most text fails earlier."""
LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.~+/=-"
"""All characters of keys; prefixes may have other ones."""


def _accept_any(_: bytes) -> bool:
    return True


class KeyRule(Struct, frozen=True):
    """The form of one kind of keys."""

    name: str
    starts: tuple[bytes, ...]
    body: bytes
    """A character class."""
    least: int
    """Fewest characters after the prefix."""
    before: bytes = WORD
    """Characters that may not be in front of a key; otherwise `task-` would contain `sk-`."""
    whole: bytes = b""
    """A pattern for what follows the prefix, if it is more than characters of the class."""
    shown: bool = False
    """Whether the prefix stays readable, because it is not part of the secret."""
    holds: Callable[[bytes], bool] = _accept_any
    """A further check that a pattern can't do."""


def _is_login(token: bytes) -> bool:
    """Return whether *token* is a login of Basic authentication: a name, a colon, a password."""
    unpadded_token = token.rstrip(b"=")
    try:
        login = base64.b64decode(unpadded_token + b"=" * (-len(unpadded_token) % 4), altchars=b"-_")
        return b":" in login and login.decode().isprintable()
    except (binascii.Error, ValueError):
        return False


_PLACEHOLDER = re.compile(
    rb"(?i)[^:]{0,19}:(?:[$%]?[{(\[].*|\$[a-z_]*|%s|x{2,}|\*+|\.{2,}"
    rb"|pass|passwd|password|pw|secret|token|[a-z_]*_token)?"
)


def _is_userinfo(text: bytes) -> bool:
    """Return whether there is a password before the ``@``, and not a placeholder."""
    return _PLACEHOLDER.fullmatch(text) is None


# In prose, a bearer is a person: a short word without a digit is not a token.
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
"""Each prefix is in only one rule."""
_ANCHORS = b"~_-.:JAbBZGp"
"""Anchor letters of the search for prefixes, rare ones first. Each prefix has one of them; the
fewer there are, the faster the search."""


class Start(Struct, frozen=True):
    """One prefix of a rule's keys."""

    text: bytes
    rule: KeyRule
    pattern: bytes
    """Matches a key from its start; the group is the part to hide."""
    back: int
    """The number of letters from the start of the prefix to the end of a match."""

    def find_prefix(self, hit: re.Match[bytes]) -> int:
        """Return where the prefix that *hit* found starts."""
        return hit.end() - self.back


# Compiled when they are first needed: most commands hide nothing, and the table is long.
@cache
def _compile(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern, re.ASCII)


def _border_pattern(rule: KeyRule) -> bytes:
    r"""Return a pattern for what may be in front of a key.

    The last letters of an escape are not part of a word: ``\n`` in JSON, ``%3D`` in an address,
    ``\x1b[1m`` for bold text.
    """
    escapes = (rb"\\[nrtbf]", rb"\\u[0-9a-fA-F]{4}", rb"%[0-9A-Fa-f]{2}", rb"[0-9;\[]m")
    alternatives = b"|".join(b"(?<=" + escape + b")" for escape in escapes)
    return b"(?:(?<!%b)|%b)" % (rule.before, alternatives)


def _build_start(text: bytes, rule: KeyRule, anchor_length: int) -> Start:
    pattern = rule.whole or b"%b{%d,}" % (rule.body, rule.least)
    form = b"%b(%b)" if rule.shown else b"(%b%b)"
    return Start(text, rule, form % (re.escape(text), pattern), anchor_length)


def _build_anchor(text: bytes, rule: KeyRule, letters: int) -> tuple[int, bytes, bytes]:
    """Return the anchor of *text*, a quick check after it, and the full check before it."""
    anchor = next(letter for letter in _ANCHORS if letter in text)
    place = text.rindex(anchor) + 1
    guard = b"(?=%b%b{%d})" % (re.escape(text[place:]), rule.body, min(rule.least, letters))
    return anchor, guard, b"(?<=%b%b)()" % (_border_pattern(rule), re.escape(text[:place]))


@cache
def _build_search(letters: int) -> tuple[re.Pattern[bytes], tuple[Start, ...]]:
    """Return a pattern for each prefix with *letters* after it, and the prefix of each group.

    One pass over a text is enough; the last group of a match identifies the prefix. The pattern
    searches for a few anchor letters and compares prefixes only there: an alternative for each
    prefix would be tried at every letter of the text. With 0 letters it finds a prefix alone,
    at the end of an incomplete text.
    """
    by_anchor: dict[int, dict[bytes, list[tuple[bytes, Start]]]] = {}
    for rule in RULES:
        for text in rule.starts:
            anchor, guard, check = _build_anchor(text, rule, letters)
            anchor_length = text.rindex(anchor) + 1
            groups = by_anchor.setdefault(anchor, {}).setdefault(guard, [])
            groups.append((check, _build_start(text, rule, anchor_length)))
    start_rules, parts = [], []
    for anchor, guards in by_anchor.items():
        alternatives = []
        for guard, group in guards.items():
            start_rules += [start for _, start in group]
            alternatives.append(guard + b"(?:" + b"|".join(check for check, _ in group) + b")")
        parts.append(re.escape(bytes([anchor])) + b"(?:" + b"|".join(alternatives) + b")")
    return re.compile(b"|".join(parts), re.ASCII), tuple(start_rules)


@cache
def _incomplete_prefixes() -> dict[bytes, bytes]:
    """Return each incomplete prefix, with the pattern that has to match in front of it."""
    borders: dict[bytes, set[bytes]] = {}
    for rule in RULES:
        for text in rule.starts:
            for length in range(1, len(text)):
                borders.setdefault(text[:length], set()).add(_border_pattern(rule))
    marks = {_PEM_MARK[:prefix_length]: b"" for prefix_length in range(1, len(_PEM_MARK))}
    return {part: b"|".join(sorted(forms)) for part, forms in borders.items()} | marks


_STARTS = tuple(text for rule in RULES for text in rule.starts)
_LONGEST_START = max(map(len, _STARTS))
_SHORT = 256
"""Shorter data needs no compiled search, which takes 10 ms to prepare."""


HIDDEN = b"[secret]"
MIN_VALUE = 8
"""Fewest characters of a value; a shorter one ("test", "1") would hide ordinary words."""
WINDOW = 32_768
"""Maximum bytes that a stream holds back, and the length of the longest secret that it finds."""

_SECRET_NAME = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)
_PEM_MARK = b"-----BEGIN "
_PEM_HEAD = rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_PEM_BODY = rb"(?:[A-Za-z0-9+/=:, \r\n-]|\\[nr]){0,30000}"
_PEM = re.compile(_PEM_HEAD + _PEM_BODY)
_PEM_FINISHED = re.compile(rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_UNFINISHED_PEM_HEAD = re.compile(_PEM_MARK + rb"[A-Z0-9 ]{0,60}-{0,5}\Z")
_PEM_HEAD_LENGTH = 90
"""Bytes of the longest first line of a private key."""
_ADDRESS_LENGTH = 600
"""Bytes of the longest login in an address."""
_UNFINISHED_ADDRESS = re.compile(rb"://[^\s/?#@\"'<>\\]*\Z")
_BLANK_HEAD = len(b"bearer ")
"""The longest prefix that ends with a blank; other keys have no blanks."""


class Redaction:
    """Hides the secrets of one process; safe to share between threads."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        """Hide *values* and everything that looks like a key."""
        forms = {
            form for value in values if len(value) >= MIN_VALUE for form in _encode_forms(value)
        }
        self._values = tuple(sorted(form for form in forms if len(form) <= WINDOW))
        self.hide_name = lru_cache(256)(self.hide_text)
        """`hide_text` with a cache, for texts that each step repeats."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Redaction:
        """Return the redaction for the secret variables of *environment*.

        >>> redaction = Redaction.from_environment({"API_KEY": "hunter2-hunter2"})
        >>> redaction.hide_text("it is hunter2-hunter2.")
        'it is [secret].'
        """
        return cls(value for name, value in environment.items() if _SECRET_NAME.search(name))

    def hide(self, data: bytes) -> bytes:
        """Return *data* with each secret replaced by ``[secret]``."""
        return _hide_spans(data, self._spans(data)) if self._may_have_secret(data) else data

    def _may_have_secret(self, data: bytes) -> bool:
        """Return whether *data* may have a secret; most data has none."""
        # Not `in`: on bytes, CPython 3.11 raises and discards an error each time.
        if len(data) <= _SHORT:
            is_shaped = any(map(data.count, _STARTS))
        else:
            is_shaped = _build_search(GUARD)[0].search(data) is not None
        return is_shaped or data.find(_PEM_MARK) >= 0 or any(map(data.count, self._values))

    def hide_text(self, text: str) -> str:
        """Return *text* with each secret replaced."""
        if not text:
            return text
        data = text.encode("utf-8", "surrogatepass")
        return self.hide(data).decode("utf-8", "surrogatepass")

    def start_stream(self) -> RedactionStream:
        """Return a redaction for one stream that comes in pieces."""
        return RedactionStream(self)

    def hide_settled(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the part of *data* that can be written, and the rest, which needs more bytes."""
        spans = self._spans(data)
        cut_place = min(self._find_unfinished_value(data), _find_unfinished_key(data))
        # A secret may end the way it starts: its end must not count as a new start.
        cut_place = next((start for start, end in spans if start < cut_place < end), cut_place)
        if len(data) - cut_place > WINDOW:
            cut_place = len(data) - WINDOW
            cut_place = next((end for start, end in spans if start < cut_place < end), cut_place)
        return _hide_spans(
            data[:cut_place], [span for span in spans if span[1] <= cut_place]
        ), data[cut_place:]

    def _find_unfinished_value(self, data: bytes) -> int:
        cut_place = len(data)
        for value in self._values:
            place = data.find(value[:1], max(len(data) - len(value) + 1, 0))
            while 0 <= place < cut_place:
                if value.startswith(data[place:]):
                    cut_place = place
                    break
                place = data.find(value[:1], place + 1)
        return cut_place

    def _spans(self, data: bytes) -> list[tuple[int, int]]:
        """Return the spans of secrets, in order; overlapping spans are merged."""
        spans = []
        for value in self._values:
            place = data.find(value)
            while place >= 0:
                spans.append((place, place + len(value)))
                place = data.find(value, place + 1)
        spans += _find_key_spans(data)
        spans += [(start, end) for start, end, _ in _pem_blocks(data)]
        merged_spans: list[tuple[int, int]] = []
        for start, end in sorted(spans):
            if merged_spans and start < merged_spans[-1][1]:
                merged_spans[-1] = (merged_spans[-1][0], max(end, merged_spans[-1][1]))
            else:
                merged_spans.append((start, end))
        return merged_spans


class RedactionStream:
    """Hides secrets in a stream, even if a secret is split between two pieces.

    Text that may be the start of a secret is held back until that is certain; a complete line
    is held back only inside a private key or a secret of several lines.
    """

    def __init__(self, redaction: Redaction) -> None:
        """Start with no held-back text."""
        self._redaction = redaction
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Process the next piece and return the text that can be written."""
        settled_data, self._held = self._redaction.hide_settled(self._held + data)
        return settled_data

    def finish(self) -> bytes:
        """Return the held-back text at the end of the stream."""
        held_data, self._held = self._held, b""
        return self._redaction.hide(held_data) if held_data else held_data


def _encode_forms(value: str) -> set[bytes]:
    """Return a secret unchanged, and the way event streams write it: in JSON, with escapes."""
    texts = (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    return {text.encode("utf-8", "surrogateescape") for text in texts}


def _pem_blocks(data: bytes) -> Iterator[tuple[int, int, bool]]:
    """Yield start and end of each private key, and whether more of it may follow."""
    start = data.find(_PEM_MARK)
    while start >= 0:
        end = start + 1
        block = _PEM.match(data, start)
        if block is not None:
            finished = _PEM_FINISHED.search(data, start, block.end())
            # If a key was cut off, everything that looks like the key is hidden.
            end = finished.end() if finished else block.end()
            # A lone backslash may become the \\n of a key in JSON.
            yield start, end, not finished and data[end:] in {b"", b"\\"}
        start = data.find(_PEM_MARK, end)


def _hide_spans(data: bytes, spans: list[tuple[int, int]]) -> bytes:
    pieces, place = [], 0
    for start, end in spans:
        pieces += [data[place:start], HIDDEN]
        place = end
    return b"".join((*pieces, data[place:])) if pieces else data


def _find_key_spans(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the span of each key by its form; for some rules the prefix stays readable."""
    last_end = 0
    search, start_rules = _build_search(GUARD)
    for hit in search.finditer(data):
        start = start_rules[(hit.lastindex or 1) - 1]
        place = start.find_prefix(hit)
        # A key may contain the prefix of another one.
        key = _compile(start.pattern).match(data, place) if place >= last_end else None
        if key is not None and start.rule.holds(key[1]):
            last_end = key.end(1)
            yield key.span(1)


def _find_unfinished_key(data: bytes) -> int:
    """Return the start of a key that more data may continue, else the length of *data*."""
    size = len(data)
    # No key spans lines or blanks, but the prefix "Bearer " ends with a blank.
    line_start = max(data.rfind(b"\n") + 1, size - WINDOW)
    cuts = [size, *(start for start, _, is_open in _pem_blocks(data) if is_open)]
    for length in range(1, min(_LONGEST_START, size - line_start + 1)):
        border = _incomplete_prefixes().get(data[size - length :])
        if border is not None and _compile(border).match(data, size - length):
            cuts.append(size - length)
    word = line_start + len(data[line_start:].rstrip(LETTERS))
    search, start_rules = _build_search(0)
    for hit in search.finditer(data, max(word - _BLANK_HEAD, line_start)):
        start = start_rules[(hit.lastindex or 1) - 1]
        if start.find_prefix(hit) + len(start.text) >= word:
            cuts.append(start.find_prefix(hit))
            break
    address = data.rfind(b"://", max(line_start, size - _ADDRESS_LENGTH))
    if address >= 0 and _UNFINISHED_ADDRESS.match(data, address):
        cuts.append(address)
    head = data.rfind(_PEM_MARK, max(line_start, size - _PEM_HEAD_LENGTH))
    if head >= 0 and _UNFINISHED_PEM_HEAD.match(data, head):
        cuts.append(head)
    return min(cuts)


STRING_CHARS = 4096
"""Longest title or device string that is removed; the rest of a longer one stays."""
CONTROL = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
CSI = "(?:\x1b\\[|\x9b)[0-?]*[ -/]*"
STRING = f"(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{{0,{STRING_CHARS}}}"
_SEQUENCE = re.compile(f"{CSI}[@-~]|{STRING}(?:\x07|\x1b\\\\|\x9c)?|\x1b[ -/]*[0-~]|{CONTROL}")
_SURROGATE = re.compile("[\ud800-\udfff]")


def strip_sequences(text: str) -> str:
    r"""Return *text* without sequences and control characters, except tab, newline and return.

    >>> strip_sequences("\x1b]0;owned\x07red: \x1b[31mno\x1b[0m\x08\r\n")
    'red: no\r\n'
    """
    return _SURROGATE.sub("\ufffd", _SEQUENCE.sub("", text))
