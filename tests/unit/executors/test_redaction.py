from __future__ import annotations

import random
import re

import pytest

from sequencer.executors.redaction import WINDOW, Redaction, RedactionStream

BODY = b"MIIEvQIBADANBgkqhkiG9w0BAQ+/EFAASCBK==\n"
PEM = b"-----BEGIN RSA PRIVATE KEY-----\n" + BODY * 3 + b"-----END RSA PRIVATE KEY-----"
KEYS = {
    "openai": b"sk-proj-" + b"aB3_" * 8,
    "anthropic": b"sk-ant-api03-" + b"aB3-" * 10,
    "github": b"ghp_" + b"a1" * 18,
    "github oauth": b"gho_" + b"a1" * 18,
    "github fine": b"github_pat_" + b"a1_" * 20,
    "aws": b"AKIAIOSFODNN7EXAMPLE",
    "google": b"AIza" + b"Sy-_" * 9,
    "slack": b"xoxb-1234567890-abcdef",
    "pem": PEM,
    "pem in json": PEM.replace(b"\n", b"\\n"),
    "openssh": PEM.replace(b"RSA", b"OPENSSH"),
    "value": b"correct horse battery",
    "value of lines": b"first line\nsecond line",
}
REDACTION = Redaction([KEYS["value"].decode(), KEYS["value of lines"].decode()])


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("around", [b"%b", b"key=%b\n", b'{"k": "%b"}', b"(%b)", b"\xff %b \x00"])
def test_keys_are_hidden_and_the_rest_is_not(name: str, around: bytes) -> None:
    hidden = REDACTION.hide(around % KEYS[name])
    assert hidden == around % b"[secret]"


def test_several_private_keys_are_hidden_each() -> None:
    assert REDACTION.hide(PEM + b"\nand\n" + PEM + b".") == b"[secret]\nand\n[secret]."
    assert REDACTION.hide(PEM[:80] + b"\n" + PEM + b".") == b"[secret]."


def test_a_bearer_token_is_hidden_and_the_word_bearer_stays() -> None:
    for word in (b"Bearer", b"bearer", b"BEARER"):
        header = b"Authorization: " + word + b" eyJhbGciOi.eyJzdWIi0.abc==\r\n"
        assert REDACTION.hide(header) == b"Authorization: " + word + b" [secret]\r\n"


@pytest.mark.parametrize(
    "text",
    [
        b"task-management-for-everybody and risk-assessment-of-things",
        b"the bearer certificate was shown by the bearer yesterday",
        b"sk-short, ghp_short, AKIA, AKIAiosfodnn7example, xoxo",
        b"XAKIAIOSFODNN7EXAMPLE is part of a longer word",
        b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        b"-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        b"",
    ],
)
def test_ordinary_text_stays(text: bytes) -> None:
    assert REDACTION.hide(text) == text
    stream = REDACTION.start_stream()
    assert stream.feed(text) + stream.finish() == text


def test_values_come_from_variables_with_secret_names() -> None:
    environment = {
        "SERVICE_API_KEY": "canary-key-1",
        "GH_TOKEN": "canary-token-2",
        "client_secret": "canary-secret-3",
        "DB_PASSWORD": "canary-password-4",
        "TOKEN": "canary-token-5",
        "KEYBOARD": "not-a-secret",
        "SHORT_KEY": "1234567",
        "PATH": "/usr/bin:/bin",
    }
    text = " ".join(environment.values())
    hidden = Redaction.from_environment(environment).hide_text(text)
    assert hidden == "[secret] " * 5 + "not-a-secret 1234567 /usr/bin:/bin"


def test_values_are_found_in_their_json_spelling() -> None:
    redaction = Redaction(['pass"word\nü'])
    for text in ('pass"word\nü', r"pass\"word\nü", r"pass\"word\n\u00fc"):
        assert redaction.hide_text(f"<{text}>") == "<[secret]>"


def test_secrets_that_overlap_vanish_together() -> None:
    redaction = Redaction(["abcdefgh", "efghijkl"])
    assert redaction.hide(b"-abcdefghijkl-") == b"-[secret]-"


def test_text_with_lone_surrogates_is_unchanged() -> None:
    assert REDACTION.hide_text("a\ud800b") == "a\ud800b"


def test_a_block_without_an_end_is_hidden_as_far_as_it_looks_like_one() -> None:
    cut_off = PEM[:90]
    assert REDACTION.hide(b"x " + cut_off) == b"x [secret]"
    assert REDACTION.hide(cut_off + b"\n(that was it)") == b"[secret](that was it)"


@pytest.mark.parametrize("name", [*KEYS, "bearer"])
@pytest.mark.parametrize("size", [1, 2, 7, 30])
def test_a_secret_split_across_pieces_is_hidden(name: str, size: int) -> None:
    data = KEYS.get(name, b"Bearer abcdefgh12345678.xyz")
    text = b"before " + data + b" after\n"
    stream = REDACTION.start_stream()
    written = b"".join(stream.feed(text[i : i + size]) for i in range(0, len(text), size))
    assert written + stream.finish() == REDACTION.hide(text)
    assert b"[secret]" in REDACTION.hide(text)


def test_a_value_that_ends_as_it_begins_does_not_leak() -> None:
    stream = Redaction(["abcXYabcXY"]).start_stream()
    assert stream.feed(b"abcXYabcXY") + stream.feed(b".") + stream.finish() == b"[secret]."


def test_complete_lines_are_not_delayed() -> None:
    stream = REDACTION.start_stream()
    assert stream.feed(b"a line\nhalf a w") == b"a line\nhalf a w"
    assert stream.feed(b"ord\nwith a task\n") == b"ord\nwith a task\n"
    assert stream.feed(b"key s") == b"key "
    assert stream.feed(b"un\n") == b"sun\n"


def held(stream: RedactionStream) -> int:
    return len(stream._held)


@pytest.mark.parametrize("piece", [b"a" * 1000, b"sk-" + b"a" * 997, BODY, b" ", b"bearer "])
def test_what_is_held_back_is_bounded(piece: bytes) -> None:
    stream = REDACTION.start_stream()
    stream.feed(PEM[:60])
    for _ in range(200):
        stream.feed(piece)
        assert held(stream) <= WINDOW


def test_no_key_gets_through_whatever_surrounds_it_and_however_it_is_cut() -> None:
    chance = random.Random(20)  # noqa: S311 - not for secrets
    filler = [b" ", b"\n", b"text ", b'"k": ', b"-----BEGIN ", b"bearer ", b"s ", b"gh "]
    for _ in range(400):
        parts = []
        for _ in range(6):
            parts += [chance.choice(filler), chance.choice(list(KEYS.values())), b" \n"]
        text = b"".join(parts)
        stream, written, place = REDACTION.start_stream(), b"", 0
        while place < len(text):
            size = chance.choice((1, 3, 20, 90, 400))
            written += stream.feed(text[place : place + size])
            place += size
        written += stream.finish()
        leaked = [name for name, key in KEYS.items() if re.escape(key) in re.escape(written)]
        assert not leaked
        assert BODY not in written
        assert written.count(b"[secret]") >= 6
