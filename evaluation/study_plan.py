"""The plan of a study: what is to be decided, by which evidence, and what would overturn the claim.

Owns the words of a plan and their checks; knows nothing of how a study is run. A plan is YAML, made
before anything is measured, and registered (``study_registry``): what it says is then fixed.

    decision ◄── thresholds ◄── measures of arms ◄── runs: rounds × workloads × arms
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from chairlift.cluster.errors import ConfigError
from chairlift.cluster.protocol import Batching
from chairlift.cluster.yaml_text import parse_yaml, read_yaml
from chairlift.evaluation.arrivals import parse_arrivals
from chairlift.evaluation.lengths import parse_lengths

__all__ = [
    "Adversary",
    "Arm",
    "Conversations",
    "Drawn",
    "EngineTarget",
    "IfWrong",
    "Limits",
    "Plan",
    "Planted",
    "Scale",
    "ServiceTarget",
    "SimulatedTarget",
    "Source",
    "Stop",
    "Target",
    "Threshold",
    "TokenTargets",
    "Trace",
    "Workload",
    "load_plan",
    "parse_plan",
]

Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class IfWrong(_Part):
    """What follows where the study says yes and it is not so, and the other way round."""

    yes: Text
    no: Text

    @model_validator(mode="before")
    @classmethod
    def _words(cls, fields: object) -> object:
        """YAML takes a key ``yes`` or ``no`` without quotes for true or false."""
        if not isinstance(fields, dict):
            return fields
        return {{True: "yes", False: "no"}.get(key, key): value for key, value in fields.items()}


class TokenTargets(_Part):
    """Deadlines of a request's tokens: arrival + ``first_token_s`` + i × ``per_token_s``, s."""

    first_token_s: Positive
    per_token_s: Positive


class Trace(_Part):
    """A recorded load: Azure, BurstGPT or arena CSV, Mooncake JSONL, ServeGen JSON.

    Attributes:
        file: its name; the folder is said on the command line.
        sha256: of its bytes; a file that has another is refused.
        sealed: opened for the confirmation only, which a plan has once.
        begin: requests (of ServeGen, seconds) to be passed over at the start.
    """

    kind: Literal["trace"]
    file: Text
    sha256: Sha256
    sealed: bool = False
    begin: Annotated[int, Field(ge=0)] = 0


class Drawn(_Part):
    """Independent requests, see ``arrivals`` and ``lengths``; ``tenants``: rate shares by name."""

    kind: Literal["drawn"]
    rate: Positive
    arrivals: Text = "poisson"
    prompt: Text
    output: Text
    tenants: dict[Name, Positive] = {"all": 1.0}

    @model_validator(mode="after")
    def _check(self) -> Self:
        parse_arrivals(self.arrivals)
        parse_lengths(self.prompt, self.output)
        if not self.tenants:
            raise ValueError("tenants: name one at least")
        return self


class Conversations(_Part):
    """Users that ask, read, and ask again, each time with all that was said before.

    Attributes:
        rate: conversations that begin in a second.
        turns: of each.
        think_s: mean time, exponential, from an answer to the next question; open loop, so it
            counts from when the answer was to be there by the targets.
        system: tokens that all have in common at the start.
    """

    kind: Literal["conversations"]
    rate: Positive
    turns: Count
    think_s: Positive
    system: Annotated[int, Field(ge=0)] = 0
    question: Text
    answer: Text

    @model_validator(mode="after")
    def _check(self) -> Self:
        parse_lengths(self.question, self.answer)
        return self


class Adversary(_Part):
    """A load made to hurt.

    ``long_among_short``: one prompt in twenty is twenty times as long; ``identical``: all lengths
    alike; ``flood``: one tenant sends ten times what each of four others does; ``cold_under_hot``:
    one request in ten has a prompt of its own, the others share one.
    """

    kind: Literal["adversary"]
    name: Literal["long_among_short", "identical", "flood", "cold_under_hot"]
    rate: Positive
    prompt: Count
    output: Count


Source = Annotated[Trace | Drawn | Conversations | Adversary, Field(discriminator="kind")]


class Scale(_Part):
    """What lengths and times of arrival are multiplied by; stated with every figure."""

    prompt: Positive = 1.0
    output: Positive = 1.0
    time: Positive = 1.0


class Limits(_Part):
    """The longest prompt and output; what is longer is cut to it."""

    prompt: Count
    output: Count


class Workload(_Part):
    """What comes.

    Attributes:
        requests: in each round; rounds take consecutive pieces of a trace.
        together: all are there at the start, whatever the times of the source.
        gives_up_after_s: clients leave that have no first token by then.
    """

    source: Source
    requests: Count
    limits: Limits
    scale: Scale = Scale()
    together: bool = False
    gives_up_after_s: Positive | None = None


class EngineTarget(_Part):
    """A bare engine in this process, with the real model; ``math``, ``threads`` as ``serve``'s."""

    kind: Literal["engine"]
    model: Text = "smollm2"
    math: Literal["auto", "float32", "int8"] = "auto"
    threads: Count | None = None


class SimulatedTarget(_Part):
    """The real router, scheduler and block pool in simulated time, with modelled steps.

    A step takes ``base_s + per_token_s × tokens + per_position_s × positions read``, seconds, give
    or take ``noise``, a share.
    """

    kind: Literal["simulated"]
    replicas: Count = 1
    base_s: Positive = 0.030
    per_token_s: Positive = 0.0004
    per_position_s: Positive = 0.000002
    noise: Annotated[float, Field(ge=0, lt=1)] = 0.03


