"""Holds docs/ and README.md to what can be checked of a book: links and anchors lead somewhere, every page is
reachable, lines are wrapped, sentences are short, Python compiles, and commands name what exists. Also that no file of
the repository names a page that is not there, and that generated pages are what tools/docs would write.

Run by CTest without arguments. Needs no build: commands and options are read from the sources of the programs. The
site is built if mkdocs is installed.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Set, Tuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools" / "lib"))

from docs import generated  # noqa: E402

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
INDEX = DOCS / "index.md"
SITE = ROOT / "tools" / "lib" / "docs" / "mkdocs.yml"
SITE_TIMEOUT_S = 120

WIDTH = 120
# Pages that the programs write: their lines and sentences are held elsewhere.
MADE_BY_PROGRAMS = {"docs/reference/metrics.md"}

# A sentence has at most this many words. Tables, code and generated text are not counted.
MOST_WORDS = 40
# Longer sentences that are allowed, by their beginnings.
LONG_SENTENCES: Set[str] = set()

# Words that had several meanings, or none that a newcomer knows (docs/reference/glossary.md has what to say instead).
RULED_OUT = r"\b(played|hand(s|ed|ing)? (\w+ )?(over|out))\b"
MAY_SAY_THEM = {"docs/reference/glossary.md", "docs/reference/metrics.md"}

# The sources that define the commands and options of `gossamerctl` and `gossamerd`.
CTL_SOURCES = sorted((ROOT / "tools" / "ctl").rglob("*.cpp"))
DAEMON_SOURCE = ROOT / "daemon" / "main.cpp"
SIM_SOURCES = sorted((ROOT / "tools" / "sim").rglob("*.cpp"))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def written_by_hand(page: Path) -> str:
    """Without the half that is made from the source."""
    return generated.halves(name_of(page))[0] if name_of(page) in generated.PAGES else page.read_text(encoding="utf-8")


class Block(NamedTuple):
    language: str
    line: int
    text: str


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, indented ones included."""
    lines = text.split("\n")
    index = 0
    while index < len(lines):
        fence = re.match(r"^(\s*)```(\S*)", lines[index])
        if not fence:
            index += 1
            continue
        end = index + 1
        while not re.match(r"^\s*```\s*$", lines[end]):
            end += 1
        indent = len(fence[1])
        yield Block(fence[2], index + 1, "\n".join(line[indent:] for line in lines[index + 1 : end]) + "\n")
        index = end + 1


def without_blocks(text: str) -> str:
    """The page with empty lines in place of its fenced blocks, so that line numbers stay."""
    kept, inside = [], False
    for line in text.split("\n"):
        fence = re.match(r"^\s*```", line) is not None
        kept.append("" if inside or fence else line)
        inside ^= fence
    return "\n".join(kept)


def anchors(page: Path) -> Set[str]:
    """What the headings of a page can be linked by, on GitHub and in the site alike. (MkDocs makes it of ASCII, and one
    hyphen of several.)"""
    headings = re.findall(r"^#{1,6} (.+?)\s*$", without_blocks(page.read_text(encoding="utf-8")), re.M)
    github = [re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings]
    return {slug for slug in github if slug.isascii() and "--" not in slug and not slug.startswith("-")}


def links(page: Path) -> Iterator[Tuple[str, str]]:
    """(path, anchor) of the links that lead to files of the repository; an empty path is the page itself."""
    text = re.sub(r"`[^`]*`", "", without_blocks(page.read_text(encoding="utf-8")))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"^[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


