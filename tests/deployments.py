"""Hand-made graphs and lowerings for the tests of the estimators: no tracer, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hymell.dims import B, L, S
from hymell.estimators.base import Deployment, Estimator
from hymell.estimators.level1.roofline import Roofline
from hymell.graph import ModelFacts, OpGraph, Phase, Range, Region, StateSpec, TensorSpec
from hymell.hardware import Gpu, find_gpu
from hymell.op_registry.engines.base import Engine, Overheads
from hymell.op_registry.kernels import Kernel, LiveTensor, Lowered
from hymell.op_registry.primitives import Attention, Gemm, Memory, Primitive

H100 = find_gpu("h100-sxm")

GRAPHS = Overheads(host_s_per_launch=5e-6, gap_s=1e-6, step_s=3e-4, cuda_graphs_in_decode=True)
HOST_BOUND = replace(GRAPHS, host_s_per_launch=6e-6, gap_s=0.0, cuda_graphs_in_decode=False)

SERVING = Engine("serving", "A serving engine", (), GRAPHS, memory_fraction=0.9)
PLAIN = Engine("plain", "Launches every op", (), HOST_BOUND, memory_fraction=1.0)

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS = 512, 8, 2, 64, 4096, 4


def facts(**changes: object) -> ModelFacts:
    """Facts of the toy model: 4 layers of one square GEMM, a head, an embedding."""
    parameters = LAYERS * HIDDEN * HIDDEN + 2 * VOCAB * HIDDEN
    base = ModelFacts(
        name="toy",
        model_type="toy",
        architecture="Toy",
        dtype="bfloat16",
        parameters=parameters,
        active_parameters=parameters,
        weight_bytes=2 * parameters,
        weight_bytes_by_dtype={"bfloat16": 2 * parameters},
        max_context=4096,
        vocab_size=VOCAB,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def kernel(
    primitive: Primitive, name: str = "kernel", block: str = "ffn", **more: object
) -> Kernel:
    """A kernel of one launch."""
    return Kernel(name=name, primitive=primitive, block=block, path=name, **more)  # type: ignore[arg-type]


def attention(q_len: object, kv_len: object, window: int | None = None) -> Attention:
    """Grouped-query attention of the toy model."""
    return Attention(B, q_len, kv_len, HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM, window=window)


def step(q_len: object, kv_len: object, window: int | None = None) -> tuple[Kernel, ...]:
    """The kernels of a step over ``q_len`` new tokens."""
    rows = B * q_len  # type: ignore[operator]
    residual = Memory("residual_add", rows * HIDDEN, rows * HIDDEN * 4, rows * HIDDEN * 2)
    return (
        kernel(Gemm(rows, HIDDEN, HIDDEN), "proj", "attention", repeat=LAYERS),
        kernel(attention(q_len, kv_len, window), "attention", "attention", repeat=LAYERS),
        kernel(residual, "residual", "attention", repeat=LAYERS),
        kernel(Gemm(B, VOCAB, HIDDEN), "head", "head"),
    )


def cache(window: int | None = None, length: object = L) -> tuple[StateSpec, ...]:
    """Keys and values of every layer at ``length`` tokens."""
    spec = TensorSpec((B, KV_HEADS, length, HEAD_DIM), "bfloat16")  # type: ignore[arg-type]
    return tuple(StateSpec("kv", n, "layers", spec, LAYERS, window) for n in ("k", "v"))


def region(phase: Phase, state: tuple[StateSpec, ...] = (), **ranges: Range) -> Region:
    """A region without ops; its kernels come from the lowering."""
    ranges = {"S": Range(1, 1) if phase == "decode" else Range(), **ranges}
    return Region(phase, (), state=state, **ranges)


def deployment(
    regions: Sequence[tuple[Region, Sequence[Kernel]]],
    engine: Engine = SERVING,
    gpu: Gpu = H100,
    estimator: Estimator | None = None,
    live: Sequence[LiveTensor] = (),
    **changed_facts: object,
) -> Deployment:
    """Regions with their kernels, on a GPU under an engine."""
    graph = OpGraph(facts(**changed_facts), tuple(r for r, _ in regions))
    lowered = tuple(Lowered(tuple(kernels), tuple(live)) for _, kernels in regions)
    return Deployment(graph, gpu, engine, estimator or Roofline(), lowered.__getitem__)


def toy(window: int | None = None, **more: object) -> Deployment:
    """Prefill, and decode in one region."""
    return deployment(
        [
            (region("prefill"), step(S, S, window)),
            (region("decode", cache(window)), step(1, L + 1, window)),
        ],
        **more,  # type: ignore[arg-type]
    )
