"""A stand-in for a test run that is not reliable: it passes at its third call."""

import sys
from pathlib import Path

LAST_TO_FAIL = 2

calls = Path("calls.txt")
with calls.open("a") as file:
    file.write("called\n")
count = len(calls.read_text().splitlines())
print(f"call {count}")
sys.exit(0 if count > LAST_TO_FAIL else 1)
