"""The client library's binary interface is the recorded one: its symbols with their versions, and what abi_list.c
prints of its header. `abi_test.py LIBRARY LISTER RECORD [--record] [-- EMULATOR...]`; --record writes what is new, after
a change that breaks no program. The emulator runs a LISTER of another processor.
"""

import subprocess
import sys
from pathlib import Path
from typing import List

END = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
EMULATOR = sys.argv[END + 1 :]


def symbols(library: str) -> List[str]:
    listing = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--with-symbol-versions", library], check=True, capture_output=True, text=True
    ).stdout
    # "address type name@@version"; the version itself is a symbol of type A.
    return sorted(f"{kind} {name}" for _, kind, name in (line.split() for line in listing.splitlines()) if kind != "A")


def interface(library: str, lister: str) -> List[str]:
    header = subprocess.run([*EMULATOR, lister], check=True, capture_output=True, text=True).stdout.splitlines()
    return symbols(library) + header


def main() -> int:
    library, lister, record = sys.argv[1:4]
    found = interface(library, lister)
    if sys.argv[4:END] == ["--record"]:
        Path(record).write_text("\n".join(found) + "\n", encoding="ascii")
        return 0
    recorded = Path(record).read_text(encoding="ascii").splitlines()
    gone = [line for line in recorded if line not in found]
    new = [line for line in found if line not in recorded]
    for line in gone:
        print(f"not as recorded any more: {line}", file=sys.stderr)
    for line in new:
        print(f"not recorded: {line}", file=sys.stderr)
    if not gone and not new and found != recorded:
        print("recorded in another order", file=sys.stderr)
    if found != recorded:
        print(
            "The binary interface differs from the recorded one. Programs built before would break if anything is gone: "
            "take that back, or make it another symbol version. Record what is merely new with --record.",
            file=sys.stderr,
        )
        return 1
    print(f"{len(found)} lines, as recorded")
    return 0


if __name__ == "__main__":
    sys.exit(main())
