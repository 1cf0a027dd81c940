"""Several GPUs: what each one runs, which messages they exchange, what all of them cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import hymell
from hymell.cli import main
from hymell.errors import HymellError
from hymell.estimators.base import LAUNCH, Deployment
from hymell.estimators.calibrated import Calibrated
from hymell.estimators.calibration import Entry, assemble
from hymell.estimators.level1 import catalog
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.roofline import Roofline
from hymell.estimators.links import ALPHA_S, CUSTOM_BYTES, Linked
from hymell.estimators.memory import cache_bytes, memory_cost, weights_bytes
from hymell.estimators.predict import deploy, predict_graph, price
from hymell.graph import OpGraph
from hymell.hardware import find_gpu
from hymell.op_registry.engines import ENGINES, get_engine
from hymell.op_registry.kernels import Kernel
from hymell.op_registry.lower import lower
from hymell.op_registry.parallel import rank_of
from hymell.op_registry.primitives import (
    Attention,
    Collective,
    Experts,
    Gemm,
    Scan,
    at,
)
from hymell.workload import SINGLE, Parallel, Precision, Workload

H100 = find_gpu("h100-sxm")
VLLM = get_engine("vllm")
ROUTERS = {"gemm gate"}

#: Kernels that every GPU runs in full, besides norms and what else has no FLOPs.
WHOLE: Mapping[str, set[str]] = {
    "llama-3-8b": set(),
    "llama-3-70b": set(),
    "qwen3-30b-a3b": ROUTERS,
    "deepseek-v3": {*ROUTERS, "gemm q_a_proj+kv_a_proj_with_mqa"},
    "qwen3-next-80b-a3b": {*ROUTERS, "gemm shared_expert_gate"},
}


@cache
def graph(name: str) -> OpGraph:
    return hymell.trace(name)


def kernels(
    name: str, parallel: Parallel, phase: str = "decode", engine: str = "vllm"
) -> tuple[Kernel, ...]:
    """The kernels of the last region of a phase."""
    found = graph(name)
    region = found.of_phase(phase)[-1]  # type: ignore[arg-type]
    return lower(region, get_engine(engine), found.facts, parallel=parallel).kernels


def computing(name: str, parallel: Parallel, phase: str, engine: str) -> list[Kernel]:
    found = kernels(name, parallel, phase, engine)
    return [kernel for kernel in found if not isinstance(kernel.primitive, Collective)]


def only(name: str, parallel: Parallel, kind: type, phase: str = "decode") -> list[Kernel]:
    return [k for k in kernels(name, parallel, phase) if isinstance(k.primitive, kind)]


def deployed(name: str, parallel: Parallel = SINGLE) -> Deployment:
    return deploy(graph(name), gpu=H100, engine=VLLM, parallel=parallel)


def report(name: str, batch: int = 8, **options: int) -> hymell.CostReport:
    return predict_graph(
        graph(name),
        Workload(batch, 512, 32),
        gpu=H100,
        engine=VLLM,
        parallel=Parallel(**options),
        price_per_hour=2.0,
        gco2_per_kwh=300.0,
    )


# What each GPU runs.


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", WHOLE)
def test_the_gpus_together_do_the_work_of_one(name: str, phase: str, tp: int) -> None:
    point = {"B": 4, "S": 1 if phase == "decode" else 64, "L": 100 if phase == "decode" else 0}
    alone = computing(name, SINGLE, phase, "vllm")
    shared = computing(name, Parallel(tp=tp), phase, "vllm")
    assert [k.name for k in shared] == [k.name for k in alone]
    for one, each in zip(alone, shared, strict=True):
        before, after = at(one.primitive, **point), at(each.primitive, **point)
        times = 1 if one.name in WHOLE[name] else tp
        if isinstance(before, Gemm) and "k_proj" in one.name and tp > _kv_heads(alone):
            continue  # heads of keys and values held by several GPUs: a test of their own
        assert each.repeat == one.repeat
        assert times * after.flops == pytest.approx(before.flops, rel=1e-12), one.name
        if isinstance(before, Gemm | Experts):
            weights = times * after.weight_bytes
            assert weights == pytest.approx(before.weight_bytes, rel=1e-12), one.name


def _kv_heads(found: list[Kernel]) -> int:
    return min(k.primitive.kv_heads for k in found if isinstance(k.primitive, Attention))


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_shares_the_layers(engine: str) -> None:
    alone = computing("llama-3-8b", SINGLE, "decode", engine)
    shared = computing("llama-3-8b", Parallel(tp=8), "decode", engine)
    flops = [sum(k.repeat * at(k.primitive).flops for k in found) for found in (alone, shared)]
    assert flops[0] == 8 * flops[1]


def test_one_gpu_runs_the_region_as_it_was_traced() -> None:
    found = graph("llama-3-8b")
    region = found.regions[0]
    rank = rank_of(region, found.facts, SINGLE)
    assert rank.region is region
    assert rank.messages == ()
    plain = predict_graph(found, Workload(8, 512, 32), gpu=H100, engine=VLLM)
    priced = report("llama-3-8b")
    assert priced.kernels == plain.kernels
    assert (priced.prefill, priced.decode, priced.memory) == (
        plain.prefill,
        plain.decode,
        plain.memory,
    )
    assert "parallel" not in priced.assumptions


@pytest.mark.parametrize(
    ("name", "tp", "columns"),
    [
        ("llama-3-8b", 8, 4096 // 8 + 2 * 128),
        ("llama-3-8b", 16, 4096 // 16 + 2 * 128),
        ("qwen3-30b-a3b", 8, 32 * 128 // 8 + 2 * 128),
    ],
)
def test_fewer_heads_of_keys_than_gpus_are_held_by_several(
    name: str, tp: int, columns: int
) -> None:
    qkv = next(k for k in only(name, Parallel(tp=tp), Gemm) if "k_proj" in k.name)
    assert qkv.primitive.n == columns  # type: ignore[union-attr]
    (attention,) = (k.primitive for k in only(name, Parallel(tp=tp), Attention))
    assert isinstance(attention, Attention)
    assert (attention.heads, attention.kv_heads) == (32 // tp, 1)


def test_latent_attention_keeps_its_latent_and_shares_its_heads() -> None:
    for kernel in only("deepseek-v3", Parallel(tp=8), Attention):
        latent = kernel.primitive
        assert isinstance(latent, Attention)
        assert (latent.heads, latent.kv_heads, latent.qk_dim) == (16, 1, 576)
    absorbed = [
        k.primitive for k in only("deepseek-v3", Parallel(tp=8), Gemm) if "absorb" in k.name
    ]
    assert {gemm.batch for gemm in absorbed if isinstance(gemm, Gemm)} == {16}


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_state_space_mixer_shares_heads_and_repeats_its_one_group(tp: int, phase: str) -> None:
    parallel = Parallel(tp=tp)
    (projection,) = {
        k.primitive.n  # type: ignore[union-attr]
        for k in only("mamba2-2.7b", parallel, Gemm, phase)
        if "in_proj" in k.name
    }
    # Gate and input of 80 heads of 64, one group's B and C of 128, a step size per head.
    assert projection == 2 * 5120 // tp + 2 * 128 + 80 // tp
    for kernel in only("mamba2-2.7b", parallel, Scan, phase):
        scan = kernel.primitive
        assert isinstance(scan, Scan)
        assert scan.heads == 80 // tp


def test_experts_are_split_by_width_or_spread_whole() -> None:
    wide = only("qwen3-30b-a3b", Parallel(tp=4), Experts)[0].primitive
    spread = only("qwen3-30b-a3b", Parallel(tp=4, ep=4), Experts)[0].primitive
    both = only("qwen3-30b-a3b", Parallel(tp=4, ep=2), Experts)[0].primitive
    assert isinstance(wide, Experts)
    assert isinstance(spread, Experts)
    assert isinstance(both, Experts)
    assert [(e.intermediate, e.ranks) for e in (wide, spread, both)] == [
        (192, 1),
        (768, 4),
        (384, 2),
    ]
    alone = only("qwen3-30b-a3b", SINGLE, Experts)[0].primitive
    for primitive in (wide, spread, both):
        assert 4 * at(primitive, B=16).flops == at(alone, B=16).flops
        assert 4 * at(primitive, B=16).weight_bytes == pytest.approx(at(alone, B=16).weight_bytes)


def test_spread_experts_leave_each_gpu_a_part_of_the_batch() -> None:
    alone = computing("qwen3-30b-a3b", SINGLE, "decode", "vllm")
    spread = computing("qwen3-30b-a3b", Parallel(ep=8), "decode", "vllm")
    for one, each in zip(alone, spread, strict=True):
        before, after = at(one.primitive, B=16, L=100), at(each.primitive, B=16, L=100)
        assert 8 * after.flops == pytest.approx(before.flops), one.name
        if isinstance(before, Gemm):
            assert after.weight_bytes == before.weight_bytes, one.name


def test_quantised_weights_are_shared_too() -> None:
    found = graph("llama-3-8b")
    region = found.of_phase("decode")[0]
    fp8 = Precision(weights="float8_e4m3", kv="float8_e4m3")
    alone, shared = (
        lower(region, VLLM, found.facts, fp8, parallel=p).kernels for p in (SINGLE, Parallel(tp=2))
    )
    down = [next(k for k in found if k.name == "gemm down_proj") for found in (alone, shared)]
    assert at(down[0].primitive).weight_bytes == 2 * at(down[1].primitive).weight_bytes
    assert down[1].primitive.b_dtype == "float8_e4m3"  # type: ignore[union-attr]


# Messages.


def messages(name: str, parallel: Parallel) -> list[tuple[str, int, object, int]]:
    return [
        (k.primitive.op, k.repeat, at(k.primitive, B=8, L=100).message_bytes, k.primitive.n_gpus)
        for k in kernels(name, parallel)
        if isinstance(k.primitive, Collective)
    ]


def test_a_layer_adds_up_twice_and_logits_are_collected() -> None:
    row = 8 * 4096 * 2
    assert messages("llama-3-8b", Parallel(tp=4)) == [
        ("all_reduce", 1, row, 4),
        ("all_reduce", 32, row, 4),
        ("all_reduce", 32, row, 4),
        ("all_gather", 1, 8 * 128256 * 2, 4),
    ]


def test_messages_stand_behind_the_kernels_whose_results_they_carry() -> None:
    names = [k.name for k in kernels("llama-3-8b", Parallel(tp=4))]
    for before in ("embedding", "gemm o_proj", "gemm down_proj"):
        assert names[names.index(before) + 1] == "all_reduce"
    assert names[-2:] == ["gemm lm_head", "all_gather"]


def test_routed_and_shared_experts_are_added_up_together() -> None:
    row = 8 * 7168 * 2
    found = messages("deepseek-v3", Parallel(tp=8))
    assert found == [
        ("all_reduce", 1, row, 8),
        *[("all_reduce", 3, row, 8)] * 2,
        *[("all_reduce", 58, row, 8)] * 2,
        ("all_gather", 1, 8 * 129280 * 2, 8),
    ]


def test_a_norm_over_split_rows_exchanges_one_number_per_row() -> None:
    found = messages("olmo-2-7b", Parallel(tp=2))
    assert found.count(("all_reduce", 32, 8 * 4, 2)) == 2
    # Norms of single heads do not.
    assert all(size > 8 * 4 for _, _, size, _ in messages("qwen3-30b-a3b", Parallel(tp=2)))  # type: ignore[operator]


def test_tokens_travel_to_their_experts_and_back() -> None:
    # One token of each GPU, to the GPUs that hold at least one of its 8 experts of 128.
    reached = 8 * (1 - Fraction(7, 8) ** 8)
    assert (
        messages("qwen3-30b-a3b", Parallel(ep=8))
        == [("all_to_all", 48, float(2048 * 2 * reached), 8)] * 2
    )
    names = [k.name for k in kernels("qwen3-30b-a3b", Parallel(ep=8))]
    expert = names.index("fused_moe")
    assert names[expert - 1 : expert + 2 : 2] == ["all_to_all", "all_to_all"]


def test_experts_spread_within_tensor_parallelism_need_no_journey() -> None:
    assert messages("qwen3-30b-a3b", Parallel(tp=8, ep=8)) == messages(
        "qwen3-30b-a3b", Parallel(tp=8)
    )


def test_stages_hand_the_residual_stream_on() -> None:
    assert messages("llama-3-8b", Parallel(pp=4)) == [("send_recv", 3, 8 * 4096 * 2, 2)]


# What cannot be split.


@pytest.mark.parametrize(
    ("name", "parallel", "words"),
    [
        ("falcon-7b", Parallel(tp=2), r"hymell.attention \(.*its 71 attention heads"),
        ("llama-3-8b", Parallel(tp=3), "its 32 attention heads do not divide by 3"),
        ("llama-3-70b", Parallel(tp=128), "its 64 attention heads do not divide by 128"),
        ("mamba2-2.7b", Parallel(tp=3), r"hymell.scan.*its 80 heads do not divide by 3"),
        ("qwen3-30b-a3b", Parallel(ep=7), "its 128 experts .* do not divide by 7"),
        ("llama-3-8b", Parallel(ep=2), "has no routed experts .*leave out --ep"),
        ("llama-3-8b", Parallel(pp=33), "has 32 layers, too few for 33 stages"),
        ("t5-base", Parallel(pp=2), "an encoder and a decoder, not one chain"),
    ],
)
def test_what_cannot_be_split_is_named(name: str, parallel: Parallel, words: str) -> None:
    with pytest.raises(HymellError, match=words):
        kernels(name, parallel)


def test_an_unknown_op_in_a_split_layer_is_named() -> None:
    found = graph("llama-3-8b")
    region = found.of_phase("decode")[0]
    ops = tuple(
        replace(op, name="mylib.act") if op.name.startswith("aten.silu") else op
        for op in region.ops
    )
    with pytest.raises(HymellError, match=r"mylib\.act .*does not know it"):
        rank_of(replace(region, ops=ops), found.facts, Parallel(tp=2))


def test_an_unknown_op_on_the_residual_stream_is_none_of_its_business() -> None:
    found = graph("llama-3-8b")
    region = found.of_phase("decode")[0]
    last = max(op.id for op in region.ops if op.name.startswith("aten.rsqrt"))
    ops = tuple(replace(op, name="mylib.root") if op.id == last else op for op in region.ops)
    assert rank_of(replace(region, ops=ops), found.facts, Parallel(tp=2)).messages


def test_a_model_without_layers_is_refused() -> None:
    found = graph("llama-3-8b")
    region = replace(found.of_phase("decode")[0], layers=())
    with pytest.raises(HymellError, match="no repeated layers"):
        rank_of(region, found.facts, Parallel(tp=2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tp": 0}, "tp must be from 1 to 4096, not 0"),
        ({"tp": 2.0}, "tp must be a whole number, not 2.0"),
        ({"pp": True}, "pp must be a whole number, not True"),
        ({"ep": 5000}, "ep must be from 1 to 4096, not 5000"),
        ({"tp": 4, "ep": 8}, "ep 8 must divide tp 4"),
        ({"microbatches": 2}, "give --pp 2 or more"),
    ],
)
def test_numbers_that_make_no_sense(options: dict[str, int], words: str) -> None:
    with pytest.raises(HymellError, match=words):
        Parallel(**options)


def test_a_batch_that_the_parts_cannot_share() -> None:
    with pytest.raises(HymellError, match=r"batch of 12 cannot be cut into 8 .*multiple of 8"):
        report("qwen3-30b-a3b", batch=12, ep=8)
    with pytest.raises(HymellError, match="batch of 3 cannot be cut into 2"):
        price(
            graph("llama-3-8b"), [4, 3], 64, 8, gpu=H100, engine=VLLM,
            parallel=Parallel(pp=2, microbatches=2),
        )  # fmt: skip


def test_the_command_ends_in_2_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("report", "falcon-7b", "--tp", "2")) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "71 attention heads" in err


# Memory.


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_weights_on_all_gpus_are_the_models_and_its_norms_again(tp: int) -> None:
    # Two norms a layer and the last one; the rotary frequencies, in fp32.
    norms = (2 * 32 + 1) * 4096 * 2 + 64 * 4
    whole = weights_bytes(deployed("llama-3-8b"))
    assert tp * weights_bytes(deployed("llama-3-8b", Parallel(tp=tp))) == pytest.approx(
        whole + (tp - 1) * norms, rel=1e-9
    )


def test_weights_of_repeated_layers_are_shared_where_each_is_named() -> None:
    # RWKV divides each layer's output weight by a number of its own. What multiplies its channel
    # mixing is whole on every GPU.
    whole = weights_bytes(deployed("rwkv-4-3b"))
    gate = 31 * 2560 * 2560 * 2
    each = weights_bytes(deployed("rwkv-4-3b", Parallel(tp=8)))
    assert 8 * each == pytest.approx(whole + 7 * gate, rel=0.02)


@pytest.mark.parametrize(
    ("name", "tp", "share"),
    [
        ("llama-3-8b", 4, 1 / 4),
        ("llama-3-8b", 8, 1 / 8),
        ("llama-3-8b", 16, 1 / 8),
        ("deepseek-v3", 8, 1),
    ],
)
def test_each_gpu_keeps_the_cache_of_its_heads(name: str, tp: int, share: float) -> None:
    whole = cache_bytes(deployed(name), 4, 1000, 10)[0]
    each = cache_bytes(deployed(name, Parallel(tp=tp)), 4, 1000, 10)[0]
    assert each == pytest.approx(share * whole)


@pytest.mark.parametrize("tp", [2, 8])
def test_states_of_recurrences_are_shared(tp: int) -> None:
    held = cache_bytes(deployed("mamba2-2.7b", Parallel(tp=tp)), 4, 1000, 10)[0]
    scans, convolutions = 80 // tp * 64 * 128 * 4, (5120 // tp + 2 * 128) * 4 * 2
    assert held == 4 * 64 * (scans + convolutions)


def test_spread_experts_keep_the_cache_of_their_sequences() -> None:
    whole = cache_bytes(deployed("qwen3-30b-a3b"), 16, 1000, 10)[0]
    parallel = Parallel(ep=8)
    assert cache_bytes(deployed("qwen3-30b-a3b", parallel), 16, 1000, 10)[0] == whole / 8
    held = memory_cost(deployed("qwen3-30b-a3b", parallel), Workload(16, 1000, 10))
    assert held.kv_bytes_per_token == 48 * 2 * 4 * 128 * 2
    assert held.max_batch % 8 == 0


def test_more_gpus_hold_more_sequences() -> None:
    most = [report("llama-3-8b", tp=tp).memory.max_batch for tp in (1, 2, 4, 8)]
    assert most == sorted(most)
    assert most[-1] > 8 * most[0]
    assert not report("llama-3-70b").memory.fits
    assert report("llama-3-70b", tp=4).memory.fits


def test_the_largest_batch_fits_and_one_part_more_does_not() -> None:
    model = deployed("llama-3-8b", Parallel(pp=2, microbatches=4))
    most = memory_cost(model, Workload(4, 512, 32)).max_batch
    assert most % 4 == 0
    assert memory_cost(model, Workload(most, 512, 32)).fits
    assert not memory_cost(model, Workload(most + 4, 512, 32)).fits


def test_a_stage_holds_its_layers_and_the_larger_end() -> None:
    whole = weights_bytes(deployed("llama-3-8b"))
    table = 128256 * 4096 * 2
    half = weights_bytes(deployed("llama-3-8b", Parallel(pp=2)))
    assert half == pytest.approx((whole - 2 * table) / 2 + table, rel=1e-4)
    thirds = [weights_bytes(deployed("llama-3-8b", Parallel(pp=n))) for n in (1, 2, 3, 4, 8)]
    assert thirds == sorted(thirds, reverse=True)
    assert cache_bytes(deployed("llama-3-8b", Parallel(pp=3)), 1, 100, 10)[0] == pytest.approx(
        11 / 32 * cache_bytes(deployed("llama-3-8b"), 1, 100, 10)[0]
    )


# Time, energy, money.


def test_more_gpus_are_faster_and_draw_more() -> None:
    found = [report("llama-3-70b", tp=tp) for tp in (1, 2, 4, 8)]
    for fewer, more in pairwise(found):
        assert more.ttft_s < fewer.ttft_s
        assert more.latency_s < fewer.latency_s
        assert more.energy_j > fewer.energy_j
        assert more.ttft_s > fewer.ttft_s / 2
    for priced in found:
        gpus = priced.parallel["gpus"]
        assert 70 * gpus <= priced.power_w <= 700 * gpus
        assert priced.cost is not None
        each = priced.latency_s * gpus * 2.0 / 3600 / 8
        assert priced.cost["per_request"] == pytest.approx(each)


@pytest.mark.parametrize("options", [{"tp": 4}, {"ep": 4}, {"tp": 2, "pp": 2}])
def test_energy_is_that_of_kernels_and_idle_boards_on_all_gpus(options: dict[str, int]) -> None:
    priced = report("qwen3-30b-a3b", **options)
    parallel = Parallel(**options)
    for phase, cost in (("prefill", priced.prefill), ("decode", priced.decode)):
        own = [k for k in priced.kernels if k.phase == phase]
        busy_s = sum(k.time_s for k in own)
        idle_s = parallel.pp * cost.time_s - busy_s
        idle_j = parallel.per_stage * 70 * idle_s
        assert cost.energy_j == pytest.approx(sum(k.energy_j for k in own) + idle_j)
        assert cost.overhead_s == pytest.approx(cost.time_s - busy_s)


def test_many_workloads_are_priced_as_each_alone() -> None:
    parallel = Parallel(tp=2, pp=2, microbatches=2)
    found = price(
        graph("llama-3-8b"), [2, 8, 16], 512, 32, gpu=H100, engine=VLLM, parallel=parallel
    )
    for row, batch in enumerate((2, 8, 16)):
        alone = report("llama-3-8b", batch=batch, tp=2, pp=2, microbatches=2)
        assert found["latency_s"][row] == pytest.approx(alone.latency_s)
        assert found["energy_j"][row] == pytest.approx(alone.energy_j)


def test_one_stage_more_costs_one_message_and_idle_boards() -> None:
    alone, staged = report("llama-3-8b"), report("llama-3-8b", pp=4)
    sent = sum(k.time_s for k in staged.kernels if k.name == "send_recv" and k.phase == "decode")
    gaps_s = 3 * VLLM.overheads.gap_s * staged.decode.steps
    assert sent > 0
    assert staged.decode.time_s == pytest.approx(alone.decode.time_s + sent + gaps_s)
    assert staged.decode.flops == alone.decode.flops
    assert staged.energy_j > alone.energy_j + 3 * 70 * 0.99 * alone.latency_s


@pytest.mark.parametrize(("pp", "parts"), [(2, 2), (4, 2), (4, 8)])
def test_even_stages_stand_idle_as_gpipe_says(pp: int, parts: int) -> None:
    priced = report("llama-3-8b", batch=16, pp=pp, microbatches=parts)
    step_s = VLLM.overheads.step_s
    work = [k for k in priced.kernels if k.phase == "prefill"]
    launches = priced.prefill.launches
    # One micro-batch in all stages, then the slowest stage for each of the others.
    one = predict_graph(
        graph("llama-3-8b"),
        Workload(16 // parts, 512, 32),
        gpu=H100,
        engine=VLLM,
        parallel=Parallel(pp=pp),
    )
    assert launches == parts * one.prefill.launches
    through = one.prefill.time_s - step_s
    assert priced.ttft_s == pytest.approx(step_s + through * (1 + (parts - 1) / pp))
    busy = parts * through / pp
    idle = 1 - busy / (priced.ttft_s - step_s)
    assert idle == pytest.approx((pp - 1) / (parts + pp - 1))
    assert sum(k.time_s for k in work) <= priced.ttft_s


@pytest.mark.parametrize("options", [{"tp": 8}, {"tp": 4, "ep": 2, "pp": 2}, {"ep": 8}])
def test_the_report_follows_its_schema(options: dict[str, int]) -> None:
    schema = json.loads((Path(__file__).parents[1] / "docs/report.schema.json").read_text("utf-8"))
    jsonschema.validate(report("qwen3-30b-a3b", **options).to_dict(), schema)


def test_the_report_says_what_is_shared() -> None:
    priced = report("deepseek-v3", tp=8)
    assert priced.parallel == {"tp": 8, "ep": 1, "pp": 1, "microbatches": 1, "gpus": 8}
    text = str(priced.assumptions["parallel"])
    assert "whole on every GPU: q_a_proj, kv_a_proj_with_mqa, gate" in text
    assert priced.warnings == ()
    (warning,) = report("deepseek-v3", batch=16, tp=16).warnings
    assert "the network between machines is not modelled" in warning


# Links.


def test_a_message_by_the_data_sheet_is_latency_and_wire() -> None:
    linked = Linked(Roofline())
    small = linked.time(Collective("all_reduce", 8.0, 2), H100)
    assert small.time_s == pytest.approx(ALPHA_S, rel=1e-3)
    assert small.regime == LAUNCH
    large = linked.time(Collective("all_reduce", 1e9, 4), H100)
    assert large.time_s == pytest.approx(ALPHA_S * 1.35 + 2 * 3 / 4 * 1e9 / 450e9)
    assert linked.origin(Collective("all_gather", 1.0, 2), H100).estimator == (
        "alpha-beta, data sheet"
    )
    sent = linked.time(Collective("send_recv", 1e9, 2), H100)
    assert sent.time_s == pytest.approx(ALPHA_S + 1e9 / 450e9)


def test_a_gpu_without_nvlink_takes_pcie_and_one_without_links_is_refused() -> None:
    message = Collective("all_gather", 1e9, 2)
    pcie = Linked(Roofline()).time(message, find_gpu("l40s"))
    assert pcie.time_s == pytest.approx(ALPHA_S + 0.5 * 1e9 / 32e9)
    none = replace(H100.interconnect, nvlink_bytes_per_s=None, pcie_bytes_per_s=None)
    with pytest.raises(HymellError, match="no link to other GPUs"):
        Linked(Roofline()).time(message, replace(H100, interconnect=none))


def _fitted(op: str, slower: float) -> Level1:
    """A collective at its priors, latencies and link ``slower``."""
    form = catalog.find(op, "three-lines")
    assert form is not None
    device = Device.of(H100)
    made = Level1(form, device, corrected=False)
    scale: Callable[[str], float] = lambda name: (  # noqa: E731
        slower if name in ("alpha1", "alpha2", "alpha3") else 1.0
    )
    made.coefficients_ = {c.name: c.prior(device) * scale(c.name) for c in form.coefficients}
    made.choice_ = form.choices[0]
    made.ranges_ = dict.fromkeys(form.range_dims, (0.0, 30.0))
    made.spread_, made.rows_, made.correction_ = 0.05, 60, None
    return made


def _calibrated(*ops: tuple[str, str, str, float]) -> Calibrated:
    fitted = {}
    for op, dtype, variant, slower in ops:
        made = _fitted(op, slower)
        entry = Entry(op, dtype, variant, "tests", "nccl", "2", "", made.to_dict())
        fitted[entry.key] = (entry, made)
    return Calibrated(H100, (assemble("h100-sxm", "vllm", {}, fitted),))


def test_the_engines_own_all_reduce_takes_small_messages() -> None:
    inner = _calibrated(
        ("all_reduce", "float16", "", 3.0),
        ("custom_all_reduce", "bfloat16", "vLLM_custom_graph", 1.0),
    )
    sizes = np.array([1024.0, CUSTOM_BYTES, CUSTOM_BYTES + 2, 1e9])
    message = Collective("all_reduce", sizes, 4)
    nccl = Linked(inner, custom=False).time(message, H100)
    both = Linked(inner).time(message, H100)
    assert (both.time_s[:2] < nccl.time_s[:2]).all()
    assert (both.time_s[2:] == nccl.time_s[2:]).all()
    assert both.in_range.all()
    said = Linked(inner).origin(message, H100)
    assert (said.estimator, said.calibrated) == ("three-lines", True)
    # What was not measured takes the data sheet.
    gathered = Collective("all_gather", sizes, 4)
    assert (Linked(inner).time(gathered, H100).time_s > 0).all()
    assert Linked(inner).terms(gathered, H100) is not None
    assert Linked(inner).terms(message, H100) is None


def test_a_fitted_link_prices_the_run() -> None:
    inner = _calibrated(("all_reduce", "float16", "", 100.0))
    found = predict_graph(
        graph("llama-3-8b"), Workload(8, 512, 32), gpu=H100, engine=VLLM, estimator=inner,
        parallel=Parallel(tp=4),
    )  # fmt: skip
    plain = report("llama-3-8b", tp=4)
    assert found.latency_s > plain.latency_s
    reduce = next(k for k in found.kernels if k.name == "all_reduce")
    assert (reduce.calibration, reduce.calibrated) == ("h100-sxm, nccl 2", True)
