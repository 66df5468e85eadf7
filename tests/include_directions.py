"""Holds the rooms to the directions in which they may include each other (docs/design.md, "The rooms").

Run by CTest on this repository, without arguments, after a check that it finds faults planted in a temporary tree.
Fails on a forbidden include, on a quoted include that is not a path from the root, and on a source file in no room.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, FrozenSet, List, Tuple

SOURCE_ENDINGS = {".hpp", ".h", ".cpp", ".c", ".cu", ".cuh"}

# The rooms of gossip/ and peer/ that others may include: all but the CUDA kernels.
GOSSIP = {"gossip", "gossip/codec", "gossip/exchange", "gossip/replica", "gossip/group", "gossip/average",
          "gossip/membership"}
PEER = {"peer", "peer/keys", "peer/wire", "peer/admission", "peer/links", "peer/overlay"}

# A room is a folder. A file belongs to the longest folder that matches. Each room may include itself and these rooms.
ROOMS: Dict[str, FrozenSet[str]] = {
    # Files in gossip/ itself define what all its rooms use: nodes, time, messages, random numbers.
    "gossip": frozenset(),
    "gossip/codec": frozenset({"gossip"}),
    "gossip/exchange": frozenset({"gossip", "gossip/codec"}),
    "gossip/replica": frozenset({"gossip", "gossip/codec", "gossip/exchange"}),
    "gossip/average": frozenset({"gossip"}),
    "gossip/group": frozenset({"gossip", "gossip/exchange", "gossip/replica"}),
    "gossip/membership": frozenset({"gossip"}),
    # Files in peer/ itself define addresses and limits.
    "peer": frozenset({"gossip"}),
    "peer/keys": frozenset({"gossip", "peer"}),
    "peer/wire": frozenset({"gossip", "gossip/codec", "gossip/replica", "gossip/membership", "peer", "peer/keys"}),
    "peer/admission": frozenset({"gossip", "peer", "peer/keys", "peer/wire"}),
    "peer/links": frozenset({"gossip", "gossip/codec", "peer", "peer/keys", "peer/wire", "peer/admission"}),
    "peer/overlay": frozenset({"gossip", "gossip/replica", "gossip/membership"} | (PEER - {"peer/overlay"})),
    "sdk/layout": frozenset({"gossip"}),  # gossip says which text can be shown
    # The interface between the client's library and its plug-in for GPUs.
    "sdk/cuda": frozenset(),
    "sdk/c": frozenset({"sdk/layout", "sdk/cuda"}),
    "sdk/cpp": frozenset({"sdk/c"}),
    "sdk/python": frozenset({"sdk/c"}),
    "sdk/examples": frozenset({"sdk/cpp"}),
    # The names of jobs and the sizes of cursors are the layout's.
    "daemon/checkpoint": frozenset({"sdk/layout"}),
    # gossip has the computations for a GPU; the plug-in and its loader know nothing else.
    "gossip/cuda": frozenset({"gossip", "gossip/codec"}),
    "daemon/device": frozenset(GOSSIP | {"gossip/cuda", "sdk/cuda"}),
    "daemon/gpus": frozenset(),
    # These rooms are the daemon's use of the operating system, and include no other room of the daemon.
    "daemon/system": frozenset(GOSSIP | PEER | {"sdk/layout"}),
    "daemon/config": frozenset(GOSSIP | PEER | {"sdk/layout", "daemon/system"}),
    "daemon/log": frozenset({"daemon/config"}),
    # The reports to people; nothing here changes anything.
    "daemon/report": frozenset(
        GOSSIP | PEER | {"sdk/layout", "daemon/system", "daemon/config", "daemon/device", "daemon/gpus"}
    ),
    "daemon/control": frozenset({"daemon/system"}),
    "daemon/cluster": frozenset(GOSSIP | PEER | {"daemon/system", "daemon/config", "daemon/control", "daemon/report"}),
    "daemon/clients": frozenset(GOSSIP | {"sdk/layout", "daemon/system", "daemon/checkpoint", "daemon/device"}),
    "daemon/average": frozenset(GOSSIP | {"sdk/layout", "daemon/system"}),
    "daemon/jobs": frozenset(
        GOSSIP | {"sdk/layout", "daemon/system", "daemon/config", "daemon/report", "daemon/checkpoint",
        "daemon/device", "daemon/clients"}
    ),
    # The shell and the node bring them together.
    "daemon": frozenset(
        GOSSIP | PEER | {"sdk/layout", "daemon/system", "daemon/config", "daemon/log", "daemon/report",
        "daemon/control", "daemon/cluster", "daemon/clients", "daemon/average", "daemon/jobs", "daemon/checkpoint", "daemon/device",
        "daemon/gpus"}
    ),
    # gossamerctl meets the daemon only at its socket and its files. sdk/layout has the rule for the socket's path, and
    # gossip finds the word that a user meant. gossamerctl signs what the cluster's authority decides.
    "tools/ctl": frozenset({"gossip", "peer", "peer/keys", "sdk/c", "sdk/layout", "daemon/checkpoint", "daemon/gpus"}),
    # The benchmark and the simulator look into everything.
    "tools": frozenset(
        GOSSIP | PEER | {"sdk/c", "sdk/cpp", "sdk/cuda", "sdk/layout", "daemon/checkpoint", "daemon/cluster",
        "daemon/config", "daemon/gpus", "daemon"}
    ),
}
TESTS = "tests"  # may include everything

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def room_of(path: str) -> str:
    """The room that a path from the root lies in, or "" if none."""
    matching = [room for room in (*ROOMS, TESTS) if path.startswith(room + "/")]
    return max(matching, key=len, default="")


def faults_in(path: str, text: str, exists) -> List[str]:
    """What is wrong with the includes of one file. `exists` tells whether a path from the root is a file of ours."""
    room = room_of(path)
    if not room:
        return [f"{path}: lies in no room; the rooms are {', '.join(ROOMS)} and {TESTS}"]
    if room == TESTS:
        return []
    faults = []
    for match in INCLUDE.finditer(text):
        included = match.group(1)
        line = text.count("\n", 0, match.start(1)) + 1
        other = room_of(included)
        if not other or not exists(included):
            if not included.endswith(".capnp.h"):  # generated
                faults.append(f'{path}:{line}: "{included}" is not a path from the root of the repository')
                continue
        if other != room and other not in ROOMS[room]:
            allowed = ", ".join(sorted(ROOMS[room])) or "no other room"
            faults.append(f"{path}:{line}: {room} may include {allowed}, not {other} ({included})")
    return faults


def sources(root: Path) -> List[str]:
    """Files that git tracks or would track; all there are, outside a repository."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        paths = listed.stdout.splitlines()
    else:
        paths = [str(path.relative_to(root)) for path in root.rglob("*") if "build" not in path.parts]
    return sorted(path for path in paths if Path(path).suffix in SOURCE_ENDINGS and (root / path).is_file())


