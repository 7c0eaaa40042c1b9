"""How good the model of a study is, as it computes there: perplexity on a fixed text.

Owns which targets compute, and with what; ``quality`` does the computing. Arms cannot differ in it
as long as their tokens are the same, which every study with a real model counts by itself.
"""

from __future__ import annotations

from chairlift.cluster.config import load_config
from chairlift.cluster.machine import read_cores
from chairlift.evaluation.study_plan import EngineTarget, ServiceTarget, Target

__all__ = ["quality_of"]


def quality_of(target: Target) -> dict[str, float]:
    """``perplexity`` of the text that ships; empty where no model computes on a CPU. Some seconds.

    Raises:
        StartupError: the model or the kernels cannot be had.
    """
    threads = max(1, int(read_cores().usable))
    match target:
        case EngineTarget():
            model, math = target.model, target.math
            threads = target.threads or threads
        case ServiceTarget():
            config = load_config(overrides=target.config)
            engine = config.engine
            if engine.simulated_step_ms is not None or engine.device == "cuda":
                return {}
            model, math = config.model.path, engine.cpu_math
        case _:
            return {}
    # Torch is imported here, and only where something computes.
    from chairlift.evaluation.quality import model_perplexity
    from chairlift.workers.model_loading import Compute

    return {"perplexity": model_perplexity(model, Compute(math=math, threads=threads))}
