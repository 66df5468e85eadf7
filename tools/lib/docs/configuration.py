"""The options of gossamerd as Markdown, from daemon/gossamer.toml. A unit test holds that file to what the daemon
prints, so this needs no build."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import List

WIDTH = 120


def _paragraphs(text: str) -> List[List[str]]:
    return [paragraph.splitlines() for paragraph in text.strip().split("\n\n")]


def _comment(lines: List[str]) -> str:
    return " ".join(line.lstrip("# ").strip() for line in lines if line.startswith("#"))


def _marked(text: str) -> str:
    """Options and sections that a comment names, as code."""
    return re.sub(r"(?<![\w`])([a-z]+(?:_[a-z0-9]+)+)(?![\w`])", r"`\1`", text)


def _option(lines: List[str]) -> List[str]:
    name, default = lines[-1].split(" = ", 1)
    about, kind = re.fullmatch(r"(.*?) ?\(([^()]*(?:\([^()]*\)[^()]*)*)\)", _comment(lines)).groups()
    kind, _, reload = kind.partition("; on reload")
    changed = "changed by a restart" if not _ and not reload else "changed on reload"
    head = f"Default `{default}`. Takes {kind.strip()}; {changed}."
    return [f"### `{name}`", "", *textwrap.wrap(head, WIDTH), "", *textwrap.wrap(_marked(about), WIDTH), ""]


def page(repository: Path) -> str:
    out: List[str] = []
    for lines in _paragraphs((repository / "daemon" / "gossamer.toml").read_text(encoding="utf-8"))[1:]:
        if lines[-1].startswith("["):
            out += [f"## {lines[-1].strip('[]')}", "", *textwrap.wrap(f"`{lines[-1]}` {_comment(lines)}", WIDTH), ""]
        else:
            out += _option(lines)
    return "\n".join(out).rstrip("\n") + "\n"
