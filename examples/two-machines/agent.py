"""A stand-in for an agent: reads its prompt, and writes one line about its step."""

import os
import sys
from pathlib import Path

prompt = sys.stdin.read()
step, iteration = os.environ["SEQUENCER_STEP"], os.environ["SEQUENCER_ITERATION"]
with Path("notes.md").open("a") as notes:
    notes.write(f"- iteration {iteration}: {step} was asked to {prompt.splitlines()[0]}\n")
print(f"{step} is done")
