"""What a model family is to the rest: how it differs from Llama, and where its files keep what.

Owns the types in which a family says so, and what several families read alike. Knows no family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chairlift.cluster.model_fields import Fields
from chairlift.cluster.model_spec import ModelSpec

__all__ = [
    "MOST_EXPERTS",
    "Family",
    "InGguf",
    "StoredTensor",
    "as_named",
    "local_layers",
    "with_windows",
]

MOST_EXPERTS = 1024
"""Of a layer: no known model comes near; damage easily does."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a safetensors file keeps a tensor.

    Attributes:
        name: in the file.
        first_row, rows: of that tensor, where it holds several; all rows if ``rows`` is None.
    """

    name: str
    first_row: int = 0
    rows: int | None = None


def as_named(spec: ModelSpec, name: str) -> StoredTensor:
    """The file uses the canonical names."""
    return StoredTensor(name)


@dataclass(frozen=True, slots=True)
class InGguf:
    """A family in GGUF files, where its architecture has the name of the family.

    Attributes:
        describe: as ``Family.describe``, by the architecture's keys of the metadata.
        settings: as ``Family.settings``.
        pairs_adjacent: the two rows of a rotated pair stand side by side; if not, half a head
            apart, as in Hugging Face's files.
    """

    describe: Callable[[ModelSpec, Fields], ModelSpec] = lambda base, fields: base
    settings: frozenset[str] = frozenset()
    pairs_adjacent: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """Models that are computed alike.

    Attributes:
        name: ``ModelSpec.architecture``.
        architectures: by which ``config.json`` names them.
        describe: from what is read as Llama's to what it is, by the other keys of ``config.json``.
        settings: the keys that it reads beyond Llama's; others must say nothing that matters.
        defaults: of keys that ``config.json`` may leave out, where they are not Llama's.
        stored: where a canonical tensor is in its files.
        section: of ``config.json`` that describes the text model; None for all of it.
        gguf: how GGUF files describe it; None if those are not read.
    """

    name: str
    architectures: tuple[str, ...]
    describe: Callable[[ModelSpec, Fields], ModelSpec]
    settings: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    stored: Callable[[ModelSpec, str], StoredTensor] = as_named
    section: str | None = None
    gguf: InGguf | None = None


def with_windows(
    spec: ModelSpec, config: Fields, local: Iterable[int], key: str = "sliding_window"
) -> ModelSpec:
    """Its ``local`` layers see as many positions as ``key`` says; all of them, if that is null.

    A window that holds the whole context is none.
    """
    layers = frozenset(local)
    if not layers or config.get(key) is None:
        return spec
    window = config.size(key)
    if window >= spec.context_length:
        return spec
    return replace(spec, window=window, local_layers=layers)


def local_layers(
    config: Fields, num_layers: int, usual: Callable[[int], bool] = lambda layer: False
) -> frozenset[int]:
    """Those with a window: by ``layer_types``, or by ``usual`` where that is not said."""
    kinds = config.items("layer_types")
    if not kinds:
        return frozenset(layer for layer in range(num_layers) if usual(layer))
    if len(kinds) != num_layers:
        raise config.error(f"layer_types has {len(kinds)} entries for {num_layers} layers")
    if not all(kind in ("full_attention", "sliding_attention") for kind in kinds):
        raise config.unsupported("layer_types")
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")
