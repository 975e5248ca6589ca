"""What a step prints, with secrets in it that are cut anywhere, and the log of it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from hypothesis import strategies as st

from sequencer.engine.logs import StepLogs
from sequencer.executors.redaction import MIN_VALUE, Redaction
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Step
from tests.property.amounts import for_all, in_memory
from tests.unit.saying import attempt

# No brackets and line ends: "[secret]" and the log's own lines must not spell one. Not
# st.characters, whose every letter is looked up in a table of the whole of Unicode.
secrets = st.text(
    "abcXYZ0189_-.+/=$%&'\"\\\u00e4\u00df\u20ac\u212a\U0001f511", min_size=MIN_VALUE, max_size=40
)


def test_secrets_cut_anywhere_never_reach_a_log() -> None:
    with in_memory() as folder:
        ensure_no_secret_is_logged(folder)


def ensure_no_secret_is_logged(folder: Path) -> None:
    warnings: list[str] = []

    def check(values: list[str], order: list[int | bytes], cuts: list[int], in_json: bool) -> None:
        redaction = Redaction.from_environment(
            {f"N{number}_TOKEN": one for number, one in enumerate(values)}
        )
        forms = [json.dumps(one)[1:-1] if in_json else one for one in values]
        text = b"".join(
            forms[one % len(forms)].encode() if isinstance(one, int) else one for one in order
        )
        logs = StepLogs(folder / "logs", folder, warn=warnings.append, redaction=redaction)
        log = logs.open(
            attempt(
                Step(name="s"),
                agent=values[0],
                state_path=folder / "state.json",
                result_path=folder / "result.json",
            )
        )
        places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
        for start, end in pairwise(places):
            log.write(text[start:end])
        log.close(Outcome(status=OutcomeStatus.FAILED, error=f"no: {values[-1]}"))
        written = Path(log.path).read_bytes()
        Path(log.path).unlink()
        for one in (*values, *forms):
            assert one.encode() not in written
        assert b"# ended failed" in written
        assert warnings == []

    pieces = st.lists(st.integers(0, 9) | st.binary(max_size=6), max_size=8)
    cuts = st.lists(st.integers(0, 400), max_size=30)
    several = st.lists(secrets, min_size=1, max_size=3)
    for_all(check, several, pieces, cuts, st.booleans())
