"""Engines that keep a ledger, work for them, and ledgers that somebody has changed."""

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chairlift.cluster.protocol import (
    Batching,
    Controls,
    Priority,
    Request,
    SamplingParams,
    Submission,
)
from chairlift.workers.engine import Engine
from chairlift.workers.ledger import Ledger, LedgerClocks
from chairlift.workers.ledger_codec import read_record
from chairlift.workers.ledger_file import parse_ledger
from chairlift.workers.ledger_folder import LedgerFolder
from chairlift.workers.ledger_format import FRAME, unpack_header
from chairlift.workers.ledger_records import Record
from chairlift.workers.replay import Replayed, replay
from chairlift.workers.snapshot import describe
from support.engines import Rig


@dataclass
class FakeClock:
    """Time that passes only when told to."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now

    def clocks(self) -> LedgerClocks:
        return LedgerClocks(monotonic=self, cpu=self, wall=self)


def record(
    rig: Rig,
    *,
    ring_bytes: int = 1 << 24,
    folder: LedgerFolder | None = None,
    always: bool = False,
    clock: FakeClock | None = None,
) -> Ledger:
    """Give the rig's engine a ledger; to be called before its first step."""
    ledger = Ledger(
        rig.scheduler,
        describe(rig.scheduler, "fake", "r"),
        ring_bytes=ring_bytes,
        folder=folder,
        always=always,
        clocks=clock.clocks() if clock is not None else LedgerClocks(),
    )
    old = rig.engine
    rig.engine = Engine(
        rig.scheduler, old._runner, rig.intake, rig._listen, clock or old._clock, ledger
    )
    return ledger


def replay_bytes(content: bytes) -> Replayed:
    file = parse_ledger(content)
    return replay(file.header, file)


class Crowd:
    """Random clients of one engine: prompts with common beginnings, and every kind of trouble."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self._random = random.Random(seed)
        self._handle = 0
        self._origin = 0
        self._version = 0
        rig.during_advance = lambda plan: self._stir(during_step=True)

    def step(self) -> None:
        self._stir(during_step=False)
        self.rig.engine.step()

    def calm(self) -> None:
        """Let everything come to its end."""
        self.rig.during_advance = lambda plan: None
        self.rig.run_until_idle()

    def _stir(self, *, during_step: bool) -> None:
        chance, rig = self._random.random, self.rig
        if chance() < 0.2:
            self._submit()
        if chance() < 0.02:
            rig.intake.cancel(self._origin, [max(0, self._handle - self._random.randint(1, 6))])
        if chance() < 0.002:
            rig.intake.leave(self._origin)
            self._origin += 1
        if chance() < 0.006:
            self._set_controls()
        if during_step and chance() < 0.002:
            raise RuntimeError("injected")

    def _submit(self) -> None:
        pick = self._random
        tokens = [pick.randrange(3) for _ in range(pick.randint(1, 20))]
        limit = self.rig.info.max_sequence_tokens - len(tokens)
        sampling = SamplingParams(
            max_tokens=pick.randint(1, min(16, limit)),
            seed=pick.randrange(1 << 64),
            stop_token_ids=pick.choice([(), (), (7, 8)]),
            ignore_eos=pick.random() < 0.3,
            prompt_logprobs=pick.choice([None, None, None, 0]),
        )
        output = tuple(pick.choices(range(3), k=pick.randrange(sampling.max_tokens)))
        continued = pick.random() < 0.2 and bool(output)
        tenant = pick.choice("abc")
        request = Request(
            f"request-{self._handle}",
            tuple(tokens),
            sampling,
            n=1 if continued else pick.choice([1, 1, 1, 3]),
            tenant=tenant,
            cache_salt=pick.choice(["", "", "salt"]),
            priority=pick.choice([*Priority, Priority.STANDARD]),
            weight=pick.choice([1.0, 1.0, 1.0, 3.0]) if tenant == "c" else 1.5,
        )
        submission = Submission(self._handle, request)
        if continued:
            submission = Submission(self._handle, request, pick.randrange(3), output)
        if self.rig.intake.submit(self._origin, submission).refusal is None:
            self._handle += request.n

    def _set_controls(self) -> None:
        self._version += 1
        pick = self._random
        batching = pick.choice([Batching.CONTINUOUS, *Batching])
        controls = Controls(
            self._version,
            batching,
            token_budget=pick.randint(4, 40),
            max_sequences=pick.randint(1, 6),
            by_person=pick.random() < 0.5,
            fair=pick.random() < 0.7,
        )
        self.rig.intake.set_controls(controls)


def payloads(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Where each record's frame begins, and its payload."""
    _, at = unpack_header(content)
    while at < len(content):
        size, _ = FRAME.unpack_from(content, at)
        yield at, content[at + FRAME.size : at + FRAME.size + size]
        at += FRAME.size + size


def tamper(
    content: bytes, chosen: Callable[[Record], bool], change: Callable[[bytes], bytes]
) -> tuple[bytes, Record]:
    """Change the payload of the first chosen record, checksum and all; returns it as it was."""
    for at, payload in payloads(content):
        before = read_record(payload)
        if chosen(before):
            changed = change(payload)
            frame = FRAME.pack(len(changed), zlib.crc32(changed)) + changed
            end = at + FRAME.size + len(payload)
            return content[:at] + frame + content[end:], before
    raise AssertionError("no record was chosen")
