"""How many devices a load needs: the arithmetic of capacity planning (pure).

Owns the formulas: room for a KV cache, seats, the time of a step by its roofline, queues, replicas.
Each is counted for one case of what is not known for sure (``capacity_devices.Efficiency``); who
wants bounds counts three times (``capacity_report``). It reads no files and knows no units but
bytes, tokens and seconds.

A sequence takes a seat while its output is decoded, ``o`` tokens in the mean. In the steady state
a step in which ``B`` seats decode has to bring in ``B × p / o`` tokens of new prompts as well, and
that step's time is the time per token. All other figures follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from chairlift.cluster.capacity_devices import Device, Efficiency
from chairlift.cluster.capacity_model import Load, ModelFigures
from chairlift.cluster.errors import ConfigError

__all__ = [
    "Plan",
    "Question",
    "Step",
    "Targets",
    "Wishes",
    "choose_degree",
    "kv_room",
    "make_plan",
    "step_s",
    "wait_share",
]

MOST_SEATS = 4096
MOST_REPLICAS = 1_000
FREE_SHARE = 0.9
"""Of what weights leave, as ``engine.kv_memory: auto`` takes it on a GPU."""
LATE_SHARE = 0.05
"""Of requests that may wait for a seat for longer than the target leaves."""
ROUTER_S_PER_TOKEN = 43e-6
"""Processor time of a router by docs/performance.md, at 64 streams."""
ROUTER_FULL = 0.6
"""A router is one thread; beyond this its own queue begins to be felt."""
_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds: to the first token (95 of 100 requests), and a token after it (in the mean)."""

    first_token_s: float
    per_token_s: float


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is decided and not computed.

    Attributes:
        token_budget: ``engine.token_budget``.
        reserve: bytes of each device besides weights and KV cache.
        headroom: share of the seats that stays free in the mean.
        spares: replicas that may be missing.
        price: of a device for an hour; None where cost is of no interest.
    """

    token_budget: int
    reserve: float
    headroom: float = 0.2
    spares: int = 1
    price: float | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """All that a plan follows from, but for what is not known for sure."""

    model: ModelFigures
    device: Device
    load: Load
    targets: Targets
    wishes: Wishes


@dataclass(frozen=True, slots=True)
class Step:
    """What one step computes; numbers are means, and need not be whole.

    Attributes:
        decoding: sequences that decode, each looking back on ``context`` tokens.
        prompt: tokens of prompts that are ``prompt_length`` long, and look back on half of that.
    """

    decoding: float
    context: float
    prompt: float = 0.0
    prompt_length: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What one case comes to; a replica is a group of ``degree`` devices.

    Attributes:
        kv_room: bytes that a replica has for its KV cache.
        kv_seats: sequences that fit into it in the mean; ``seats``: that the targets bear as well.
        meets: whether so many, or a single one, are within the targets.
        alone_s, full_s: the time of a step of one sequence, and of one with all seats taken.
        prompt_s: until a long prompt is computed, on a full replica.
        tokens_per_s: output of a full replica.
        at_load: replicas without the spare ones.
        running: sequences of a replica at the load; ``load_s`` the time of its steps then.
        late_share: of requests that wait for a seat for longer than the target leaves.
        per_hour, per_million: cost, and cost of a million output tokens.
    """

    kv_room: float
    kv_seats: int
    seats: int
    meets: bool
    alone_s: float
    full_s: float
    prompt_s: float
    tokens_per_s: float
    at_load: int
    replicas: int
    running: float
    load_s: float
    late_share: float
    routers: int
    per_hour: float | None
    per_million: float | None


def step_s(
    model: ModelFigures, device: Device, degree: int, efficiency: Efficiency, step: Step
) -> float:
    """The time of one step by its roofline, on ``degree`` devices together."""
    tokens, bandwidth = step.decoding + step.prompt, degree * device.bandwidth
    looks = step.decoding * step.context
    memory = model.bytes_read(tokens) / (efficiency.memory * bandwidth)
    memory += looks * model.kv_bytes(degree) / (efficiency.attention * bandwidth)
    work = model.flops(step.decoding, step.prompt)
    work += model.attention_flops(looks + step.prompt * step.prompt_length / 2)
    compute = work / (efficiency.compute * degree * device.flops[model.dtype])
    shorter, longer = sorted((memory, compute))
    seconds = longer + (1 - efficiency.overlap) * shorter + efficiency.overhead_s
    if degree > 1:
        sent = 2 * (degree - 1) / degree * tokens * model.hidden_bytes
        link_s = sent / device.link if device.link else 0.0
        seconds += 2 * model.layers * (efficiency.exchange_s + link_s)
    return seconds


def kv_room(model: ModelFigures, device: Device, degree: int, reserve: float) -> float:
    """Bytes of a replica's KV cache; below 0 where the weights do not fit."""
    return FREE_SHARE * (degree * (device.memory - reserve) - model.weight_bytes)


def choose_degree(question: Question, efficiency: Efficiency, degrees: Iterable[int]) -> int:
    """The least degree with room for one long sequence, and whose tokens come in time alone.

    Raises:
        ConfigError: none is enough.
    """
    model, device, load = question.model, question.device, question.load
    target_s, fault = question.targets.per_token_s, "there is none to try"
    for degree in degrees:
        room = kv_room(model, device, degree, question.wishes.reserve)
        needed = load.longest * model.kv_bytes(degree)
        alone = step_s(model, device, degree, efficiency, Step(1, load.context))
        if room < needed:
            fault = (
                f"weights of {model.weight_bytes / 1e9:.1f} GB leave {max(room, 0) / 1e9:.2f} GB "
                f"for a KV cache, and a sequence of {load.longest:.0f} tokens takes "
                f"{needed / 1e9:.2f} GB"
            )
        elif alone > target_s:
            fault = (
                f"a token takes {1e3 * alone:.1f} ms with nobody else there, and --per-token is "
                f"{1e3 * target_s:g} ms"
            )
        else:
            return degree
        fault = f"{degree} × {device.name}: {fault}"
    raise ConfigError(f"no tensor-parallel degree is enough; {fault}")


