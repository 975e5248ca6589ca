"""What a process in a container with a clock of its own takes for the machine's clock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sequencer.store.identity import boottime, process_start
from tests.clocks.clocks import ahead_by, has_time_namespaces

ROOT = Path(__file__).parents[3]
ASK = """
import sys, time
from sequencer.store.identity import boottime, process_start
print(time.clock_gettime(time.CLOCK_BOOTTIME), boottime(), process_start(int(sys.argv[1])))
"""


@pytest.mark.skipif(not has_time_namespaces(), reason="no time namespaces here")
@pytest.mark.parametrize("offset_s", [86_400, -600])
def test_a_clock_of_a_container_is_led_back_to_the_machines(offset_s: int) -> None:
    before = boottime()
    asked = subprocess.run(
        [*ahead_by(offset_s), sys.executable, "-c", ASK, str(os.getpid())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    shown, found, started = asked.stdout.split()
    after = boottime()
    assert before <= float(found) <= after
    assert before + offset_s <= float(shown) <= after + offset_s
    # The same start, or the process would pass for another one with its number.
    assert int(started) == process_start(os.getpid())
