"""A page of docs/ whose second part is generated from the source. The first part is written by hand; a line marks where
the second begins. Used by tools/docs, which writes the pages, and by tests/documents_test.py, which compares them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Dict, Tuple

from . import configuration, python_api

REPOSITORY = Path(__file__).resolve().parents[3]
MARK = "<!-- Generated from here on: tools/docs writes it again. -->\n"

PAGES: Dict[str, Callable[[Path], str]] = {
    "docs/reference/configuration.md": configuration.page,
    "docs/reference/python.md": python_api.page,
}


def halves(name: str) -> Tuple[str, str]:
    """The part that is written by hand, with the mark, and the part that was generated."""
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    head, mark, tail = text.partition(MARK)
    if not mark:
        raise ValueError(f"{name} does not say where its generated part begins: {MARK.strip()}")
    return head + mark, tail


def expected(name: str) -> str:
    """The page as it should be."""
    return halves(name)[0] + "\n" + PAGES[name](REPOSITORY)


def write_all() -> None:
    for name in PAGES:
        text = expected(name)
        path = REPOSITORY / name
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"{name} is written anew")


if __name__ == "__main__":
    write_all()
