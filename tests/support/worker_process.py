"""A fake replica in a process of its own, so that it can be killed.

    PYTHONPATH=tests python -m support.worker_process REPLICA_ID STEP_SECONDS

Prints its endpoint, and runs until its standard input ends.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.replicas import fake_replica


@dataclass
class WorkerProcess:
    replica_id: str
    endpoint: str
    process: subprocess.Popen[str]


@contextmanager
def worker_process(replica_id: str, *, step_s: float) -> Iterator[WorkerProcess]:
    """A replica with the embedded tokenizer's vocabulary; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "support.worker_process", replica_id, str(step_s)],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        assert endpoint, "the worker process did not start"
        yield WorkerProcess(replica_id, endpoint, process)
    finally:
        process.kill()
        process.communicate()


async def main(replica_id: str, step_s: float) -> None:
    facts = {"vocab_size": 49152, "blocks_total": 4096, "max_sequences": 32, "max_waiting": 512}
    async with fake_replica(replica_id=replica_id, step_s=step_s, **facts) as replica:
        print(replica.endpoint, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
