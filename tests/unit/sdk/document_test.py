"""The programs in docs/reference/c-api.md compile without a warning, and run: alone, because no daemon is where they
look.

    document_test.py DOCUMENT C_COMPILER CXX_COMPILER LIBRARY INCLUDE_FOLDER...
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

COMPILE_TIMEOUT_S = 60
# Longer than the programs wait for a daemon.
RUN_TIMEOUT_S = 30

document, c_compiler, cxx_compiler, library = sys.argv[1:5]
include_folders = sys.argv[5:]
blocks = re.findall(r"^```(c|c\+\+)\n(.*?)^```$", Path(document).read_text(), re.DOTALL | re.MULTILINE)


class Document(unittest.TestCase):
    def compile_and_run(self, compiler: str, standard: str, suffix: str, source: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "train" + suffix)
            path.write_text(source)
            program = Path(folder, "train")
            built = subprocess.run(
                [compiler, f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror", path, "-o", program]
                + [f"-I{include}" for include in include_folders]
                + [library, f"-Wl,-rpath,{Path(library).parent}"],
                stderr=subprocess.PIPE,
                text=True,
                timeout=COMPILE_TIMEOUT_S,
                check=False,
            )
            self.assertEqual(built.returncode, 0, built.stderr)
            ran = subprocess.run(
                [program],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=RUN_TIMEOUT_S,
                env={**os.environ, "GOSSAMER_SOCKET": str(Path(folder, "nobody.sock"))},
                check=False,
            )
            self.assertEqual(ran.returncode, 0, ran.stdout)
            return ran.stdout

    def test_c(self) -> None:
        (source,) = [block for language, block in blocks if language == "c"]
        said = self.compile_and_run(c_compiler, "c99", ".c", source)
        self.assertIn("alone for now: no gossamerd answers", said)

    def test_cxx(self) -> None:
        (source,) = [block for language, block in blocks if language == "c++"]
        self.assertIn("no gossamerd answers", self.compile_and_run(cxx_compiler, "c++20", ".cpp", source))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
