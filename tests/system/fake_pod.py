"""Runs the pods of a Kubernetes file on this machine, as root and without Kubernetes. Each container is in mount, PID,
IPC and host name namespaces of its own, with its own file system (a layer over this machine's), the mounts that the
file names and nothing else of the node's, its users and groups, and its rights. A node is a folder.

Images, networks, cgroups and probes are left out.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from processes import Program

TOOLS = ("unshare", "setpriv", "mount", "chroot")
# The file system of a container is put together here, in its own mount namespace.
PLACE = "/mnt"
HIDDEN = ("/tmp", "/run", "/var/tmp", "/root", "/home", "/mnt", "/dev/shm")


def why_not() -> str:
    if os.geteuid() != 0:
        return "one must be root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


class Pod:
    """`node` is the folder that stands for the machine, with hostPath volumes below it. `image` maps paths in the image
    to files and folders of this machine. `files` has the contents of config maps and secrets, by name."""

    def __init__(self, spec: Dict[str, Any], node: Path, image: Dict[str, Path], files: Dict[str, Dict[str, str]]):
        self._spec = spec
        self._node = node
        self._image = image
        self._volumes = {volume["name"]: self._volume(volume, files) for volume in spec["volumes"]}

    def container(self, name: str, log: Path, command: Sequence[str] = (), **environment: str) -> Program:
        """Starts it, with another command than the file's, and additions to its environment, if given."""
        containers = [*self._spec.get("initContainers", []), *self._spec["containers"]]
        container = dict(next(found for found in containers if found["name"] == name))
        more = [{"name": variable, "value": value} for variable, value in environment.items()]
        container["env"] = [*container.get("env", []), *more]
        if command:
            container["command"] = list(command)
        script = self._script(container)
        return Program(
            ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "/bin/sh", "-ec", script], log
        )

    def _volume(self, volume: Dict[str, Any], files: Dict[str, Dict[str, str]]) -> Path:
        """The folder on this machine that stands for it."""
        if "hostPath" in volume:
            path = self._node / volume["hostPath"]["path"].lstrip("/")
            if volume["hostPath"]["type"] == "DirectoryOrCreate":
                path.mkdir(mode=0o755, parents=True, exist_ok=True)
            elif not path.is_dir():
                raise FileNotFoundError(f"{path}: the file wants it to be there")
            return path
        name = volume["configMap"]["name"] if "configMap" in volume else volume["secret"]["secretName"]
        folder = self._node / name
        folder.mkdir(mode=0o755, exist_ok=True)
        for file, content in files[name].items():
            (folder / file).write_text(content, encoding="utf-8")
            (folder / file).chmod(0o644)  # Kubernetes' default
        return folder

    def _mounts(self, container: Dict[str, Any]) -> List[Tuple[Path, str, bool]]:
        """The mounts, their places, and whether they are read-only."""
        mounts = [(path, target, True) for target, path in self._image.items()]
        for mount in container["volumeMounts"]:
            mounts.append((self._volumes[mount["name"]], mount["mountPath"], mount.get("readOnly", False)))
        return mounts

    def _script(self, container: Dict[str, Any]) -> str:
        root = f"{PLACE}/root"
        lines = [
            "mount --make-rprivate /",
            f"mount -t tmpfs none {PLACE}",
            f"mkdir {PLACE}/upper {PLACE}/work {root} {PLACE}/empty",
            f"mount -t overlay -o lowerdir=/,upperdir={PLACE}/upper,workdir={PLACE}/work overlay {root}",
            f"mount --rbind /dev {root}/dev",
        ]
        lines += [f"mount -t tmpfs none {root}{folder}" for folder in HIDDEN]
        for source, target, read_only in self._mounts(container):
            place, quoted = shlex.quote(root + target), shlex.quote(str(source))
            make = f"mkdir -p {place}" if source.is_dir() else f"mkdir -p $(dirname {place}); touch {place}"
            lines += [make, f"mount --bind {quoted} {place}"]
            if read_only:
                lines.append(f"mount -o remount,bind,ro {place}")
        lines += [f"mount -t proc proc {root}/proc", "hostname fake-pod"]
        security = {**self._spec.get("securityContext", {}), **container.get("securityContext", {})}
        if security.get("readOnlyRootFilesystem"):
            lines.append(f"mount -o remount,bind,ro {root}")
        rights = [f"--reuid={security['runAsUser']}", f"--regid={security['runAsGroup']}"]
        groups = ",".join(str(group) for group in security.get("supplementalGroups", []))
        rights.append(f"--groups={groups}" if groups else "--clear-groups")
        if security.get("capabilities", {}).get("drop") == ["ALL"]:
            rights += ["--bounding-set=-all", "--inh-caps=-all"]
        if security.get("allowPrivilegeEscalation") is False:
            rights.append("--no-new-privs")
        words = ["env", "-i", "PATH=/usr/bin:/bin:/usr/sbin:/sbin"]
        words += [f"{variable['name']}={variable['value']}" for variable in container["env"]]
        words += container["command"]
        lines.append(f"exec chroot {root} setpriv {' '.join(rights)} {' '.join(shlex.quote(word) for word in words)}")
        return "\n".join(lines)
