"""Makes the manual pages from the programs' own help, so that a page cannot say what its program does not.

    manual.py FOLDER PROGRAM... [-- EMULATOR...]

Writes FOLDER/NAME.SECTION for each program, from its --help and that of each subcommand, and gossamer.toml.5 from the
output of gossamerd --print-config. The date of the pages is that of the latest version in the changelog beside this
file. The emulator runs programs of another processor.
"""

import email.utils
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Tuple

HELP_TIMEOUT_S = 30
SECTIONS = {"gossamerd": 8}  # the other programs are commands for every user
SEE_ALSO = "gossamerd(8), gossamerctl(1), gossamer-bench(1), gossamer-sim(1), gossamer.toml(5)"
CHANGELOG = Path(__file__).with_name("changelog")
# --help gives the program's place on this machine, which is not the reader's.
LISTS = ("Options", "Positionals", "Subcommands")
END = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
EMULATOR = sys.argv[END + 1 :]


def said(program: Path, *arguments: str) -> str:
    ran = subprocess.run(
        [*EMULATOR, program, *arguments], stdout=subprocess.PIPE, text=True, timeout=HELP_TIMEOUT_S, check=True
    )
    return ran.stdout


@dataclass
class Help:
    """The content of one --help."""

    arguments: List[str] = field(default_factory=list)  # as the usage has them: JOB, or [JOB] if it may be left out
    about: List[str] = field(default_factory=list)  # paragraphs, with those after the lists
    lists: Dict[str, List[Tuple[str, str]]] = field(default_factory=dict)  # (name, its explanation)


def with_range_behind(what: str, explanation: str) -> Tuple[str, str]:
    """CLI11 puts type, range and default into the name: "--watch SECONDS:FLOAT in [0.1 - 86400]=2"."""
    parts = re.fullmatch(
        r"(\S+ [^\s:\[=]+)(?::[A-Z]+)?(?::?(\{\S+?\}))?(?: in \[(\S+) - ([^\s\]]+)\])?(?:=(\S+))?"
        r"( \.\.\.)?(?: REQUIRED)?( .*)?",
        what,
    )
    if not parts:
        return what, explanation
    name, choice, least, most, default, several, more = parts.groups()
    notes = [choice] if choice else []
    notes += [f"{least} to {most}"] if least else []
    notes += [f"default {default}"] if default else []
    explanation = f"{more or ''} {explanation}".strip()
    return name + (several or ""), f"{explanation} ({'; '.join(notes)})" if notes else explanation


def read_help(text: str) -> Help:
    parsed = Help()
    entries: List[Tuple[str, str]] = []
    paragraph: List[str] = []

    def end_paragraph() -> None:
        if paragraph:
            parsed.about.append(" ".join(paragraph))
            paragraph.clear()

    inside = False
    for line in text.splitlines():
        heading = re.fullmatch(r"(\w+):", line)
        entry = re.fullmatch(r"  (\S.*?)(?:  +(\S.*))?", line)
        more = re.fullmatch(r" {4,}(\S.*)", line)
        if line.startswith("Usage:"):
            end_paragraph()
            parsed.arguments = line.partition(" [OPTIONS] ")[2].split()
        elif heading and heading[1] in LISTS:
            end_paragraph()
            entries = parsed.lists.setdefault(heading[1], [])
            inside = True
        elif not line.strip():
            end_paragraph()
            inside = False
        elif inside and more and entries:
            what, explanation = entries[-1]
            entries[-1] = (what, f"{explanation} {more[1]}".strip())
        elif inside and entry:
            entries.append((entry[1], entry[2] or ""))
        else:
            paragraph.append(line.strip())
    end_paragraph()
    parsed.lists = {kind: [with_range_behind(*entry) for entry in entries] for kind, entries in parsed.lists.items()}
    return parsed


def roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return "\\&" + text if text.startswith((".", "'")) else text


