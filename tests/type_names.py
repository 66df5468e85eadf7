"""Holds the programs to one type for each name (shared nouns are in docs/design.md, "The nouns").

Run by CTest on this repository, without arguments, after a check that it finds faults planted in a temporary tree. Fails
where two namespace-level definitions (class, struct, union, enum, using) in gossip/, peer/, daemon/, sdk/ and tools/ have
the same name. Nested types, specialisations, and types that only a test defines are free.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

FOLDERS = ("gossip", "peer", "daemon", "sdk", "tools")
SOURCE_ENDINGS = {".hpp", ".h", ".cpp", ".c", ".cu", ".cuh"}

KNOWN: Dict[str, str] = {}

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
    nesting: List[bool] = []  # of each open brace: whether it is a namespace's
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
    """How many definitions there are, and the places of each name that has several."""
    places: Dict[str, List[str]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SOURCE_ENDINGS and path.is_file():
                for line, name in definitions(path.read_text(encoding="utf-8")):
                    places[name].append(f"{path.relative_to(root)}:{line}")
    count = sum(len(found) for found in places.values())
    return count, {name: found for name, found in sorted(places.items()) if len(found) > 1}


def main() -> int:
    count, found = clashes(Path(__file__).resolve().parent.parent)
    for name, places in found.items():
        print(name, *places, sep="\n    ")
    print(count, len(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
