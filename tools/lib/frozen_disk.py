"""A small disk that can be made to hang: a file system in a file, which the kernel freezes. Processes that write to it
then wait and cannot be killed, as with a server or a controller that does not answer. Needs root and util-linux.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

SIZE_BYTES = 64 << 20
TIMEOUT_S = 60.0
NEEDED = ("mkfs.ext4", "mount", "umount", "fsfreeze")


class DiskUnavailable(RuntimeError):
    """Such a disk is not possible here."""


def _run(*command: str) -> None:
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if result.returncode != 0:
        raise DiskUnavailable(f"{' '.join(command)}: {result.stderr.strip() or result.returncode}")


class FrozenDisk:
    """Mounted at `folder`, which is made, until close(). Raises DiskUnavailable."""

    def __init__(self, image: Path, folder: Path):
        self.folder = folder
        self._image = image
        self._mounted = self._frozen = False
        if os.geteuid() != 0:
            raise DiskUnavailable("one must be root to mount a disk")
        for tool in NEEDED:
            if shutil.which(tool) is None:
                raise DiskUnavailable(f"{tool} is not installed")
        with open(image, "wb") as file:
            file.truncate(SIZE_BYTES)
        _run("mkfs.ext4", "-q", str(image))
        folder.mkdir()
        _run("mount", "-o", "loop", str(image), str(folder))
        self._mounted = True

    def __enter__(self) -> "FrozenDisk":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def freeze(self) -> None:
        _run("fsfreeze", "--freeze", str(self.folder))
        self._frozen = True

    def thaw(self) -> None:
        if self._frozen:
            self._frozen = False
            _run("fsfreeze", "--unfreeze", str(self.folder))

    def close(self) -> None:
        """Processes that wait for it go on first. It is detached, so that a process with an open file does not keep
        it."""
        self.thaw()
        if self._mounted:
            self._mounted = False
            _run("umount", "--lazy", str(self.folder))