def prose(text: str) -> List[str]:
    """The paragraphs and list items of a page, each on one line, with their markup taken away."""
    paragraphs: List[str] = []
    now: List[str] = []
    for line in [*without_blocks(text).split("\n"), ""]:
        item = re.match(r"^\s*(?:[-*]|\d+\.) ", line)
        aside = re.match(r"^\s*\||^#|^<|^!\[| {4}\S", line) is not None and not (now and line.startswith("    "))
        if not line.strip() or item or aside:
            if now:
                paragraphs.append(" ".join(now))
            now = []
        if line.strip() and not aside:
            now.append(line[len(item[0]) :] if item else line.strip())
    plain = []
    for paragraph in paragraphs:
        paragraph = re.sub(r"`[^`]*`", "code", paragraph)
        paragraph = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
        plain.append(re.sub(r"\*+", "", paragraph))
    return plain


def sentences(paragraph: str) -> List[str]:
    """They end at a full stop, a question mark or an exclamation mark; abbreviations do not end one."""
    guarded = re.sub(r"\b(et al|e\.g|i\.e|vs|cf)\.", lambda match: match[0].replace(".", "\0"), paragraph)
    return [part.replace("\0", ".") for part in re.split(r"(?<=[.?!])[)\"]? +|(?<=[.?!][)\"]) +", guarded)]


def reachable() -> Set[Path]:
    """Pages that can be walked to from the index."""
    seen, waiting = {INDEX}, [INDEX]
    while waiting:
        page = waiting.pop()
        for path, _ in links(page):
            target = (page.parent / path).resolve() if path else page
            if target.suffix == ".md" and target.exists() and target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen


class Command:
    """One command of a program: what is below it, and the options it takes."""

    def __init__(self) -> None:
        self.below: Dict[str, Command] = {}
        self.options: Set[str] = set()


def read_program(sources: List[Path]) -> Command:
    """The commands and options of a CLI11 program, from the calls that declare them."""
    program = Command()
    program.options = {"--help", "--version"}
    for path in sources:
        text = path.read_text(encoding="utf-8")
        variables: Dict[str, Command] = {"app": program}
        pattern = (
            r"(?:CLI::App\* (?P<made>\w+) =\s*)?(?P<member>\w+\()?(?P<of>\w+)\s*(?:\.|->)"
            r'add_subcommand\(\s*"(?P<name>[\w-]+)"'
            r'|(?P<on>\w+)\s*(?:\.|->)add_(?:option|flag)\(\s*"(?P<option>--[\w-]+)'
            r'|^    \{"(?P<listed>[a-z]+)", "'
            r"|^void (?P<helper>\w+)\(CLI::App& (?P<parameter>(?!app\b)\w+),"
            r"|(?P<called>\w+)\(\*(?P<argument>\w+),"
        )
        helpers: Dict[str, Command] = {}  # functions that add arguments to a given command
        for match in re.finditer(pattern, text, re.M):
            if match["helper"]:
                variables[match["parameter"]] = helpers[match["helper"]] = Command()
            elif match["called"] in helpers and match["argument"] in variables:
                variables[match["argument"]].options |= helpers[match["called"]].options
                variables[match["argument"]].below |= helpers[match["called"]].below
            elif match["called"]:
                pass
            elif match["name"]:
                command = variables[match["of"]].below.setdefault(match["name"], Command())
                if match["made"]:
                    variables[match["made"]] = command
                elif match["member"]:
                    variables[match["member"].rstrip("(")] = command
            elif match["option"]:
                variables[match["on"]].options.add(match["option"])
            elif path.name == "main.cpp":
                program.below.setdefault(match["listed"], Command())
    return program


def command_lines(text: str) -> Iterator[Tuple[int, List[str]]]:
    """The words of each call of gossamerctl or gossamerd in shell blocks, with its line."""
    for block in blocks(text):
        if block.language != "sh":
            continue
        for number, line in enumerate(block.text.split("\n"), block.line + 1):
            line = re.sub(r"(^|\s)#.*$", "", line)
            for part in re.split(r"\||&&|;|\$\(", line):
                try:
                    words = shlex.split(part)
                except ValueError:
                    continue  # a here-document, or a quote that spans lines
                for index, word in enumerate(words):
                    if Path(word).name in ("gossamerctl", "gossamerd"):
                        if index == 0 or re.match(r"^(sudo|[A-Z_]+=.*)$", words[index - 1]):
                            yield number, words[index:]
                        break


