"""Containers without a container engine: what Kubernetes promises of one, made of namespaces.

A root that is read-only but for its volumes, the image's user without any privilege, and nothing of
the machine's files but the system's and Python's. Networks are ``evaluation.drill_network``'s. It
takes root to make them.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

import chairlift
from chairlift.evaluation.drill_network import Host

__all__ = ["Container", "Volume"]

IMAGE_HOME = "/opt/chairlift"
"""Where the image has Python and its packages."""
PRODUCT = Path(chairlift.__file__).parents[1]
ETC = "nsswitch.conf resolv.conf ld.so.cache ld.so.conf ld.so.conf.d ssl alternatives localtime"
DEVICES = "null zero full random urandom"
RUN_S = 60.0


@dataclass(frozen=True, slots=True)
class Volume:
    """A folder that a container can write to, or one with a Secret's files."""

    path: str
    size: str = "1g"
    files: Mapping[str, str] | None = None


class Container:
    """One that runs until its host is removed.

    Args:
        host: whose network it has.
        argv: its command.
        environment: all of it.
        volumes: where it can write, and files for it.
        user: and group.
        output: a file for what it says.
    """

    def __init__(
        self,
        host: Host,
        argv: Sequence[str],
        environment: Mapping[str, str],
        volumes: Sequence[Volume],
        *,
        user: int,
        output: Path,
    ) -> None:
        self._root, self._user = output.with_suffix(".root"), user
        # Where the image has it among its packages.
        self._environment = {**environment, "PYTHONPATH": str(PRODUCT)}
        self._root.mkdir()
        script = "\n".join(_mounts(self._root, volumes, user, host.address))
        command = f"{script}\nexec {self._as_user(argv)}\n"
        self._process = host.start(
            "unshare", "--mount", "/bin/bash", "-euc", command, output=output
        )

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Another command in it, as a probe is."""
        # Before it stays what has led it to its host; its own programs have replaced each other.
        (first,) = psutil.Process(self._process.pid).children()
        namespaces = ("--mount", "--net", "--pid")
        enter = ["nsenter", "--target", str(first.pid), *namespaces, "/bin/bash", "-euc"]
        return subprocess.run(
            [*enter, f"exec {self._as_user(argv)}"],
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def _as_user(self, argv: Sequence[str]) -> str:
        return shlex.join(
            [
                *("chroot", str(self._root), "setpriv"),
                *(f"--reuid={self._user}", f"--regid={self._user}", "--clear-groups"),
                *("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"),
                *("env", "--ignore-environment", "--chdir=/tmp"),
                *(f"{name}={value}" for name, value in self._environment.items()),
                *argv,
            ]
        )


def _mounts(root: Path, volumes: Sequence[Volume], user: int, address: str) -> list[str]:
    """Lines of a shell script, in a mount namespace of its own."""
    lines = [
        "mount --make-rprivate /",
        f"mount -t tmpfs -o mode=755 none {root}",
        f"cd {root}",
        "for name in /bin /sbin /lib /lib64; do [ ! -L $name ] || cp -a $name .; done",
        "for name in /usr /bin /sbin /lib /lib64; do",
        "  [ -e .$name ] || [ ! -d $name ] || { mkdir .$name; mount --rbind $name .$name; }",
        "done",
        "mkdir -p proc sys dev etc",
        "mount --rbind /proc proc",
        "mount --rbind /sys sys",
        f"for name in {DEVICES}; do touch dev/$name; mount --bind /dev/$name dev/$name; done",
        f"for name in {ETC}; do [ ! -e /etc/$name ] || cp -a /etc/$name etc/; done",
        f"echo 'chairlift:x:{user}:{user}::/tmp:/bin/false' > etc/passwd",
        f"echo 'chairlift:x:{user}:' > etc/group",
        f"printf '127.0.0.1 localhost\\n{address} pod\\n' > etc/hosts",
    ]
    for path in sorted({sys.prefix, sys.base_prefix, str(PRODUCT)}):
        lines += [f"mkdir -p .{path}", f"mount --bind {path} .{path}"]
    lines += [f"mkdir -p .{IMAGE_HOME}", f"mount --bind {sys.prefix} .{IMAGE_HOME}"]
    for volume in volumes:
        options = f"size={volume.size},uid={user},gid={user},mode=0700"
        lines += [f"mkdir -p .{volume.path}", f"mount -t tmpfs -o {options} none .{volume.path}"]
        for name, text in (volume.files or {}).items():
            file = f".{volume.path}/{name}"
            lines += [f"echo {shlex.quote(text)} > {file}", f"chown {user} {file}"]
        if volume.files is not None:
            lines.append(f"mount -o remount,ro .{volume.path}")
    return [*lines, f"mount -o remount,ro {root}", "cd /"]
