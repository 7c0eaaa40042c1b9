"""One compute thread for tests that run a model in their own process.

torch's threads wait for each other by spinning. Where tests share their cores with other work, two
of them took twenty times as long as one.
"""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_compute_thread() -> None:
    torch.set_num_threads(1)
