"""The project's tests: exit code 0 if the program is right."""

import sys
from pathlib import Path

program = Path("program.txt")
found = program.read_text(encoding="utf-8") if program.exists() else ""
if found == "retry: 3\n":
    print("1 passed")
else:
    print(f"1 failed: {found.strip() or 'no limit'}")
    sys.exit(1)
