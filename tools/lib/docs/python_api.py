"""The Python API as Markdown, from the signatures and docstrings in sdk/python/gossamer. The source is read, not
imported, so that no framework need be installed."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path
from typing import Iterator, List, Tuple, Union

WIDTH = 120
SIGNATURE_WIDTH = 88  # characters that a page of the site shows without scrolling
PACKAGE = "sdk/python/gossamer"
Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]

# Module as users import it -> its public names, in order, by file.
PUBLIC: List[Tuple[str, List[Tuple[str, List[str]]]]] = [
    ("gossamer", [
        ("_arrays.py", ["attach"]),
        ("_run.py", ["Run"]),
        ("_shared.py", ["Shared"]),
        ("_run.py", ["State", "RunInfo", "RunStats"]),
        ("_shared.py", ["Finish"]),
        ("_average.py", ["Average"]),
        ("_events.py", ["EventKind", "Event"]),
        ("_library.py", ["GossamerError", "GossamerWarning", "version"]),
    ]),
    ("gossamer.torch", [
        ("torch.py", ["attach", "average_hook", "TorchRun"]),
        ("_torch_experts.py", ["ExpertRun"]),
        ("_torch_partition.py", ["partition", "Partition"]),
    ]),
    ("gossamer.jax", [("jax.py", ["attach", "JaxRun"])]),
    ("gossamer.keras", [("keras.py", ["GossamerCallback"])]),
    ("gossamer.transformers", [("transformers.py", ["GossamerCallback"])]),
    ("gossamer.lightning", [("lightning.py", ["GossamerCallback"])]),
    ("gossamer.sampling", [("sampling.py", ["ShuffledSampler", "ShardedSampler", "owners"])]),
    ("gossamer.sim", [("sim.py", ["run", "Result", "compare"])]),
    ("gossamer.tensorboard", [("tensorboard.py", ["log"])]),
    ("gossamer.wandb", [("wandb.py", ["log"])]),
    ("gossamer.mlflow", [("mlflow.py", ["log"])]),
]
# The members of a key's class are shown under the class that inherits them.
PART_OF = {"Shared": "Run"}


def _signature(function: Function, name: str) -> str:
    arguments = function.args
    shown: List[str] = []
    positional = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for argument, default in zip(positional, defaults):
        if argument.arg != "self":
            shown.append(argument.arg + (f"={ast.unparse(default)}" if default is not None else ""))
    if arguments.kwonlyargs:
        shown.append("*")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults):
        shown.append(argument.arg + (f"={ast.unparse(default)}" if default is not None else ""))
    return "\n".join(textwrap.wrap(f"{name}({', '.join(shown)})", SIGNATURE_WIDTH, subsequent_indent="    "))


def _prose(text: str) -> List[str]:
    """A docstring as Markdown: paragraphs, and its lines `name: what it is` as a list."""
    out: List[str] = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.splitlines()
        if all(line.startswith("    ") for line in lines):
            out += ["```text", *(line[4:] for line in lines), "```", ""]
            continue
        entries: List[str] = []
        for line in lines:
            named = re.match(r"([a-z_]+(?:, [a-z_]+)*): ", line)
            if named:
                names = ", ".join(f"`{name}`" for name in named[1].split(", "))
                entries.append(f"- {names}: {line[named.end():]}")
            elif entries and (not entries[-1].startswith("- ") or line.startswith("    ")):
                entries[-1] += " " + line.strip()
            else:
                entries.append(line)
        for index, entry in enumerate(entries):
            if index and entry.startswith("- ") != entries[index - 1].startswith("- "):
                out.append("")
            indent = "  " if entry.startswith("- ") else ""
            out += textwrap.wrap(entry, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        out.append("")
    return out


def _documented(body: List[ast.stmt]) -> Iterator[ast.stmt]:
    """What users may use of a class, properties once."""
    for member in body:
        if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            decorators = {ast.unparse(decorator) for decorator in member.decorator_list}
            if _text(member) and not any(text.endswith(".setter") for text in decorators):
                yield member


def _text(member: Function) -> str:
    """What is said of it: its docstring, or else what it returns, if that is a class of this page."""
    returned = ast.unparse(member.returns) if member.returns is not None else ""
    shown = {name for _, files in PUBLIC for _, names in files for name in names}
    return ast.get_docstring(member) or (f"Returns a `{returned}`." if returned in shown - {"Run"} else "")


def _comment(source: List[str], line: int) -> str:
    """What is behind the line (from 0), or else the comment above it."""
    _, mark, comment = source[line].partition("  # ")
    if mark:
        return comment.strip()
    above = []
    while source[line - 1].strip().startswith("# "):
        line -= 1
        above.insert(0, source[line].strip()[2:])
    return " ".join(above)


def _fields(node: ast.ClassDef, source: List[str], kind: str) -> List[str]:
    """Members of a dataclass or an enumeration, with what their comments say."""
    rows = []
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            if member.target.id.startswith("_"):
                continue
            annotation = ast.unparse(member.annotation)
            rows.append((f"`{member.target.id}`", f"`{annotation}`", _comment(source, member.lineno - 1)))
        elif kind == "enumeration" and isinstance(member, ast.Assign) and isinstance(member.targets[0], ast.Name):
            rows.append((f"`{member.targets[0].id}`", "", _comment(source, member.lineno - 1)))
    if not rows:
        return []
    escape = lambda text: text.replace("|", "\\|")  # noqa: E731
    return ["| | | |", "| --- | --- | --- |", *("| " + " | ".join(map(escape, row)) + " |" for row in rows), ""]


def _class(node: ast.ClassDef, source: List[str], level: int) -> List[str]:
    bases = {ast.unparse(base) for base in node.bases}
    out: List[str] = []
    if node.name not in PART_OF:
        out += [f"{'#' * level} {node.name}", ""]
        constructor = next((m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"), None)
        if constructor is not None and not bases & {"Run", "Shared"}:
            out += ["```text", _signature(constructor, node.name), "```", ""]
        out += _prose(ast.get_docstring(node) or "")
        out += _fields(node, source, "enumeration" if "enum.Enum" in bases else "dataclass")
    owner = PART_OF.get(node.name, node.name)
    for member in _documented(node.body):
        is_property = any(ast.unparse(decorator) == "property" for decorator in member.decorator_list)
        title = member.name if is_property else f"{member.name}()"
        out += [f"{'#' * (level + 1)} {owner}.{title}", ""]
        if not is_property:
            out += ["```text", _signature(member, f"{owner}.{member.name}"), "```", ""]
        out += _prose(_text(member))
    return out


def page(repository: Path) -> str:
    out: List[str] = []
    for module, files in PUBLIC:
        out += [f"## {module}", ""]
        for file, names in files:
            text = (repository / PACKAGE / file).read_text(encoding="utf-8")
            source = text.splitlines()
            tree = ast.parse(text)
            if not file.startswith("_"):
                out += _prose(ast.get_docstring(tree) or "")
            found = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
            for name in names:
                node = found[name]
                if isinstance(node, ast.ClassDef):
                    out += _class(node, source, 3)
                else:
                    out += [f"### {module}.{name}()", "", "```text", _signature(node, name), "```", ""]
                    out += _prose(ast.get_docstring(node) or "")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).rstrip("\n") + "\n"