class ServiceTarget(_Part):
    """A whole service on this machine, one for each run, over HTTP or gRPC.

    ``config``: as ``serve --config`` reads it; an arm's settings go before it.
    """

    kind: Literal["service"]
    via: Literal["http", "grpc"] = "http"
    config: dict[str, object] = {}


Target = Annotated[EngineTarget | SimulatedTarget | ServiceTarget, Field(discriminator="kind")]


class Planted(StrEnum):
    """A fault that is put into an arm, to see whether a study finds it."""

    REFILL_LATE = "refill_late"
    """A seat that falls free is given away one step later than it could be."""
    SLOWER_STEP = "slower_step"
    """Each step takes 5% longer."""
    DOUBLE_WEIGHT = "double_weight"
    """The first tenant by name has twice its weight."""
    SLOW_GENERATOR = "slow_generator"
    """The generator cannot keep up: it sends late, by a little more with each request."""


class Arm(_Part):
    """One way to serve; what is not said is as in the plan.

    Attributes:
        seats, token_budget: of a replica.
        blocks: of its KV cache.
        reserve: a seat only with blocks for the greatest length, as static batching needs it.
        fair: tenants are served by weight (not of a bare engine, which has no tenants).
        guard: of a service or a simulated one.
        planted: see ``Planted``.
    """

    batching: Batching = Batching.CONTINUOUS
    seats: Count | None = None
    token_budget: Count | None = None
    blocks: Count | None = None
    reserve: bool = False
    fair: bool = True
    guard: Literal["off", "shadow", "act"] = "off"
    planted: Planted | None = None


class Threshold(_Part):
    """What a measure must reach.

    Attributes:
        measure: one of ``study_measures.MEASURES``.
        arm, over: the measure of ``arm``, or its ratio to that of ``over``.
        by: each subgroup has to reach it, the worst one decides; None for all requests.
        targets: which of the plan's deadlines, where the measure depends on them.
        every_round: no test; it holds in each round or not (for what must be equal).
    """

    name: Text
    workload: Name
    measure: Name
    arm: Name
    over: Name | None = None
    at_least: float | None = None
    at_most: float | None = None
    by: Literal["tenant", "prompt_class", "output_class"] | None = None
    targets: Annotated[int, Field(ge=0)] = 0
    every_round: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("say at_least or at_most")
        bound = self.at_least if self.at_least is not None else self.at_most
        if self.over is not None and bound is not None and bound <= 0:
            raise ValueError("a ratio's bound is above 0")
        return self


class Stop(_Part):
    """When a run says nothing, and when to go on no longer.

    Attributes:
        lag_share: a run is void where the p99 of the generator's lag is over this share of the
            shortest target for first tokens.
        failed_share: … or where a larger share of what was offered failed (refusals and clients
            that gave up are answers, not failures).
        others_share: … or where others had a larger share of the processors.
        wall_s: begin no further round after so long.
    """

    lag_share: Positive = 0.01
    failed_share: Positive = 0.05
    others_share: Positive | None = None
    wall_s: Positive | None = None


class Plan(_Part):
    """See the module.

    Attributes:
        decision: that the evidence serves.
        population: of loads and machines that it is to hold for.
        alternative: the simple way, which stays where the claim fails.
        overturned_by: findings that would overturn the claim.
        seats, token_budget, block_size, blocks: of each replica, unless an arm says otherwise;
            without ``blocks``, memory never binds.
        rounds: each runs every arm on every workload once; forwards, backwards, and so on.
        significance: of the sign-flip tests, one-sided; also what intervals leave out on each side.
        price_per_hour: of a replica.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,60}$")]
    decision: Text
    population: Text
    if_wrong: IfWrong
    alternative: Text
    overturned_by: Annotated[list[Text], Field(min_length=1)]
    target: Target
    workloads: Annotated[dict[Name, Workload], Field(min_length=1)]
    arms: Annotated[dict[Name, Arm], Field(min_length=1)]
    thresholds: Annotated[list[Threshold], Field(min_length=1)]
    targets: Annotated[list[TokenTargets], Field(min_length=1)]
    rounds: Count
    seats: Count = 16
    token_budget: Count = 128
    block_size: Count = 16
    blocks: Count | None = None
    seed: int = 1
    significance: Annotated[float, Field(gt=0, le=0.2)] = 0.05
    price_per_hour: Positive = 1.0
    stop: Stop = Stop()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for each in self.thresholds:
            for what, name, known in (
                ("workload", each.workload, self.workloads),
                ("arm", each.arm, self.arms),
                ("over", each.over, self.arms),
            ):
                if name is not None and name not in known:
                    raise ValueError(f"threshold {each.name!r}: no {what} {name!r} in the plan")
            if each.targets >= len(self.targets):
                raise ValueError(f"threshold {each.name!r}: there are {len(self.targets)} targets")
        if self.target.kind == "engine" and any(a.guard != "off" for a in self.arms.values()):
            raise ValueError("a bare engine has no guard")
        return self


def load_plan(file: Path) -> Plan:
    """Read a plan. Raises ConfigError, which names the file and the field."""
    return _checked(read_yaml(file), str(file))


def parse_plan(text: str, name: str) -> Plan:
    """The same of a text; ``name`` stands in errors."""
    return _checked(parse_yaml(text, name), name)


def _checked(fields: object, name: str) -> Plan:
    try:
        return Plan.model_validate(fields)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"]) or "the plan"
        raise ConfigError(f"{name}: {where}: {fault['msg']}") from None
