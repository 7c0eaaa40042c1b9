"""HAProxy before the routers of a drill's cluster, as ``docs/haproxy.cfg`` has it.

Owns the change of its addresses, and its process. The example itself is what is run, so that it is
known to do what it says; it is a part of the sources, and not of an installed package.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from chairlift.evaluation.drill_cluster import HTTP_PORT, DrillCluster
from chairlift.evaluation.drill_network import Host
from chairlift.evaluation.drill_service import wait_until

__all__ = ["balancer"]

EXAMPLE = Path(__file__).resolve().parents[1] / "docs" / "haproxy.cfg"
PORT = 8000
START_DEADLINE_S = 10.0


@contextlib.contextmanager
def balancer(cluster: DrillCluster, nodes: Sequence[Host]) -> Iterator[str]:
    """Its URL; it knows all of ``nodes``, whether they have a router or not."""
    file, output = cluster.folder / "haproxy.cfg", cluster.folder / "haproxy"
    file.write_text(_config(EXAMPLE.read_text(), nodes))
    command = ("haproxy", "-db", "-f", str(file))
    with output.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
    try:
        wait_until(lambda: _listens() or process.poll() is not None, START_DEADLINE_S, "HAProxy")
        if process.poll() is not None:
            raise RuntimeError(f"HAProxy ended: {output.read_text()}")
        yield f"http://127.0.0.1:{PORT}"
    finally:
        process.kill()
        process.wait()


def _listens() -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", PORT), timeout=1.0):
        return True
    return False


def _config(example: str, nodes: Sequence[Host]) -> str:
    """The example with other servers in place of its own."""
    kept = [line for line in example.splitlines() if not re.match(r"\s+server ", line)]
    servers = [
        f"    server {host.name.replace(' ', '')} {host.address}:{HTTP_PORT}" for host in nodes
    ]
    return "\n".join([*kept, *servers, ""])
