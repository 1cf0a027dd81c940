"""Grids of workloads: as near to the sum of all steps as the roll-up, and memory as it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hymell
from hymell.estimators import workload_grid
from hymell.estimators.base import Deployment
from hymell.estimators.calibrated import choose
from hymell.estimators.memory import memory_cost
from hymell.estimators.memory_grid import memory_of
from hymell.estimators.predict import deploy, price
from hymell.estimators.rollup import decode_totals
from hymell.estimators.workload_grid import price_grid
from hymell.hardware import find_gpu
from hymell.op_registry.engines import get_engine
from hymell.workload import Parallel, Workload

MODELS = ("meta-llama/Meta-Llama-3-8B", "openai/gpt-oss-20b", "Qwen/Qwen3-30B-A3B")
BATCHES, PROMPTS = [1, 3, 17, 200], [1, 2, 7, 100, 333, 1000, 1024, 2048, 4000, 16000]
OUTPUTS = [1, 2, 3, 10, 100, 129, 500, 1000, 2000, 4000]


def deployed(model: Any, gpu: str = "h100-sxm", engine: str = "vllm", **how: Any) -> Deployment:
    found = find_gpu(gpu)
    estimator = choose(found, engine, how.pop("calibration", "auto"))
    graph = hymell.trace(model)
    return deploy(graph, gpu=found, engine=get_engine(engine), estimator=estimator, **how)


@pytest.mark.parametrize("gpu", ["h100-sxm", "l40s"])
@pytest.mark.parametrize("name", MODELS)
def test_decode_is_within_a_thousandth_of_the_sum_of_its_steps(name: str, gpu: str) -> None:
    model = deployed(name, gpu)
    assert workload_grid._tabulates(
        model, *(np.array(v, float) for v in (BATCHES, PROMPTS, OUTPUTS))
    )
    found = price_grid(model, BATCHES, PROMPTS, OUTPUTS)
    steps = np.arange(1.0, max(PROMPTS) + max(OUTPUTS))
    first = np.array(PROMPTS)[:, None] - 1
    stop = first + np.array(OUTPUTS) - 1
    for b, batch in enumerate(BATCHES):
        each = decode_totals(
            model, np.full(steps.shape, float(batch)), steps, np.full(steps.shape, 2.0)
        ).time_s
        running = np.concatenate([[0], np.cumsum(each)])
        wanted = (running[stop] - running[first]) / np.maximum(np.array(OUTPUTS) - 1, 1)
        assert found["tpot_s"][b] == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        (MODELS[0], {}),
        (MODELS[1], {"engine": "trtllm"}),
        (MODELS[0], {"engine": "eager"}),
        (MODELS[2], {"calibration": "none"}),
        (MODELS[0], {"parallel": Parallel(tp=2)}),
        ("openai/whisper-large-v3", {}),
        ("google-bert/bert-base-uncased", {}),
    ],
)
def test_a_grid_is_what_its_workloads_cost_one_by_one(name: str, how: dict[str, Any]) -> None:
    model = deployed(name, **dict(how))
    grid = np.meshgrid(BATCHES, PROMPTS, OUTPUTS, indexing="ij")
    wanted = price(
        model.graph,
        *grid,
        gpu=model.gpu,
        engine=model.engine,
        estimator=choose(model.gpu, model.engine.name, how.get("calibration", "auto")),
        parallel=model.parallel,
    )
    for key, values in price_grid(model, BATCHES, PROMPTS, OUTPUTS).items():
        # The roll-up's own pieces are wider: up to 0.4% off for 2000 tokens after a short prompt.
        assert values == pytest.approx(wanted[key], rel=4e-3), key


def test_pieces_cover_the_range_once() -> None:
    model = deployed(MODELS[1])
    for first, stop in ((1.0, 2.0), (1.0, 6000.0), (127.0, 129.0), (5000.0, 70000.0)):
        starts, stops = workload_grid._pieces(model, np.array([1.0, 8.0]), first, stop)
        assert (starts[0], stops[-1]) == (first, stop)
        assert (starts[1:] == stops[:-1]).all()
        assert (stops > starts).all()
        assert (starts == np.floor(starts)).all()


@pytest.mark.parametrize(
    ("name", "how"),
    [
        (MODELS[0], {}),
        (MODELS[1], {"engine": "eager"}),
        (MODELS[1], {"engine": "vllm"}),
        (MODELS[0], {"parallel": Parallel(tp=2)}),
        (MODELS[2], {"parallel": Parallel(ep=2)}),
        ("openai/whisper-large-v3", {}),
        ("google-bert/bert-base-uncased", {}),
    ],
)
def test_memory_of_many_is_that_of_each(name: str, how: dict[str, Any]) -> None:
    model = deployed(name, "l40s", calibration="none", **how)
    random = np.random.default_rng(0)
    sizes = [np.exp(random.uniform(0, high, 30)).round() for high in (6, 9, 8)]
    sizes[0] *= model.parallel.batch_parts
    total, fits = memory_of(model, *sizes)
    for i, (batch, prompt, output) in enumerate(zip(*sizes, strict=True)):
        wanted = memory_cost(model, Workload(int(batch), int(prompt), int(output)))
        assert total[i] == pytest.approx(wanted.total_bytes, rel=1e-12)
        assert fits[i] == wanted.fits
