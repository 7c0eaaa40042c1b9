"""Machines for drills: hosts with a network of their own each, on one switch.

Owns the network namespaces, the links between them, and how they are cut and mended:

    drill ── bridge ─┬─ link ── host 1
                     ├─ link ── host 2     a link that is down loses every packet without a word
                     └─ link ── …          two links that are isolated lose those between them

The drill itself moves into a network namespace that is made for it, so that nothing of this is
seen by the machine's own network, nothing leaves it, and all is gone when the drill is. Linux
alone, by its administrator, or by anybody where users may have namespaces of their own. A host sees
no processes but its own, either; files are the machine's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from chairlift.evaluation.drill_service import wait_until

__all__ = ["Host", "Network", "networks_can_be_made"]

CLONE_NEWUSER, CLONE_NEWNET = 0x1000_0000, 0x4000_0000
BRIDGE = "drill"
PREFIX = "10.77.0"
OWN_NUMBER, FIRST_NUMBER = 1, 11
READY_DEADLINE_S = 5.0
DEATH_DEADLINE_S = 10.0


def networks_can_be_made() -> bool:
    """Whether this process may have network namespaces."""
    try:
        tried = subprocess.run(
            [*_unshare(), "ip", "link", "add", "drill", "type", "bridge"],
            capture_output=True,
            timeout=READY_DEADLINE_S,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return tried.returncode == 0


class Host:
    """One machine.

    Attributes:
        name: for people.
        address: in the drill's network.
    """

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.address = f"{PREFIX}.{number}"
        self._link = f"link{number}"
        apart = ("--net", "--pid", "--mount-proc", "--fork", "--kill-child")
        # However the drill ends, its hosts end with it.
        with_us = ("setpriv", "--pdeathsig", "KILL")
        self._holder = subprocess.Popen([*with_us, "unshare", *apart, "sleep", "infinity"])
        wait_until(self._is_apart, READY_DEADLINE_S, f"namespaces for {name}")
        pid = str(self._holder.pid)
        _ip("link", "add", self._link, "type", "veth", "peer", "eth0", "netns", pid)
        _ip("link", "set", self._link, "master", BRIDGE, "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{self.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
        ):
            subprocess.run([*self._inside, "ip", *words], check=True)

    def start(self, *command: str, output: Path) -> subprocess.Popen[bytes]:
        """A process on it; what it says goes to the end of a file."""
        with output.open("ab") as sink:
            return subprocess.Popen(
                [*self._inside, *command],
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=output.parent,
                start_new_session=True,
            )

    def pids(self, name: str = "") -> list[int]:
        """Of its processes whose command line begins so, the oldest first."""
        namespace, found = _namespace(self._holder.pid), []
        kept = {self._holder.pid, self._first.pid}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid in kept or _namespace(process.pid) != namespace:
                    continue
                if " ".join(process.cmdline()).startswith(name):
                    found.append((process.create_time(), process.pid))
        return [pid for _, pid in sorted(found)]

    def cut(self) -> None:
        """Pull its plug: packets are lost either way, and nobody is told."""
        _ip("link", "set", self._link, "down")

    def mend(self) -> None:
        _ip("link", "set", self._link, "up")

    def isolate(self, isolated: bool = True) -> None:
        """From all others that are isolated, and from nobody else."""
        how = "on" if isolated else "off"
        _ip("link", "set", self._link, "type", "bridge_slave", "isolated", how)

    def kill(self) -> None:
        """Power off: no process gets to say goodbye, and no packet of theirs leaves."""
        self.cut()
        deadline = time.monotonic() + DEATH_DEADLINE_S
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes of {self.name} cannot be killed: {pids}")
            time.sleep(0.02)

    def remove(self) -> None:
        self.kill()
        self._holder.kill()
        self._holder.wait()

    @property
    def _first(self) -> psutil.Process:
        """The host's first process, with which all others end."""
        (process,) = psutil.Process(self._holder.pid).children()
        return process

    @property
    def _inside(self) -> list[str]:
        return ["nsenter", "--target", str(self._first.pid), "--net", "--pid", "--mount", "--"]

    def _is_apart(self) -> bool:
        """Whether the first process is there, which looks like its parent until it has begun."""
        with contextlib.suppress(ValueError, psutil.Error):
            return self._first.name() == "sleep"
        return False


class Network:
    """A context manager: inside it this process is on the switch; it does not come back."""

    def __init__(self) -> None:
        self._hosts: list[Host] = []

    def __enter__(self) -> Self:
        _enter_namespace()
        _ip("link", "set", "lo", "up")
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("address", "add", f"{PREFIX}.{OWN_NUMBER}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        return self

    def host(self, name: str) -> Host:
        """One more machine."""
        host = Host(name, FIRST_NUMBER + len(self._hosts))
        self._hosts.append(host)
        return host

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host in self._hosts:
            host.remove()


def _unshare() -> list[str]:
    return ["unshare", "--net", *(() if os.geteuid() == 0 else ("--user", "--map-root-user"))]


def _enter_namespace() -> None:
    """Raises OSError where that is not allowed."""
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET | (0 if user == 0 else CLONE_NEWUSER)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"no network namespace for the drill: {os.strerror(number)}")
    if user != 0:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {user} 1"),
            ("gid_map", f"0 {group} 1"),
        ):
            Path("/proc/self", name).write_text(text)


def _namespace(pid: int) -> str:
    # Of the thread that leads the process; ours is the one that has moved.
    return os.readlink(f"/proc/{pid}/ns/net")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)  # nosec B607  # whichever its user has
