from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

from sequencer.cli.context import complain, json_text


def test_json_can_always_be_written() -> None:
    assert json_text({"a": "é計"}) == '{"a": "é計"}'
    odd = json_text({"a": "\ud800"})
    odd.encode()
    assert json.loads(odd) == {"a": "\ud800"}
    for letter in ("\x7f", "\x9b", "\u2028", "\u2029"):
        text = json_text({letter: [f"a{letter}b\\u"]})
        assert text.isprintable()
        assert json.loads(text) == {letter: [f"a{letter}b\\u"]}
    assert json_text([Path("x")]) == '["x"]'
    assert json_text([1], indent=1) == "[\n 1\n]"


def test_complaining_never_fails() -> None:
    closed = io.StringIO()
    closed.close()
    with contextlib.redirect_stderr(closed):
        complain("nobody hears it")
    with contextlib.redirect_stderr(None):
        complain("nobody hears it")
    with (
        # Closing tries once more to write what complaining has given up on.
        contextlib.suppress(OSError),
        Path("/dev/full").open("w") as full,
        contextlib.redirect_stderr(full),
    ):
        complain("nobody hears it")
