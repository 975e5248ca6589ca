"""Stands in for a model: breaks nothing, and mends the program when it is told to."""

import os
import sys
from pathlib import Path

prompt = sys.stdin.read()
step = os.environ["SEQUENCER_STEP"]
program = Path("program.txt")

if step == "debugger-reproduction":
    about = "with the proxy" if "proxy" in prompt else "without a proxy"
    print(f"test_login fails {about}: the retry has no limit.")
elif step == "get-approval":
    print("Limit the retry to three tries? test_login shows the bug.")
elif step == "debugger-fix":
    program.write_text("retry: 4\n", encoding="utf-8")
    print("The retry has a limit.")
elif step == "validation-fixer":
    program.write_text("retry: 3\n", encoding="utf-8")
    print("The limit is three.")
else:
    print(f"{step} is done.")
