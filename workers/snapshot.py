"""A scheduler's whole state as plain data, and back.

Owns the list of what that state consists of; it is the one module besides their own that knows
the private parts of ``Scheduler`` and ``BlockPool``. Two schedulers of equal state decide the
same from then on, down to the numbers of the blocks.

Not part of the state: what no decision depends on (sampling beyond what ends a sequence), and
what follows from the rest (the names that a sequence has asked for, who is open).
"""

from __future__ import annotations

from typing import Any

from chairlift.cluster.protocol import Priority, SamplingParams
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.ledger_format import controls_of, controls_state
from chairlift.workers.ledger_records import Header
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.sequence import Sequence, SequenceKey, Status

__all__ = ["blocks_used", "capture", "describe", "restore", "restore_sequences"]


def describe(scheduler: Scheduler, model: str, replica_id: str) -> Header:
    """What stays the same, and the Controls at the start; the times are left to the ledger."""
    pool = scheduler._pool
    return Header(
        model=model,
        replica_id=replica_id,
        block_size=pool.block_size,
        num_blocks=pool.num_blocks,
        prefix_cache=scheduler._cache._enabled,
        eos_token_ids=tuple(sorted(scheduler._eos_token_ids)),
        controls=scheduler.controls,
        started_at=0.0,
        clock_at=0.0,
    )


def blocks_used(scheduler: Scheduler) -> int:
    return scheduler._pool.num_used


def capture(scheduler: Scheduler) -> dict[str, Any]:
    """The state between two steps, as JSON can hold it."""
    return {
        "controls": controls_state(scheduler.controls),
        "running": [_sequence_state(sequence) for sequence in scheduler.running],
        "waiting": [
            _sequence_state(sequence)
            for sequence in sorted(scheduler.waiting.sequences(), key=lambda each: each.arrival)
        ],
        "counters": scheduler.counters.state(),
        "pool": _pool_state(scheduler._pool),
    }


def restore(header: Header, state: dict[str, Any]) -> Scheduler:
    """A scheduler of that state. Raises LookupError, TypeError or ValueError for a wrong one."""
    pool = BlockPool(header.num_blocks, header.block_size)
    _restore_pool(pool, state["pool"])
    controls = controls_of(state["controls"])
    scheduler = Scheduler(pool, controls, header.eos_token_ids, prefix_cache=header.prefix_cache)
    scheduler.counters.restore(state["counters"])
    running, waiting = restore_sequences(state)
    scheduler.running.extend(running)
    for sequence in waiting:
        scheduler.waiting.insert(sequence)
    known = sorted(running + waiting, key=lambda each: each.arrival)
    scheduler._open.update((sequence.key, sequence) for sequence in known)
    return scheduler


def restore_sequences(state: dict[str, Any]) -> tuple[list[Sequence], list[Sequence]]:
    """The running ones in their order, and the waiting ones in that of arrival."""
    running = [_sequence(fields, Status.RUNNING) for fields in state["running"]]
    waiting = [_sequence(fields, Status.WAITING) for fields in state["waiting"]]
    return running, waiting


def _sequence_state(sequence: Sequence) -> dict[str, Any]:
    sampling = sequence.sampling
    return {
        "key": [sequence.key.origin, sequence.key.handle],
        "arrival": sequence.arrival,
        "request_id": sequence.request_id,
        "tenant": sequence.tenant,
        "choice": sequence.choice,
        "cache_salt": sequence.cache_salt,
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "seed": sampling.seed,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
        "prompt_logprobs": sampling.prompt_logprobs is not None,
        "tokens": list(sequence.tokens),
        "num_prompt": sequence.num_prompt,
        "num_computed": sequence.num_computed,
        "num_cached": sequence.num_cached,
        "preemptions": sequence.preemptions,
        "blocks": list(sequence.blocks),
        "priority": int(sequence.priority),
        "weight": sequence.weight,
    }


def _sequence(fields: dict[str, Any], status: Status) -> Sequence:
    sampling = SamplingParams(
        max_tokens=fields["max_tokens"],
        seed=fields["seed"],
        stop_token_ids=tuple(fields["stop_token_ids"]),
        ignore_eos=fields["ignore_eos"],
        min_tokens=fields["min_tokens"],
        prompt_logprobs=0 if fields["prompt_logprobs"] else None,
    )
    return Sequence(
        key=SequenceKey(*fields["key"]),
        request_id=fields["request_id"],
        tenant=fields["tenant"],
        choice=fields["choice"],
        sampling=sampling,
        arrival=fields["arrival"],
        tokens=list(fields["tokens"]),
        num_prompt=fields["num_prompt"],
        num_computed=fields["num_computed"],
        num_cached=fields["num_cached"],
        preemptions=fields["preemptions"],
        blocks=list(fields["blocks"]),
        cache_salt=fields["cache_salt"],
        status=status,
        priority=Priority(fields["priority"]),
        weight=fields["weight"],
    )


def _pool_state(pool: BlockPool) -> dict[str, Any]:
    return {
        "free": list(pool._free),
        "cached": list(pool._cached),
        "used": [[block, count] for block, count in pool.references().items()],
        "names": [[block, name.hex()] for block, name in sorted(pool._name_of.items())],
    }


def _restore_pool(pool: BlockPool, state: dict[str, Any]) -> None:
    pool._free = list(state["free"])
    pool._cached.update(dict.fromkeys(state["cached"]))
    for block, count in state["used"]:
        pool._references[block] = count
    for block, name in state["names"]:
        pool.name(block, bytes.fromhex(name))
