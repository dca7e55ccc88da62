"""Many streams of a model of 12M parameters: no token is lost or mixed; tests.benchmarks.serving measures them."""

from __future__ import annotations

import pytest

from lm.config.hardware import HardwareConfig
from lm.engine.fastest_dtype import load_for_decoding
from tests.benchmarks.serving import Alone, make_bodies, make_large_run, stream_all
from tests.lm.serving.conftest import served

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.slow


def test_concurrent_streams_equal_their_runs_alone(tmp_path):
    run = make_large_run(tmp_path / "run")
    loaded = load_for_decoding(run, HardwareConfig(threads=1))
    bodies = make_bodies(loaded.tokenizer, 32, 200)
    alone = Alone(loaded, bodies)
    with served(run) as server:
        texts = stream_all(server.port, server.process.pid, bodies).texts
    assert all(texts)
    assert alone.differing(texts, alone.batched().texts) == []
