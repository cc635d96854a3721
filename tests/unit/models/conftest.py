"""PyTorch as oracle, and parameters to start from."""

from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="session")
def torch() -> Any:
    module = pytest.importorskip("torch")
    module.set_num_threads(1)
    return module


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
