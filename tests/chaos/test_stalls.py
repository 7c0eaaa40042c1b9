"""A machine that stands still for seconds, again and again, costs nobody an answer."""

import concurrent.futures
import os
import signal
import time

import openai
import pytest

from support.service import running_service

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

MODEL = "smollm2-135m-instruct"
CONFIG = {
    "engine": {"simulated_step_ms": 50.0, "kv_memory": "64MiB", "max_sequences": 8},
    "guard": {"mode": "off"},
}
STILL_S, AWAKE_S = 3.5, 0.7


def test_all_workers_stand_still_twice_and_every_answer_comes() -> None:
    with running_service("--replicas", "3", config=CONFIG) as service:

        def ask(number: int) -> int:
            with openai.OpenAI(base_url=f"{service.url}/v1", api_key="-", max_retries=0) as client:
                answer = client.completions.create(
                    model=MODEL,
                    prompt=[number + 1] * 20,
                    max_tokens=100,
                    extra_body={"ignore_eos": True},
                )
            assert answer.usage is not None
            return answer.usage.completion_tokens

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = [pool.submit(ask, number) for number in range(16)]
            time.sleep(1.0)
            for _ in range(2):
                workers = service.worker_pids()
                for pid in workers:
                    os.kill(pid, signal.SIGSTOP)
                time.sleep(STILL_S)
                for pid in workers:
                    os.kill(pid, signal.SIGCONT)
                time.sleep(AWAKE_S)
            assert [each.result(60.0) for each in answers] == [100] * 16
