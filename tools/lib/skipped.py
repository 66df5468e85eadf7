"""Lists the tests that ctest's log says were skipped, wholly or in part, and why: the last lines of tools/test. A
reason says what would enable the test. Usage: skipped.py BUILD_FOLDER
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Dict, List

TEST = re.compile(r"^\d+/\d+ Testing: (.*)$")
# The lines of our tests, and unittest's line for a single case.
REASONS = (re.compile(r"^SKIPPED[^:]*: (.*)$"), re.compile(r"\.\.\. skipped (?P<quote>['\"])(.*)(?P=quote)$"))


def skipped(log: str) -> Dict[str, List[str]]:
    """Maps each reason to the tests that gave it."""
    found: Dict[str, List[str]] = {}
    test = ""
    for line in log.splitlines():
        begun = TEST.match(line)
        if begun:
            test = begun[1]
        for pattern in REASONS:
            said = pattern.search(line)
            if said and test not in found.setdefault(said[said.re.groups], []):
                found[said[said.re.groups]].append(test)
    return found


def main() -> None:
    log = Path(sys.argv[1]) / "Testing" / "Temporary" / "LastTest.log"
    found = skipped(log.read_text(errors="replace")) if log.exists() else {}
    print("== nothing was skipped" if not found else "== skipped, wholly or in part, and what it would take:")
    for reason, tests in sorted(found.items(), key=lambda item: item[1]):
        print(f"   {', '.join(tests)}: {reason}")


if __name__ == "__main__":
    main()
