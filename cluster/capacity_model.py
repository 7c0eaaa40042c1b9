"""What capacity planning has to know of a model and of a load: numbers alone.

Owns how a ``ModelSpec``, or a few given numbers, become bytes and operations per token, and how a
mean and a 95th percentile become a distribution of lengths. Reads no files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from chairlift.cluster.errors import ConfigError
from chairlift.cluster.model_files import weight_shapes
from chairlift.cluster.model_spec import ModelSpec

__all__ = ["ELEMENT_BYTES", "Lengths", "Load", "ModelFigures", "figures_of", "given_figures"]

ELEMENT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8": 1.0, "int8": 34 / 32}
"""A weight; of int8 with the scale that 32 of them share."""
_ABOVE_MEDIAN = 1.645
"""Standard deviations from the median to the 95th percentile of a normal distribution."""
_EMBEDDING, _HEAD, _EXPERTS = "model.embed_tokens.weight", "lm_head.weight", ".mlp.experts."


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """A model as memory and multipliers see it.

    Attributes:
        dtype: of the weights, as ``ELEMENT_BYTES`` names it.
        weight_bytes: of one copy.
        looked_up: weights of which a token needs a row: an embedding that is no head as well.
        head: weights that are multiplied for tokens that are sampled, and not for all of a prompt.
        experts: weights of all experts; ``expert_share`` is the part that one token takes.
        kv_element: bytes of a number in the KV cache.
    """

    name: str
    dtype: str
    weight_bytes: float
    parameters: float
    looked_up: float
    head: float
    experts: float
    expert_share: float
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    kv_element: float

    def kv_bytes(self, degree: int = 1) -> float:
        """Of one position in all ranks; with more ranks than KV heads some are there twice."""
        heads = max(self.kv_heads, degree)
        return 2 * self.layers * heads * self.head_size * self.kv_element

    @property
    def hidden_bytes(self) -> float:
        """Of what passes between two layers, for a token of a model as wide as its heads are."""
        return self.heads * self.head_size * max(self.kv_element, 2.0)

    def bytes_read(self, tokens: float) -> float:
        """Weights that a step of so many tokens reads; of experts those that somebody takes."""
        taken = 1 - math.pow(1 - self.expert_share, tokens)
        read = self.parameters - self.looked_up - (1 - taken) * self.experts
        return self.weight_bytes / self.parameters * read

    def flops(self, decoding: float, prompt: float) -> float:
        """Of linear layers, two for each weight and token."""
        body = self.parameters - self.looked_up - self.head
        body -= (1 - self.expert_share) * self.experts
        return 2 * (body * (decoding + prompt) + self.head * decoding)

    def attention_flops(self, pairs: float) -> float:
        """Of so many queries over keys and values: two products of two operations."""
        return 4 * self.layers * self.heads * self.head_size * pairs


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens: a mean and a 95th percentile, taken for those of a log-normal distribution."""

    mean: float
    p95: float

    @property
    def sigma(self) -> float:
        """Of its logarithm; a tail that no such distribution has gets the longest one."""
        reach = _ABOVE_MEDIAN**2 - 2 * math.log(max(1.0, self.p95 / self.mean))
        return _ABOVE_MEDIAN - math.sqrt(max(0.0, reach))

    @property
    def squared_variation(self) -> float:
        """The squared coefficient of variation."""
        return math.exp(self.sigma**2) - 1

    @property
    def of_running(self) -> float:
        """The mean of those that are met at a moment: long ones are met for longer."""
        return self.mean * (1 + self.squared_variation)


@dataclass(frozen=True, slots=True)
class Load:
    """What comes.

    Attributes:
        rate: requests a second, in the busiest time that is planned for.
        shared: part of each prompt that all have in common, and that is in the prefix cache.
        burstiness: coefficient of variation of the times between arrivals; 1 is Poisson.
    """

    rate: float
    prompt: Lengths
    output: Lengths
    shared: float = 0.0
    burstiness: float = 1.0

    @property
    def context(self) -> float:
        """Tokens that a decoding sequence looks back on, in the mean."""
        return self.prompt.mean + self.output.of_running / 2

    @property
    def shared_tokens(self) -> float:
        return self.shared * self.prompt.mean

    @property
    def held(self) -> float:
        """Tokens of its own that a running sequence has in the KV cache, in the mean."""
        return self.context - self.shared_tokens

    @property
    def longest(self) -> float:
        """Of one request in twenty, at its end."""
        return self.prompt.p95 + self.output.p95

    @property
    def prompts_per_output(self) -> float:
        """Prompt tokens to compute for each output token."""
        return (1 - self.shared) * self.prompt.mean / self.output.mean

    @property
    def long_new_prompt(self) -> float:
        """Tokens to compute of one prompt in twenty."""
        return max(1.0, self.prompt.p95 - self.shared_tokens)

    @property
    def variability(self) -> float:
        """The mean of the squared coefficients of variation of arrivals and service."""
        return (self.burstiness**2 + self.output.squared_variation) / 2


def figures_of(
    spec: ModelSpec, dtype: str, weight_bytes: float | None, kv_element: float
) -> ModelFigures:
    """Of a model whose description is there.

    Args:
        spec: the model.
        dtype: in which its weights are computed.
        weight_bytes: of one copy; None for as many as ``dtype`` makes.
        kv_element: bytes of a number in the KV cache.
    """
    sizes = {name: math.prod(shape) for name, shape in weight_shapes(spec).items()}
    parameters = sum(sizes.values())
    experts = sum(size for name, size in sizes.items() if _EXPERTS in name)
    embedding = sizes[_EMBEDDING]
    share = 1.0 if spec.experts is None else spec.experts.per_token / spec.experts.count
    if weight_bytes is None:
        weight_bytes = parameters * ELEMENT_BYTES[dtype]
    return ModelFigures(
        name=spec.name,
        dtype=dtype,
        weight_bytes=weight_bytes,
        parameters=parameters,
        looked_up=0 if spec.tied_embeddings else embedding,
        head=sizes.get(_HEAD, embedding),
        experts=experts,
        expert_share=share,
        layers=spec.num_layers,
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        head_size=spec.head_dim,
        kv_element=kv_element,
    )


def given_figures(
    parameters: float, dtype: str, shape: tuple[int, int, int, int], kv_element: float
) -> ModelFigures:
    """Of a model of which a few numbers are known: dense, and its head counted for every token.

    Args:
        parameters: all of them.
        dtype: of the weights.
        shape: layers, heads, KV heads and the size of a head.
        kv_element: bytes of a number in the KV cache.

    Raises:
        ConfigError: heads cannot share the KV heads.
    """
    layers, heads, kv_heads, head_size = shape
    if heads % kv_heads:
        raise ConfigError(f"--heads: {heads} attention heads cannot share {kv_heads} KV heads")
    return ModelFigures(
        name=f"{parameters / 1e9:.3g}B parameters",
        dtype=dtype,
        weight_bytes=parameters * ELEMENT_BYTES[dtype],
        parameters=parameters,
        looked_up=0,
        head=0,
        experts=0,
        expert_share=1.0,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        kv_element=kv_element,
    )
