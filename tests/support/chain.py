"""The whole way of a request in one process: HTTP, router, gRPC, engine, with a fake model."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from chairlift.cluster.cluster_token import ClusterToken
from chairlift.cluster.config import RouterConfig
from chairlift.cluster.protocol import Controls, SamplingParams
from chairlift.cluster.tenants import ANONYMOUS, Tenants
from chairlift.deployments.http_server import HttpServer
from chairlift.router.passport import Passport
from chairlift.router.router import Router
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.engine import Engine
from chairlift.workers.fake_runner import FakeRunner
from chairlift.workers.grammars import Grammars
from chairlift.workers.intake import Intake
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.sequence import Runner, StepPlan
from chairlift.workers.server import WorkerServer
from support.asgi_client import until
from support.engines import alone, replica_info
from support.fake_tokenizer import FakeTokenizer
from support.grammars import following_runner
from support.http_app import http_app

CONTEXT_LENGTH = 256


@dataclass(frozen=True)
class Chain:
    url: str
    router: Router
    engine: Engine
    intake: Intake
    endpoint: str = ""

    async def until_idle(self) -> None:
        """Nothing may stay behind: no open request, no sequence, no block of the KV cache."""
        await until(lambda: self.router.metrics.open == 0 and self.intake.num_open == 0)
        await until(lambda: self.engine.load.running == self.engine.load.blocks_used == 0)
        self.router.check_integrity()


@asynccontextmanager
async def running_chain(
    *,
    delay: Callable[[StepPlan], None] | None = None,
    settings: RouterConfig | None = None,
    token: ClusterToken | None = None,
    tenants: Tenants | None = None,
    grammars: Grammars | None = None,
    **info: int,
) -> AsyncIterator[Chain]:
    """A chain with one replica; ``delay`` is called before each step, in the engine's thread.

    With ``grammars`` the model is a simulated one that follows them.
    """
    tokenizer = FakeTokenizer()
    length = CONTEXT_LENGTH if grammars is None else 4 * CONTEXT_LENGTH
    facts = replica_info(vocab_size=tokenizer.vocab_size, max_sequence_tokens=length, **info)
    intake = Intake(facts, grammars=grammars)
    worker = WorkerServer(facts, intake)
    runner: Runner = FakeRunner(facts.vocab_size, block_size=facts.block_size, delay=delay)
    if grammars is not None:
        runner = following_runner(grammars, facts.vocab_size)
    engine = Engine(
        Scheduler(
            BlockPool(facts.blocks_total, facts.block_size),
            Controls(max_sequences=facts.max_sequences),
            () if grammars is None else grammars.ends,
        ),
        runner,
        intake,
        worker.publish,
    )
    router = Router(tokenizer, settings or RouterConfig())
    router.passport = Passport(token)
    app = http_app(router, context_length=length, tenants=tenants or Tenants({}, ANONYMOUS))
    http = HttpServer(app, "127.0.0.1", 0)
    thread = threading.Thread(target=engine.run)
    thread.start()
    try:
        endpoint = await worker.start(token=token)
        router.update_members({facts.replica_id: endpoint})
        port = await http.start()
        await until(lambda: router.max_sequence_tokens is not None)
        yield Chain(f"http://127.0.0.1:{port}", router, engine, intake, endpoint)
    finally:
        await http.stop(1.0)
        await router.close()
        engine.stop()
        await asyncio.to_thread(thread.join)
        await worker.stop()


def expected_text(prompt: list[int], max_tokens: int, *, seed: int, choice: int = 0) -> str:
    """What the fake model says."""
    sampling = SamplingParams(max_tokens=max_tokens, seed=seed)
    tokenizer = FakeTokenizer()
    tokens, _ = alone(prompt, sampling, choice, vocab_size=tokenizer.vocab_size)
    return tokenizer.decode(tokens)
