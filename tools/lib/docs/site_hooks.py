"""Hooks of mkdocs for the book: what a link to a file of the source tree becomes on a site that does not have that
tree, blocks whose first line has more words than a language, and how tables look."""

import re
from pathlib import Path, PurePosixPath

STYLE = """
.rst-content table.docutils, .rst-content table { margin-bottom: 24px; width: auto; }
.rst-content table td, .rst-content table th { padding: 4px 8px; vertical-align: top; text-align: left; }
.rst-content pre { font-size: 12px; line-height: 1.35; }
.wy-nav-content { max-width: 1000px; }
"""


def _outside(target: str, page: str) -> str:
    """The path from the root of the repository, if the link leads out of docs/; else ""."""
    if re.match(r"^([a-z]+:|#)", target):
        return ""
    parts = list(PurePosixPath("docs", page).parent.parts)
    for part in target.partition("#")[0].split("/"):
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "" if parts[:1] == ["docs"] else "/".join(parts)


def on_page_markdown(markdown: str, *, page, **_) -> str:
    def replaced(match: "re.Match[str]") -> str:
        text, path = match[1], _outside(match[2], page.file.src_path)
        if not path:
            return match[0]
        return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"

    # Tests read words after the language of a code block (docs/how-to/start-a-cluster.md), but Markdown's extension
    # allows one word only.
    markdown = re.sub(r"^(```\w+) .*$", r"\1", markdown, flags=re.M)
    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", replaced, markdown)


def on_post_build(*, config, **_) -> None:
    with open(Path(config["site_dir"], "css", "theme_extra.css"), "a", encoding="utf-8") as style:
        style.write(STYLE)
