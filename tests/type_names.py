"""Holds the programs to one type for each name (docs/design.md, "The nouns": one word, one meaning).

Run by CTest on this repository, without arguments, after a check that it finds faults planted in a temporary tree. Fails
where a type that a header of gossip/, peer/, daemon/, sdk/ or tools/ defines in a namespace (class, struct, union, enum,
using) is defined a second time, in another header or in a source file. Nested types are not looked at. Source files may
have equal names for types of their own.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

FOLDERS = ("gossip", "peer", "daemon", "sdk", "tools")
HEADER_ENDINGS = {".hpp", ".h", ".cuh"}
SOURCE_ENDINGS = {*HEADER_ENDINGS, ".cpp", ".c", ".cu"}

# Comments, literals and preprocessor lines hold braces and words that define nothing.
NOISE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'|^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*""",
    re.DOTALL | re.MULTILINE,
)
NAMESPACE = re.compile(r'(?:^|\s)(?:inline\s+)?namespace\b[\w:\s]*$|\bextern\s*$')
TYPE = re.compile(
    r"\b(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+(?:alignas\s*\([^()]*\)\s*|\[\[[^\]]*\]\]\s*|__\w+\s+)*"
    r"(\w+)\s*(?:final\s*)?(?::(?!:)[^;{]*)?$"
)
USING = re.compile(r"\busing\s+(\w+)\s*=[^;]*$")


def definitions(text: str) -> Iterator[Tuple[int, str]]:
    """The line and the name of each type that the text defines at the level of a namespace."""
    text = NOISE.sub(lambda noise: re.sub(r"[^\n]", " ", noise.group()), text)
    nesting: List[bool] = []  # for each open brace, whether a namespace opened it
    begin = 0
    for brace in re.finditer(r"[{};]", text):
        statement = text[begin : brace.start()]
        found = None
        if all(nesting):
            found = (USING if brace.group() == ";" else TYPE).search(statement)
        if found:
            yield text.count("\n", 0, begin + found.start(1)) + 1, found.group(1)
        if brace.group() == "{":
            nesting.append(bool(NAMESPACE.search(statement)))
        elif brace.group() == "}" and nesting:
            nesting.pop()
        begin = brace.end()


def clashes(root: Path) -> Tuple[int, Dict[str, List[str]]]:
    """How many definitions there are, and the places of each name that a header and another file define."""
    places: Dict[str, List[str]] = defaultdict(list)
    in_headers = set()
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SOURCE_ENDINGS and path.is_file():
                for line, name in definitions(path.read_text(encoding="utf-8")):
                    places[name].append(f"{path.relative_to(root)}:{line}")
                    if path.suffix in HEADER_ENDINGS:
                        in_headers.add(name)
    count = sum(len(found) for found in places.values())
    return count, {name: places[name] for name in sorted(in_headers) if len(places[name]) > 1}


def check_the_checker() -> None:
    """Plants a second definition of each kind, and definitions that are no clash."""
    planted = {
        "gossip/types.hpp": """
            namespace gossamer::gossip {
            struct Ping;                                          // declared only
            struct Ping { struct Nested {}; int brace = '}'; };
            class Nested final : public Ping { enum class Inner { one }; };
            template <class T> struct Box {};
            enum class State : std::uint8_t { joining };
            using Clock = int;
            }""",
        "peer/wire.hpp": 'namespace gossamer::peer { namespace { struct Ping { const char* text = "{"; }; } }',
        "daemon/node.hpp": "namespace gossamer { enum State { other }; } // class Box {};",
        "daemon/node.cpp": "namespace { using Clock = long; struct Own {}; } void f() { struct Ping {}; }",
        "daemon/main.cpp": "namespace gossamer::daemon { struct Own {}; /* struct Box {} */ }",
        "sdk/box.h": "template <> struct Box<int> {};\n#define BRACE {\nstruct [[nodiscard]] Nested {};",
        "tests/any.hpp": "struct Ping {};",
    }
    expected = {
        "Clock": ["gossip/types.hpp:8", "daemon/node.cpp:1"],
        "Nested": ["gossip/types.hpp:5", "sdk/box.h:3"],
        "Ping": ["gossip/types.hpp:4", "peer/wire.hpp:1"],
        "State": ["gossip/types.hpp:7", "daemon/node.hpp:1"],
    }
    with tempfile.TemporaryDirectory() as folder:
        for path, text in planted.items():
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_text(text, encoding="utf-8")
        _, found = clashes(Path(folder))
    if found != expected:
        sys.exit(f"the checker is broken: of the planted faults {expected} it found {found}")


def main() -> int:
    check_the_checker()
    count, found = clashes(Path(__file__).resolve().parent.parent)
    if count == 0:
        sys.exit("no types were found")
    faults = [f"{name} is defined {len(places)} times: {', '.join(places)}" for name, places in found.items()]
    print("\n".join(faults) or f"{count} types have names of their own")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