class Documents(unittest.TestCase):
    def test_links_lead_somewhere(self) -> None:
        for page in PAGES:
            for path, anchor in links(page):
                with self.subTest(page=name_of(page), link=f"{path}#{anchor}"):
                    target = (page.parent / path).resolve() if path else page
                    self.assertTrue(target.exists(), "there is no such file")
                    self.assertTrue(target.is_relative_to(ROOT), "it leads out of the repository")
                    if anchor:
                        self.assertIn(anchor, anchors(target))

    def test_every_page_is_reachable(self) -> None:
        self.assertEqual([name_of(page) for page in PAGES[1:] if page not in reachable()], [])

    def test_every_page_is_in_the_navigation_of_the_site(self) -> None:
        named = set(re.findall(r"[\w/-]+\.md", SITE.read_text(encoding="utf-8")))
        self.assertEqual(named, {str(page.relative_to(DOCS)) for page in PAGES[1:]})

    @unittest.skipIf(shutil.which("mkdocs") is None, "apt-get install mkdocs: the book is not built as a site")
    def test_the_site_builds(self) -> None:
        with tempfile.TemporaryDirectory(prefix="gossamer-site-") as folder:
            command = ["mkdocs", "--quiet", "build", "--strict", "--config-file", str(SITE), "--site-dir", folder]
            built = subprocess.run(command, capture_output=True, text=True, timeout=SITE_TIMEOUT_S, check=False)
            self.assertEqual(built.returncode, 0, built.stderr)
            index = Path(folder, "index.html").read_text(encoding="utf-8")
            self.assertEqual(re.findall(r'(?:src|href)="(https?://[^"]*\.(?:js|css|woff2?))"', index), [])

    def test_other_files_name_pages_that_exist(self) -> None:
        command = ["git", "-C", str(ROOT), "grep", "-ohIE", r"docs/[A-Za-z0-9_/-]+\.(md|svg)"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode > 1:
            self.skipTest(f"not a git repository: {found.stderr.strip()}")
        self.assertEqual([path for path in sorted(set(found.stdout.split())) if not (ROOT / path).exists()], [])

    def test_source_files_that_are_named_exist(self) -> None:
        checked = 0
        for page in PAGES:
            text = without_blocks(page.read_text(encoding="utf-8"))
            for path in re.findall(r"`((?:gossip|peer|daemon|sdk|tools|tests|docs|\.ci)/[\w./+-]*)", text):
                self.assertTrue((ROOT / path).exists(), f"{name_of(page)} names {path}, which is not there")
                checked += 1
        self.assertGreaterEqual(checked, 150)

    def test_options_and_metrics_that_are_named_exist(self) -> None:
        options: Set[Tuple[str, str]] = set()
        section = ""
        for line in (ROOT / "daemon" / "gossamer.toml").read_text(encoding="utf-8").splitlines():
            section = line.strip("[]") if line.startswith("[") else section
            options.add((section, line.partition(" = ")[0]))
        metrics = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
        c_api = (ROOT / "sdk" / "c" / "gossamer.h").read_text(encoding="utf-8")
        checked = 0
        for page in PAGES:
            text = page.read_text(encoding="utf-8")
            for named in re.findall(r"`\[(\w+)\] (\w+)", text):
                self.assertIn(named, options, name_of(page))
                checked += 1
            for name in re.findall(r"`(gossamer_\w+)(?:\(\))?`", without_blocks(text)):
                self.assertTrue(f"`{name}`" in metrics or re.search(rf"\b{name}\b", c_api), f"{name_of(page)}: {name}")
                checked += 1
        self.assertGreaterEqual(checked, 100)

    def test_tests_that_are_named_exist(self) -> None:
        files = {path.stem for path in (ROOT / "tests").rglob("*_test.*")}
        rules = (ROOT / "tests" / "sim" / "CMakeLists.txt").read_text(encoding="utf-8")
        checked = 0
        for page in PAGES:
            text = without_blocks(page.read_text(encoding="utf-8"))
            for name in re.findall(r"`(system_\w+|sim_\w+|\w+_test)`", text):
                kind, _, rest = name.partition("_")
                found = name in files or kind == "system" and f"{rest}_test" in files or kind == "sim" and name in rules
                self.assertTrue(found, f"{name_of(page)} names the test {name}, which is not there")
                checked += 1
        self.assertGreaterEqual(checked, 40)

    def test_lines_are_wrapped(self) -> None:
        for page in PAGES:
            if name_of(page) in MADE_BY_PROGRAMS:
                continue
            for number, line in enumerate(without_blocks(page.read_text(encoding="utf-8")).split("\n"), 1):
                longest = max(map(len, line.split()), default=0)
                unbreakable = len(line.split()) <= 2 or "](" in line and len(line) - longest < WIDTH
                if not line.lstrip().startswith("|") and not unbreakable:
                    self.assertLessEqual(len(line), WIDTH, f"{name_of(page)}:{number}")

    def test_headings_and_blocks_stand_apart(self) -> None:
        """Without an empty line, what follows a paragraph becomes part of it."""
        for page in PAGES:
            lines = without_blocks(page.read_text(encoding="utf-8")).split("\n")
            for number, (before, line) in enumerate(zip(lines, lines[1:]), 2):
                starts = re.match(r"^(#|\|)", line) and not re.match(r"^\|", before)
                item = r"^([-*]|\d+\.) "
                starts = starts or (re.match(item, line) and not re.match(item + r"|^\s+\S", before))
                self.assertFalse(starts and before.strip(), f"{name_of(page)}:{number} needs an empty line before it")
            for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
                self.assertNotRegex(line, r"^\s+```", f"{name_of(page)}:{number}: the site has no blocks in lists")

    def test_a_page_says_first_what_it_is_for(self) -> None:
        for page in PAGES:
            title, first = [line for line in page.read_text(encoding="utf-8").split("\n") if line.strip()][:2]
            self.assertRegex(title, r"^# \w", name_of(page))
            self.assertRegex(first, r"^[A-Z`]", f"{name_of(page)} begins with no sentence")

    def test_sentences_are_short(self) -> None:
        long = []
        for page in PAGES:
            if name_of(page) in MADE_BY_PROGRAMS:
                continue
            for paragraph in prose(written_by_hand(page)):
                for sentence in sentences(paragraph):
                    words = len(sentence.split())
                    if words > MOST_WORDS and not any(sentence.startswith(begin) for begin in LONG_SENTENCES):
                        long.append(f"{name_of(page)}: {words} words: {sentence[:100]}...")
        self.assertEqual(long, [], "\n" + "\n".join(long))

    def test_words_have_one_meaning(self) -> None:
        for page in PAGES:
            if name_of(page) not in MAY_SAY_THEM:
                for paragraph in prose(written_by_hand(page)):
                    self.assertNotRegex(paragraph, RULED_OUT, name_of(page))

    def test_python_compiles(self) -> None:
        checked = 0
        for page in PAGES:
            for block in blocks(page.read_text(encoding="utf-8")):
                if block.language == "python":
                    compile(block.text, f"{name_of(page)}:{block.line}", "exec")
                    checked += 1
        self.assertGreaterEqual(checked, 6)

    def check_words(self, program: Command, words: List[str]) -> None:
        command, before = program, ""
        for word in words:
            if word in ("--", "<", ">"):
                return
            if word.startswith("--"):
                self.assertIn(word.partition("=")[0], command.options | program.options)
            elif word in command.below:
                command = command.below[word]
            elif command.below and not before.startswith("--"):  # else: an option's value, or an argument
                self.assertTrue(word.isupper(), f"there is no command {word}")
            before = word

    def test_commands_exist(self) -> None:
        ctl, daemon = read_program(CTL_SOURCES), read_program([DAEMON_SOURCE])
        self.assertGreaterEqual(len(ctl.below), 20)
        self.assertIn("--check-config", daemon.options)
        checked = 0
        for page in PAGES:
            for number, words in command_lines(page.read_text(encoding="utf-8")):
                with self.subTest(line=f"{name_of(page)}:{number}", command=" ".join(words)):
                    self.check_words(ctl if Path(words[0]).name == "gossamerctl" else daemon, words[1:])
                    checked += 1
        self.assertGreaterEqual(checked, 60)

    def test_commands_of_the_simulator_exist(self) -> None:
        """Those that figures are made again by, also within sentences."""
        sources = "".join(path.read_text(encoding="utf-8") for path in SIM_SOURCES)
        options = set(re.findall(r'add_(?:option|flag)\(\s*"!?(--[\w-]+)"', sources)) | {"--help"}
        checked = 0
        for page in PAGES:
            text = page.read_text(encoding="utf-8")
            spans = re.findall(r"`((?:gossamer-sim|learn) [^`]*)`", without_blocks(text))
            lines = [line for block in blocks(text) for line in block.text.split("\n")]
            spans += [re.sub(r"#.*", "", line) for line in lines if re.match(r"\S*gossamer-sim ", line)]
            for span in spans:
                for option in re.findall(r"(?<!\S)--[a-z-]+", span):
                    self.assertIn(option, options, f"{name_of(page)}: {span}")
                    checked += 1
        self.assertGreaterEqual(checked, 100)

    def test_the_reference_has_every_command_and_option(self) -> None:
        page = (DOCS / "reference" / "gossamerctl.md").read_text(encoding="utf-8")
        table = page[page.index("## Commands") : page.index("## --json")]

        def whole(command: Command, path: str) -> None:
            for name, below in command.below.items():
                if not below.below:
                    self.assertRegex(table, rf"`{path}{name}[ `]")
                for option in below.options:
                    self.assertRegex(table, rf"`{option}[ `]")
                whole(below, f"{path}{name} ")

        ctl = read_program(CTL_SOURCES)
        whole(ctl, "")
        for option in ctl.options:
            self.assertRegex(table, rf"`{option}[ `]")

    def test_generated_pages_are_up_to_date(self) -> None:
        for name in generated.PAGES:
            self.assertEqual((ROOT / name).read_text(encoding="utf-8"), generated.expected(name), "run tools/docs")


class TheChecks(unittest.TestCase):
    """That the checks find what they are for."""

    def test_sentences_are_told_apart(self) -> None:
        self.assertEqual(sentences("One (He et al. 2022) is. Two is 3.4 long: so it is."),
                         ["One (He et al. 2022) is.", "Two is 3.4 long: so it is."])

    def test_commands_are_found_in_lines(self) -> None:
        text = "```sh\nsudo gossamerctl invite --expires 1h   # gossamerctl no\nA=1 bin/gossamerd --config x\n```\n"
        self.assertEqual([words for _, words in command_lines(text)],
                         [["gossamerctl", "invite", "--expires", "1h"], ["bin/gossamerd", "--config", "x"]])

    def test_a_wrong_option_is_found(self) -> None:
        program = read_program(CTL_SOURCES)
        checks = Documents()
        for words in (["invite", "--expire", "1h"], ["invented"], ["drain", "--expires", "1h"]):
            with self.assertRaises(AssertionError):
                checks.check_words(program, words)
        checks.check_words(program, ["key", "retire", "FINGERPRINT"])
        checks.check_words(program, ["run", "--gpus", "0,2", "--", "python3", "--wrong"])


if __name__ == "__main__":
    unittest.main()
