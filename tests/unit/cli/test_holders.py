"""Who holds a step is said also where workers take it from a server."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sequencer.cli.views.readiness import describe_holder
from sequencer.model.head import Claim, Owner
from sequencer.store.protocol import Liveness

HERE = Owner(host="here", boot_id="b", pid_ns="n", pid=12, pid_start=1, nonce="x")
ANY = Owner(host="fleet", boot_id="", pid_ns="", pid=0, pid_start=0, nonce="x")


@pytest.mark.parametrize(
    ("owner", "makers", "liveness", "words"),
    [
        (HERE, None, Liveness.ALIVE, "process 12 on here, step main, token 3, attempt 1: alive"),
        (ANY, {3: "process 7 on there"}, Liveness.ALIVE, "process 7 on there, step main, "),
        (ANY, {3: ""}, Liveness.ALIVE, ": no worker has taken it yet; 'sequencer worker' starts"),
        (ANY, {}, Liveness.EXPIRED, "a worker, step main, token 3, attempt 1: its lease ran out"),
    ],
)
def test_the_holder_of_a_step_is_described(
    owner: Owner, makers: Mapping[int, str] | None, liveness: Liveness, words: str
) -> None:
    claim = Claim(
        token=3, step="main", step_index=2, attempt=1, owner=owner, claimed_at="?", ttl_s=60.0
    )
    said = describe_holder([claim], liveness, makers)
    assert words in said
    assert "process 0" not in said
