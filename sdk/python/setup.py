"""The parts of the build that pyproject.toml cannot say. The package is pure Python with a C library inside, so one
wheel works for every Python of a platform.
"""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Tuple

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from wheel.bdist_wheel import bdist_wheel

REPOSITORY = Path(__file__).resolve().parents[2]
LIBRARY = "libgossamer.so.1"  # as gossamer/_library.py looks for it beside itself


def project_version() -> str:
    text = (REPOSITORY / "CMakeLists.txt").read_text(encoding="utf-8")
    found = re.search(r"project\(gossamer VERSION (\S+)", text)
    assert found, "CMakeLists.txt says no version"
    return found.group(1)


class BuildLibrary(build_py):
    def run(self) -> None:
        super().run()
        with tempfile.TemporaryDirectory() as folder:
            configure = ["cmake", "-S", str(REPOSITORY), "-B", folder, "-DGOSSAMER_CLIENT_ONLY=ON", "-DGOSSAMER_TESTS=OFF"]
            configure += ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=30"]
            subprocess.run(configure, check=True)
            subprocess.run(["cmake", "--build", folder, "--target", "gossamer", "--parallel"], check=True)
            target = Path(self.build_lib) / "gossamer" / LIBRARY
            self.copy_file(str(Path(folder) / "lib" / LIBRARY), str(target))


class PlatformWheel(bdist_wheel):
    def get_tag(self) -> Tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class WithLibrary(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    version=project_version(),
    cmdclass={"build_py": BuildLibrary, "bdist_wheel": PlatformWheel},
    distclass=WithLibrary,
)
