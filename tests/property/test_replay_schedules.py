"""Whatever happened, the ledger tells it, and the scheduler decides it again."""

from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.cluster.protocol import Batching, Controls
from chairlift.workers.ledger_file import parse_ledger
from chairlift.workers.ledger_records import Snapshot
from support.engines import Rig, replica_info
from support.ledgers import Crowd, record, replay_bytes


@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 120),
    geometry=st.tuples(st.integers(1, 4), st.integers(24, 60)),
    ring_bytes=st.sampled_from([16_000, 40_000, 1 << 20]),
    controls=st.builds(
        Controls,
        version=st.just(0),
        batching=st.sampled_from(Batching),
        token_budget=st.integers(1, 30),
        max_sequences=st.integers(1, 6),
        fair=st.booleans(),
    ),
    switches=st.tuples(st.booleans(), st.booleans()),
)
@settings(max_examples=60, deadline=None)
def test_any_schedule_replays(
    seed: int,
    steps: int,
    geometry: tuple[int, int],
    ring_bytes: int,
    controls: Controls,
    switches: tuple[bool, bool],
) -> None:
    prefix_cache, hands_over = switches
    block_size, capacity = geometry
    num_blocks = capacity // block_size
    info = replica_info(
        blocks_total=num_blocks,
        block_size=block_size,
        max_sequence_tokens=min(36, num_blocks * block_size),
        max_sequences=6,
    )
    rig = Rig(controls, info=info, eos=(5,), prefix_cache=prefix_cache)
    ledger = record(rig, ring_bytes=ring_bytes)
    crowd = Crowd(rig, seed)
    for _ in range(steps):
        crowd.step()
    if hands_over:
        rig.engine.hand_over()
        crowd.step()
    crowd.calm()
    content = ledger.content()
    assert len(content) < ring_bytes + 1000
    replayed = replay_bytes(content)
    assert replayed.difference is None
    seen = sum(isinstance(each, Snapshot) for each in parse_ledger(content))
    assert replayed.snapshots == seen - 1
    if ring_bytes == 1 << 20:
        assert replayed.skipped == 0 and replayed.steps >= rig.engine.load.step
