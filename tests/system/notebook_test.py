"""docs/tutorial/notebook.ipynb does what it promises, also for somebody who runs each cell twice. It is run by nbclient,
in a Jupyter kernel of its own, and judged by the files that it leaves. Also that the file itself is in order: no outputs
in it, code that compiles, links that lead somewhere, and text as in the rest of the book.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import re
import signal
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Callable, Dict, List
from unittest import mock

import numpy as np

from support import BUILD, PATIENCE_S, REPOSITORY, processes_with, wait_until

sys.path.insert(0, str(REPOSITORY / "tests"))

from documents_test import MOST_WORDS, RULED_OUT, WIDTH, anchors, links, prose, sentences  # noqa: E402

NOTEBOOK = REPOSITORY / "docs" / "tutorial" / "notebook.ipynb"
# Longer than a cell itself waits. A cell that waits too long says what for.
CELL_TIMEOUT_S = 200
MISSING = [name for name in ("nbclient", "ipykernel") if importlib.util.find_spec(name) is None]
# The notebook's claims: together the nodes are as good as with all data, and a node alone can name half of the points.
LEAST_TOGETHER = 0.9
MOST_ALONE = 0.7
MOST_BEHIND_ALL_DATA = 0.05
LEAST_AT_JOINING = 0.8
MOST_WHILE_APART = 0.86

Row = np.ndarray  # the time, the accuracy, the number of neighbours


def cells(kind: str) -> List[Dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def started_in(folder: Path) -> List[int]:
    """Processes that have this folder as the place of their state, or below it."""
    return processes_with("environ", f"XDG_STATE_HOME={folder}")


def come_in_order(rows: np.ndarray, *conditions: Callable[[Row], bool]) -> bool:
    """Whether each condition holds in some row, later than where the one before held."""
    following = iter(rows)
    return all(any(condition(row) for row in following) for condition in conditions)


@unittest.skipIf(MISSING, "apt-get install python3-nbclient python3-ipykernel: the notebook of the tutorial is not run")
class Notebook(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="gossamer-notebook-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.state = self.folder / "the state"  # with a space, as a user's path may have
        self.work = self.state / "gossamer" / "notebook"
        environment = {
            "XDG_STATE_HOME": str(self.state),
            "IPYTHONDIR": str(self.folder / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(self.folder / "runtime"),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # the unused debugger of the kernel would warn
        }
        changed = mock.patch.dict(os.environ, environment)
        changed.start()
        self.addCleanup(changed.stop)
        os.environ.pop("PYTHONPATH", None)
        os.environ.pop("MPLBACKEND", None)
        self.addCleanup(self.end_what_is_left)

    def end_what_is_left(self) -> None:
        for pid in started_in(self.state):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not started_in(self.state), PATIENCE_S, "what was left is gone")

    def run_cells(self, place: Path, times: int = 1) -> str:
        """Runs each code cell so many times in a row, with this working folder. Returns what they print."""
        import nbclient
        import nbformat

        notebook = nbformat.read(NOTEBOOK, as_version=4)
        repeated = []
        for cell in notebook.cells:
            for index in range(times if cell.cell_type == "code" else 1):
                repeated.append(copy.deepcopy(cell))
                repeated[-1]["id"] += f"-{index}"
        notebook.cells = repeated
        client = nbclient.NotebookClient(notebook, timeout=CELL_TIMEOUT_S, resources={"metadata": {"path": str(place)}})
        try:
            client.execute()
        except nbclient.exceptions.CellExecutionError as error:
            logs = "".join(f"--- {log}\n{log.read_text()[-2000:]}" for log in self.work.rglob("gossamerd.log"))
            self.fail(f"{error}\n{self.printed(notebook)}\n{logs}")
        drawn = [output for output in self.outputs(notebook) if "image/png" in output.get("data", {})]
        self.assertEqual(len(drawn), 2 * times if importlib.util.find_spec("matplotlib") else 0)
        return self.printed(notebook)

    def outputs(self, notebook: Any) -> List[Any]:
        return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]

    def printed(self, notebook: Any) -> str:
        return "".join(output.text for output in self.outputs(notebook) if output.output_type == "stream")

    def curve(self, name: str) -> np.ndarray:
        return np.loadtxt(self.work / f"{name}.csv", delimiter=",", ndmin=2)

    def check_what_it_promises(self, printed: str) -> None:
        finals = {path.stem: self.curve(path.stem)[-1, 1] for path in self.work.glob("*.csv")}
        for node in ("1", "2"):
            self.assertLess(finals[f"alone-{node}"], MOST_ALONE, finals)
            together = finals[f"together-{node}"]
            self.assertGreaterEqual(together, LEAST_TOGETHER, finals)
            self.assertLessEqual(abs(finals["all-data-1"] - together), MOST_BEHIND_ALL_DATA, finals)
            self.assertTrue(
                come_in_order(
                    self.curve(f"live-{node}"),
                    lambda row: row[1] >= LEAST_TOGETHER and row[2] == 1,
                    lambda row: row[1] <= MOST_WHILE_APART and row[2] == 0,
                    lambda row: row[1] >= LEAST_TOGETHER and row[2] == 1,
                    lambda row: row[1] >= LEAST_TOGETHER and row[2] == 2,
                ),
                f"node-{node} was not apart and together again:\n{self.curve(f'live-{node}')}",
            )
        joined = self.curve("live-3")
        self.assertGreaterEqual(joined[0, 1], LEAST_AT_JOINING, "node-3 has not taken over the model")
        self.assertTrue(come_in_order(joined, lambda row: row[1] >= LEAST_TOGETHER and row[2] == 2), joined)
        attached = re.findall(r"^accuracy ([\d.]+), after (\d+) points$", printed, re.M)
        self.assertTrue(attached, printed)
        for accuracy, points in attached:
            self.assertGreaterEqual(float(accuracy), LEAST_TOGETHER)
            self.assertGreater(int(points), 0)
        self.assertFalse((self.work / "cluster").exists())
        self.assertEqual(started_in(self.state), [], "the notebook has left something running")

    def test_with_programs_that_are_installed(self) -> None:
        place = self.folder / "elsewhere"
        place.mkdir()
        os.environ["PATH"] = f"{BUILD / 'bin'}:{os.environ['PATH']}"
        os.environ["PYTHONPATH"] = str(BUILD / "python")
        self.check_what_it_promises(self.run_cells(place))
        self.assertEqual(list(place.iterdir()), [], "it writes beside itself")

    def test_each_cell_twice_in_a_clone_that_is_built(self) -> None:
        clone = self.folder / "a clone"
        place = clone / "docs" / "tutorial"
        place.mkdir(parents=True)
        (clone / "build").symlink_to(BUILD)
        self.check_what_it_promises(self.run_cells(place, times=2))


class TheFile(unittest.TestCase):
    def test_nothing_is_stored_but_the_cells(self) -> None:
        text = NOTEBOOK.read_text(encoding="utf-8")
        notebook = json.loads(text)
        self.assertEqual(text, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
        self.assertEqual((notebook["nbformat"], notebook["nbformat_minor"]), (4, 5))
        self.assertEqual(notebook["metadata"]["kernelspec"]["name"], "python3")
        names = [cell["id"] for cell in notebook["cells"]]
        self.assertEqual(len(names), len(set(names)))
        for cell in notebook["cells"]:
            self.assertRegex(cell["id"], r"^[a-z-]+$", "a name that says what the cell is for")
            self.assertEqual(cell["metadata"], {}, cell["id"])
        for cell in cells("code"):
            self.assertEqual((cell["outputs"], cell["execution_count"]), ([], None), cell["id"])

    def test_the_code_compiles_and_is_formatted(self) -> None:
        for cell in cells("code"):
            lines = "".join(cell["source"]).split("\n")
            for line in lines:
                self.assertLessEqual(len(line), WIDTH, f"{cell['id']}: {line}")
                self.assertEqual(line, line.rstrip(), cell["id"])
            self.assertNotIn("\t", "".join(lines))
            program = lines[1:] if lines[0].startswith("%%writefile ") else lines
            compile("\n".join(program), cell["id"], "exec")

    def test_the_text_is_as_in_the_book(self) -> None:
        for cell in cells("markdown"):
            text = "".join(cell["source"])
            for line in text.split("\n"):
                self.assertLessEqual(len(line), WIDTH, f"{cell['id']}: {line}")
            for paragraph in prose(text):
                self.assertNotRegex(paragraph, RULED_OUT)
                for sentence in sentences(paragraph):
                    self.assertLessEqual(len(sentence.split()), MOST_WORDS, sentence)

    def test_links_lead_somewhere(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder, "text.md")
            page.write_text("\n\n".join("".join(cell["source"]) for cell in cells("markdown")), encoding="utf-8")
            found = list(links(page))
        self.assertGreaterEqual(len(found), 3)
        for path, anchor in found:
            target = (NOTEBOOK.parent / path).resolve()
            self.assertTrue(target.exists(), path)
            # Only docs/ is installed with the packages.
            self.assertTrue(target.is_relative_to(REPOSITORY / "docs"), path)
            if anchor:
                self.assertIn(anchor, anchors(target))


if __name__ == "__main__":
    unittest.main()
