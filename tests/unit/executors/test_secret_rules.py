"""Each rule of the table: what it hides, however the stream is cut, and what it leaves."""

from __future__ import annotations

import base64
import random
import time

import pytest

from sequencer.executors.redaction import RULES, Redaction
from tests.unit.executors.secret_samples import SECRETS, said

REDACTION = Redaction()
NAMES = sorted(SECRETS)


def test_there_is_a_secret_for_each_rule() -> None:
    assert len(SECRETS) > 80
    assert {text.decode() for rule in RULES[:-4] for text in rule.starts} <= set(SECRETS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("around", ["{}", "key={} \n", '{{"k": "{}"}}', "({})", "\x1b[1m{}\x1b[0m"])
def test_the_secret_is_hidden_and_the_rest_stays(name: str, around: str) -> None:
    _, secret = SECRETS[name]
    text = around.format(said(name))
    assert REDACTION.hide_text(text) == text.replace(secret, "[secret]")


@pytest.mark.parametrize("name", NAMES)
def test_wherever_a_stream_is_cut_the_secret_is_hidden(name: str) -> None:
    text = f"it is {said(name)} in the end\n".encode()
    expected = REDACTION.hide(text)
    for cut in range(len(text) + 1):
        stream = REDACTION.start_stream()
        assert stream.feed(text[:cut]) + stream.feed(text[cut:]) + stream.finish() == expected, cut
    stream = REDACTION.start_stream()
    letters = [stream.feed(text[place : place + 1]) for place in range(len(text))]
    assert b"".join(letters) + stream.finish() == expected


@pytest.mark.parametrize(
    "text",
    [
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "550e8400-e29b-41d4-a716-446655440000",
        "https://host:8080/ http://localhost:3000/a@b https://example.com/?mail=a@b.c",
        "ssh://git@github.com/a/b.git git@github.com:a/b.git https://user@host/",
        "postgres://user:password@localhost/db https://x:${TOKEN}@host/ http://u:$PASS@h/",
        "https://user:<password>@host https://me:***@host https://a:%(token)s@b redis://:@h",
        'a "http://host:80","b@c" http://host:80\\nb@c',
        "Basic authentication, basic JavaScript, Basic Internationalization, basic 12345678",
        "the bearer of bad news, Bearer tokens",
        "npm_config_registry npm_lifecycle_event npm_package_version npm_execpath",
        "hf_hub_download(repo_id) hf_transfer sk_live_mode glsa_ pypi-publish@release",
        "task-management-for-everybody disk-usage-analysis-of-the-whole-machine",
        "eyJhbGciOiJIUzI1NiJ9 alone is no token, and eyJ.eyJ.eyJ neither",
        "src/sequencer/executors/redaction.py::test_something_that_is_long[param0-param1]",
        "data:image/png;base64," + base64.b64encode(random.Random(5).randbytes(60_000)).decode(),  # noqa: S311
    ],
    ids=range(16),
)  # fmt: skip
def test_text_that_only_resembles_a_secret_stays(text: str) -> None:
    assert REDACTION.hide_text(text) == text
    stream = REDACTION.start_stream()
    assert (stream.feed(text.encode()) + stream.finish()).decode() == text


HOSTILE = [
    b"sk-", b"eyJ", b".eyJ", b"eyJaaaaaaaaaaaaaaaa.", b"://", b"://a:", b"://aa:bb",
    b"a://" + b"b" * 300,
    b"glpat-", b"Bearer ", b"bearer a", b"Basic ", b"basic AAAA", b"-----BEGIN ", b"SG.", b"xoxb-1",
    b"-----BEGIN RSA PRIVATE KEY-----", b"_", b"-", b":", b"A", b"ghp_", b"pscale_pw_.", b"@", b"=",
    b"glpat-" + b"a" * 15 + b".",
]  # fmt: skip


@pytest.mark.slow(sample=6)
@pytest.mark.parametrize("piece", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_takes_more_than_linear_time(piece: bytes) -> None:
    text = (piece * (250_000 // len(piece) + 1))[:250_000]

    def seconds() -> float:
        stream, begin = REDACTION.start_stream(), time.process_time()
        for place in range(0, len(text), 65_536):
            stream.feed(text[place : place + 65_536])
        stream.finish()
        return time.process_time() - begin

    # The slowest takes a quarter of a second; the square of a piece of 64 KiB takes minutes.
    assert any(seconds() < 2.5 for _ in range(2))
