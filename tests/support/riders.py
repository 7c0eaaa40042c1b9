"""Replicas whose ledgers have something to show."""

import random

from chairlift.cluster.errors import NotFound
from chairlift.cluster.protocol import Controls
from support.engines import Rig, replica_info
from support.figures import SCRIPT
from support.ledgers import record


def lively_ledger(seats: int = 12, steps: int = 260) -> bytes:
    """Outputs of very different lengths, more requests than seats, a tenant who means harm."""
    pick = random.Random(7)
    info = replica_info(max_sequences=seats, max_waiting=1000)
    rig = Rig(Controls(max_sequences=seats, token_budget=96), info=info)
    ledger = record(rig)
    for handle in range(2000):
        if rig.scheduler.num_open < seats + 6:
            tenant = pick.choice(["acme", "acme", "initech", "initech", "umbrella", SCRIPT])
            tokens = min(1 + int(pick.lognormvariate(3.2, 0.9)), 200)
            prompt = [pick.randrange(1000) for _ in range(pick.randint(5, 150))]
            rig.submit(handle, prompt, max_tokens=tokens, ignore_eos=True, tenant=tenant)
        rig.engine.step()
        if rig.engine.load.step >= steps:
            break
    return ledger.content()


class FakeLedgers:
    """Stands in for ``router.ledgers``: every one of these replicas has this ledger."""

    def __init__(self, content: bytes, *replica_ids: str) -> None:
        self.asked: list[tuple[str, int]] = []
        self._content = content
        self._ids = replica_ids

    async def fetch(self, replica_id: str, steps: int = 0) -> bytes:
        self.asked.append((replica_id, steps))
        if replica_id not in self._ids:
            raise NotFound(f"There is no replica {replica_id!r}", code="no_such_replica")
        return self._content
