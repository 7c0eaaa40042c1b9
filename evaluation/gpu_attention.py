"""The attention of one layer by itself beside its roofline.

Owns which figure a step is compared with: K and V must be read once, and each query multiplied
with the keys and values that it sees; whichever takes longer is the roofline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from chairlift.cluster.errors import StartupError
from chairlift.evaluation.gpu_clock import Clock, Deadline
from chairlift.evaluation.gpu_findings import Section
from chairlift.evaluation.gpu_machine import Ceilings
from chairlift.evaluation.gpu_models import RandomModel, Spans

__all__ = ["measure_attention"]


def measure_attention(
    model: RandomModel,
    kernels: Mapping[str, Callable[[Spans], Callable[[], None]]],
    steps: Sequence[Spans],
    measure: tuple[Clock, Ceilings],
    deadline: Deadline,
) -> Section:
    """Each step with each kind of kernels.

    Args:
        model: whose heads they are.
        kernels: name → what prepares a step.
        steps: of each sequence, tokens in the cache and how many of them ask.
        measure: the clock and the ceilings.
        deadline: what would start behind it is left out.
    """
    section = Section(f"attention {model.name}")
    clock, ceilings = measure
    for name, prepare in kernels.items():
        for spans in steps:
            context, count = spans[0]
            where = f"{name}: {len(spans)} × {count} rows at a context of {context}"
            if deadline.left <= 0:
                section.notes.append(f"{where}: left out, the time was up")
                continue
            try:
                attend = prepare(spans)
            except StartupError as error:
                section.notes.append(f"{name}: left out, {error}")
                break
            times = clock.time(attend, deadline)
            read, operations = _needs(model, spans)
            least = max(read / ceilings.copy, operations / ceilings.products)
            section.add(
                {"kernels": name, "sequences": len(spans), "rows": count, "context": context},
                times.milliseconds,
                {"GB/s": read / times.median / 1e9, "TFLOP/s": operations / times.median / 1e12},
                {"share of roofline": least / times.median},
            )
    return section


def _needs(model: RandomModel, spans: Spans) -> tuple[int, int]:
    """Bytes of K and V, and operations, of a layer that sees everything."""
    spec = model.spec
    read = sum(context for context, _ in spans) * spec.kv_bytes_per_token(model.dtype.itemsize)
    seen = sum(count * (context - count) + count * (count + 1) // 2 for context, count in spans)
    return read // spec.num_layers, 4 * seen * spec.num_heads * spec.head_dim