def date() -> str:
    """As YYYY-MM-DD."""
    signed = re.search(r"^ -- .*>  (.+)$", CHANGELOG.read_text(encoding="utf-8"), re.M)
    assert signed, f"{CHANGELOG} has no date"
    return email.utils.parsedate_to_datetime(signed[1]).strftime("%Y-%m-%d")


def page(name: str, section: int, version: str, about: str, body: List[str]) -> str:
    title = [f'.TH {roff(name.upper())} {section} {date()} "Gossamer {version}"', ".SH NAME"]
    title += [f"{roff(name)} \\- {roff(about)}"]
    others = ", ".join(other for other in SEE_ALSO.split(", ") if other != f"{name}({section})")
    end = [".SH SEE ALSO", f"{roff(others)}", ".PP", "docs/index.md in Gossamer's documentation is where to begin."]
    return "\n".join(title + body + end) + "\n"


def listed(entries: List[Tuple[str, str]]) -> List[str]:
    lines = []
    for what, explanation in entries:
        lines += [".TP", f".B {roff(what)}", roff(explanation)]
    return lines


def subcommands(program: Path, path: Tuple[str, ...], help_: Help, shared: List[str]) -> List[str]:
    """A section for each subcommand, with those below it. Text about all of them is left out."""
    lines = []
    for name, explanation in help_.lists.get("Subcommands", []):
        whole = (*path, name)
        own = read_help(said(program, *whole, "--help"))
        options = [f"[{what}]" for what, _ in own.lists.get("Options", []) if not what.startswith("-h")]
        arguments = [argument for argument in own.arguments if argument != "SUBCOMMAND"]
        lines += [f".SS {roff(' '.join((*whole, *options, *arguments)))}"]
        lines += [roff(explanation + ".")]
        for paragraph in own.about:
            if paragraph not in shared and paragraph != explanation:
                lines += [".PP", roff(paragraph)]
        for kind in ("Positionals", "Options"):
            lines += listed([entry for entry in own.lists.get(kind, []) if not entry[0].startswith("-h")])
        lines += subcommands(program, whole, own, shared)
    return lines


def of_program(program: Path, version: str) -> str:
    help_ = read_help(said(program, "--help"))
    about, *rest = help_.about
    arguments = "[OPTIONS] SUBCOMMAND" if "Subcommands" in help_.lists else "[OPTIONS]"
    body = [".SH SYNOPSIS", f".B {roff(program.name)}", arguments, ".SH DESCRIPTION", roff(about)]
    for paragraph in rest:
        body += [".PP", roff(paragraph)]
    body += [".SH OPTIONS", *listed(help_.lists.get("Options", []))]
    if "Subcommands" in help_.lists:
        body += [".SH SUBCOMMANDS", *subcommands(program, (), help_, help_.about)]
    first = about[0].lower() + about[1:].rstrip(".")
    return page(program.name, SECTIONS.get(program.name, 1), version, first.split(": ")[-1], body)


def of_configuration(daemon: Path, version: str) -> str:
    """Comments explain the option or the section below them."""
    about, *paragraphs = said(daemon, "--print-config").split("\n\n")
    body = [".SH DESCRIPTION", roff(" ".join(line.lstrip("# ") for line in about.splitlines()))]
    for paragraph in paragraphs:
        comment = [line.lstrip("# ") for line in paragraph.splitlines() if line.startswith("#")]
        for line in paragraph.splitlines():
            if line.startswith("["):
                body += [f".SH {roff(line)}", roff(" ".join(comment))]
            elif not line.startswith("#") and line:
                body += [".TP", f".B {roff(line)}", roff(" ".join(comment))]
    return page("gossamer.toml", 5, version, "configuration of gossamerd", body)


def main() -> None:
    folder, *programs = map(Path, sys.argv[1:END])
    folder.mkdir(parents=True, exist_ok=True)
    daemon = next(program for program in programs if program.name == "gossamerd")
    version = said(daemon, "--version").split()[-1]
    for program in programs:
        path = folder / f"{program.name}.{SECTIONS.get(program.name, 1)}"
        path.write_text(of_program(program, version))
    (folder / "gossamer.toml.5").write_text(of_configuration(daemon, version))


main()