def make_plan(
    question: Question, degree: int, efficiency: Efficiency, *, long: bool = False
) -> Plan:
    """Count one case through.

    Args:
        question: what is asked.
        degree: of tensor parallelism.
        efficiency: the case.
        long: the KV cache is for sequences that all are as long as one in twenty.

    Raises:
        ConfigError: more replicas would be needed than anybody has.
    """
    model, load, wishes = question.model, question.load, question.wishes

    def seconds(seats: float, prompt: float, length: float) -> float:
        step = Step(seats, load.context, prompt, length)
        return step_s(model, question.device, degree, efficiency, step)

    def mixed_s(seats: float) -> float:
        return seconds(seats, seats * load.prompts_per_output, load.prompt.of_running)

    room = kv_room(model, question.device, degree, wishes.reserve)
    kv_seats = _kv_seats(model.kv_bytes(degree), load, room, long=long)
    balanced = int(wishes.token_budget / (1 + load.prompts_per_output))
    most = max(1, min(kv_seats, balanced, MOST_SEATS))
    seats = _most_within(mixed_s, question.targets.per_token_s, most)
    full_s = mixed_s(seats)
    chunk = max(1.0, min(load.long_new_prompt, wishes.token_budget - seats))
    prompt_s = load.long_new_prompt / chunk * seconds(seats, chunk, load.prompt.p95)
    patience_s = question.targets.first_token_s - prompt_s
    at_load, late_share = _replicas(load, wishes.headroom, seats, full_s, patience_s)
    running = _running(mixed_s, load, at_load, seats)
    replicas = at_load + wishes.spares
    per_hour = None if wishes.price is None else wishes.price * degree * replicas
    tokens_per_hour = 3600 * load.rate * load.output.mean
    return Plan(
        kv_room=room,
        kv_seats=kv_seats,
        seats=seats,
        meets=kv_seats > 0 and full_s <= question.targets.per_token_s and patience_s >= 0,
        alone_s=seconds(1, 0, 0),
        full_s=full_s,
        prompt_s=prompt_s,
        tokens_per_s=seats / full_s,
        at_load=at_load,
        replicas=replicas,
        running=running,
        load_s=mixed_s(running),
        late_share=late_share,
        routers=_routers(load) + min(1, wishes.spares),
        per_hour=per_hour,
        per_million=None if per_hour is None else 1e6 * per_hour / tokens_per_hour,
    )


def wait_share(servers: int, offered: float, patience: float, variability: float) -> float:
    """The share of arrivals that wait for longer than ``patience`` for one of many servers.

    Erlang's C with its exponential tail, whose rate is divided by ``variability`` as in Allen and
    Cunneen's approximation.

    Args:
        servers: seats.
        offered: arrivals a second, times the seconds that each takes.
        patience: in such times; one that is below 0 is none.
        variability: the mean of the squared coefficients of variation of arrivals and service.
    """
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = offered * blocked / (number + offered * blocked)
    waits = blocked / (1 - offered / servers * (1 - blocked))
    return waits * math.exp(-(servers - offered) * max(patience, 0.0) / variability)


def _kv_seats(per_token: float, load: Load, room: float, *, long: bool) -> int:
    """What prompts have in common is there once."""
    of_one = load.longest - load.shared_tokens if long else load.held
    return max(0, int((room / per_token - load.shared_tokens) / of_one))


def _most_within(seconds: Callable[[float], float], limit_s: float, most: int) -> int:
    """The most seats whose steps are within the limit; all where not even one's are."""
    if seconds(1) > limit_s:
        return most
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if seconds(middle) <= limit_s:
            low = middle
        else:
            high = middle - 1
    return low


def _replicas(
    load: Load, headroom: float, seats: int, full_s: float, patience_s: float
) -> tuple[int, float]:
    """The fewest with free seats enough, and the share of requests that waits for too long."""
    service_s = load.output.mean * full_s
    offered = load.rate * service_s
    least = max(1, math.ceil(offered / (seats * (1 - headroom))))
    if least > MOST_REPLICAS:
        raise ConfigError(
            f"{least} replicas of {seats} seats would be needed: lower --rate, or take a faster "
            "device or looser targets"
        )
    patience = patience_s / service_s
    late = wait_share(least * seats, offered, patience, load.variability)
    while late > LATE_SHARE and least < MOST_REPLICAS and patience_s > 0:
        least += 1
        late = wait_share(least * seats, offered, patience, load.variability)
    return least, late


def _running(seconds: Callable[[float], float], load: Load, replicas: int, seats: int) -> float:
    """Sequences that run on each, so that as many end as come (Little's law)."""
    arrivals = load.rate / replicas * load.output.mean
    low, high = 0.0, float(seats)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle / seconds(middle) < arrivals:
            low = middle
        else:
            high = middle
    return high


def _routers(load: Load) -> int:
    busy = load.rate * load.output.mean * ROUTER_S_PER_TOKEN
    return max(1, math.ceil(busy / ROUTER_FULL))