def check(root: Path) -> Tuple[int, List[str]]:
    """How many files were read, and every fault."""
    faults = []
    paths = sources(root)
    for path in paths:
        text = (root / path).read_text(encoding="utf-8")
        faults += faults_in(path, text, lambda included: (root / included).is_file())
    return len(paths), faults


def check_the_checker() -> None:
    """Plants one fault of each kind, and includes that are right."""
    planted = {
        "gossip/types.hpp": "#include <vector>\n",
        "gossip/codec/wrong.hpp": '#include "gossip/replica/replica.hpp"\n',
        "gossip/replica/replica.hpp": '#include "gossip/types.hpp"\n',
        "gossip/wrong.hpp": '#include "peer/link.hpp"\n',
        "peer/link.hpp": '#include "gossip/types.hpp"\n',
        "peer/wire/codec.cpp": '#include "peer/link.hpp"\n#include "peer/wire/wire.capnp.h"\n',
        "peer/wrong.cpp": '// why\n#  include "daemon/node.hpp"\n',
        "sdk/layout/words.hpp": "",
        "sdk/c/wrong.cpp": '#include "sdk/layout/words.hpp"\n#include "gossip/types.hpp"\n',
        "daemon/node.hpp": '#include "peer/link.hpp"\n#include "sdk/layout/words.hpp"\n',
        "daemon/wrong.cpp": '#include "node.hpp"\n',
        "cellar/lost.cpp": "",
        "tests/unit/any.cpp": '#include "catch.hpp"\n#include "peer/link.hpp"\n',
        "tools/bench/main.cpp": '#include "daemon/node.hpp"\n',
        "tools/ctl/wrong.cpp": '#include "daemon/node.hpp"\n',
    }
    expected = [
        "cellar/lost.cpp",
        "daemon/wrong.cpp:1",
        "gossip/codec/wrong.hpp:1",
        "gossip/wrong.hpp:1",
        "peer/wrong.cpp:2",
        "sdk/c/wrong.cpp:2",
        "tools/ctl/wrong.cpp:1",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for path, text in planted.items():
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_text(text, encoding="utf-8")
        count, faults = check(Path(folder))
    found = [fault.split(": ")[0] for fault in faults]
    if found != expected or count != len(planted):
        sys.exit(f"the checker is broken: of the planted faults {expected} it found {found}")


def main() -> int:
    check_the_checker()
    count, faults = check(Path(__file__).resolve().parent.parent)
    if count == 0:
        sys.exit("no source files were found")
    print("\n".join(faults) or f"{count} files include as they may")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
