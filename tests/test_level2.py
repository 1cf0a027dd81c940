"""Level 2: corrections of whole blocks, how they are chosen, kept, and used in a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hymell
from hymell.errors import HymellError
from hymell.estimators.calibrated import calibrated_for
from hymell.estimators.level2 import shipped
from hymell.estimators.level2.correction import BlockCorrection, choose
from hymell.estimators.level2.pricing import blocks_of
from hymell.estimators.level2.shipped import BlockEntry, BlockEstimates
from hymell.estimators.level2.sums import KINDS, RATIOS, BlockSums, block_sums
from hymell.estimators.predict import predict_graph, price
from hymell.hardware import load_gpu
from hymell.op_registry.engines import get_engine
from hymell.op_registry.lower import lower
from hymell.op_registry.primitives import Attention, Collective, Gemm, RowReduce
from hymell.workload import Workload


def _blocks(rows: int, seed: int = 0) -> BlockSums:
    """Blocks of products, attention and norms, from microseconds to milliseconds."""
    draw = np.random.default_rng(seed)
    seconds = np.zeros((rows, len(KINDS)))
    for kind in ("gemm", "attention", "rows"):
        seconds[:, KINDS.index(kind)] = 2.0 ** draw.uniform(-18, -12, rows)
    ratios = draw.uniform(0, 6, (rows, len(RATIOS)))
    return BlockSums(seconds, ratios)


def _scaled(sums: BlockSums, **factors: float) -> np.ndarray:
    weights = np.array([factors.get(kind, 1.0) for kind in KINDS])
    return sums.seconds @ weights


def test_multipliers_of_kinds_are_recovered() -> None:
    sums = _blocks(400)
    made = BlockCorrection("scaled").fit(sums, _scaled(sums, gemm=1.3, attention=0.8))
    unseen = _blocks(100, seed=1)
    expected = _scaled(unseen, gemm=1.3, attention=0.8)
    assert made.predict(unseen) == pytest.approx(expected, rel=0.02)
    assert np.exp(made.multipliers_[KINDS.index("scan")]) == 1


def test_the_net_learns_what_multipliers_cannot_say() -> None:
    sums, unseen = _blocks(600), _blocks(100, seed=1)

    def truth(blocks: BlockSums) -> np.ndarray:
        # The longer the context, the slower, up to a fifth.
        return blocks.total_s * (1 + 0.2 * blocks.ratios[:, RATIOS.index("context")] / 6)

    errors = {}
    for stage in ("scaled", "net"):
        made = BlockCorrection(stage, seeds=(0,)).fit(sums, truth(sums))
        errors[stage] = np.abs(made.predict(unseen) / truth(unseen) - 1).mean()
    assert errors["net"] < errors["scaled"] / 2 < 0.05


def test_beyond_the_blocks_seen_it_fades_to_the_sum() -> None:
    sums = _blocks(300)
    made = BlockCorrection("scaled").fit(sums, _scaled(sums, gemm=1.5, attention=1.5, rows=1.5))
    tokens = RATIOS.index("tokens")
    near, far = sums.ratios.copy(), sums.ratios.copy()
    near[:, tokens], far[:, tokens] = 6.5, 11.0
    inside = made.log_ratio(BlockSums(sums.seconds, near))
    outside = made.log_ratio(BlockSums(sums.seconds, far))
    assert inside == pytest.approx(np.log(1.5), abs=0.02)
    assert np.abs(outside).max() == 0


def test_the_correction_is_bounded() -> None:
    sums = _blocks(300)
    made = BlockCorrection("scaled", bound=0.5).fit(sums, 10 * sums.total_s)
    assert made.log_ratio(sums).max() == 0.5


@pytest.mark.parametrize("stage", ["sum", "scaled", "net"])
def test_a_stage_is_used_where_models_left_out_speak_for_it(stage: str) -> None:
    sums = _blocks(360)
    groups = np.repeat(["a", "b", "c"], 120)
    factor = {
        "sum": np.ones(360),
        "scaled": _scaled(sums, gemm=1.3) / sums.total_s,
        "net": 1 + 0.5 * sums.ratios[:, RATIOS.index("context")] / 6,
    }[stage]
    noise = np.random.default_rng(2).normal(1.0, 0.05, 360)
    choice = choose(sums, sums.total_s * factor * noise, groups, seeds=(0,))
    assert choice.stage == stage
    assert set(choice.errors) == {"sum", "scaled", "net"}


def test_a_factor_that_changes_with_the_model_is_not_used() -> None:
    sums = _blocks(300)
    groups = np.repeat(["a", "b", "c"], 100)
    time_s = sums.total_s * np.repeat([1.3, 0.75, 1.0], 100)
    assert choose(sums, time_s, groups, stages=("sum", "scaled")).stage == "sum"


def test_with_two_models_the_sum_stands() -> None:
    sums = _blocks(100)
    choice = choose(sums, 2 * sums.total_s, np.repeat(["a", "b"], 50))
    assert (choice.stage, choice.errors) == ("sum", {})


def test_bad_input_is_named() -> None:
    sums = _blocks(10)
    with pytest.raises(HymellError, match="no stage 'forest'"):
        BlockCorrection("forest").fit(sums, sums.total_s)
    with pytest.raises(HymellError, match="measured blocks: 10 sums, 9 times"):
        BlockCorrection("sum").fit(sums, sums.total_s[:9])
    with pytest.raises(HymellError, match="measured time of more than 0"):
        BlockCorrection("sum").fit(sums, np.zeros(10))
    nothing = BlockSums(np.zeros((10, len(KINDS))), sums.ratios)
    with pytest.raises(HymellError, match="sum of level 1 of more than 0"):
        BlockCorrection("sum").fit(nothing, sums.total_s)


def test_sums_of_a_block_have_no_scale_but_time() -> None:
    small = _attention_block(heads=8, hidden=1024)
    large = _attention_block(heads=64, hidden=8192)
    assert small.ratios == pytest.approx(large.ratios)
    names = dict(zip(RATIOS, 2.0 ** small.ratios[0], strict=True))
    assert names["tokens"] == 4
    assert names["context"] == pytest.approx(100)
    assert names["group"] == 4
    assert small.total_s == pytest.approx(4e-6)
    assert small.seconds[0, KINDS.index("gemm")] == pytest.approx(2e-6)


def _attention_block(heads: int, hidden: int) -> BlockSums:
    norm = RowReduce("rms_norm", 4, hidden, 8 * hidden, 8 * hidden)
    qkv = Gemm(4, hidden * 3 // 2, hidden)
    attention = Attention(4, 1, 100, heads, heads // 4, 128, 128)
    out = Gemm(4, hidden, hidden)
    return block_sums([(p, np.array([1e-6])) for p in (norm, qkv, attention, out)], 1)


def _entry(block: str, form: str, phase: str, factor: float, *, norm: bool = True) -> BlockEntry:
    """A correction by one factor of all kinds, seen everywhere."""
    made = BlockCorrection("scaled")
    made.multipliers_ = np.full(len(KINDS), np.log(factor))
    made.ranges_ = np.tile([-50.0, 50.0], (len(RATIOS) + 1, 1))
    made.rows_ = 7
    return BlockEntry(block, form, phase, "a test", "1", ("m",), 7, "model", 2.0, 9.0, norm, made)


def _estimates(*entries: BlockEntry) -> BlockEstimates:
    return BlockEstimates("h100-sxm", "vllm", {entry.key: entry for entry in entries})


def test_files_keep_what_was_fitted(tmp_path: Path) -> None:
    sums = _blocks(200)
    made = BlockCorrection("net", bound=0.7, seeds=(0,)).fit(sums, _scaled(sums, gemm=1.2))
    entries = [
        replace(_entry("attention", "latent", "decode", 1.0), correction=made),
        _entry("ffn", "dense", "prefill", 1.1),
    ]
    file = tmp_path / "h100-sxm" / "vllm.json"
    shipped.save("h100-sxm", "vllm", entries, file)
    found = shipped.load(file)
    assert set(found.entries) == {entry.key for entry in entries}
    again = found.entries["attention", "latent", "decode"].correction
    assert again.predict(sums) == pytest.approx(made.predict(sums), rel=5e-3)
    assert (again.bound, again.rows_) == (0.7, 200)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"schema_version": 1', '"schema_version": 9'),
        ('"stage"', '"stag"'),
        ('"heads"', '"hands"'),
        ('"gemm": ', '"gemm": -'),
        ('"bound": ', '"bound": -'),
        ("{", "[" * 100_000),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, old: str, new: str) -> None:
    file = tmp_path / "vllm.json"
    shipped.save("h100-sxm", "vllm", [_entry("attention", "heads", "decode", 1.1)], file)
    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(HymellError, match=r"vllm\.json holds no block corrections"):
        shipped.load(file)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    sums = _blocks(50)
    made = BlockCorrection("net", seeds=(0,)).fit(sums, sums.total_s)
    entry = replace(_entry("attention", "heads", "decode", 1.0), correction=made)
    file = tmp_path / "vllm.json"
    shipped.save("h100-sxm", "vllm", [entry], file)
    file.with_suffix(".safetensors").unlink()
    with pytest.raises(HymellError, match="holds no block corrections"):
        shipped.load(file)


def _report(blocks: BlockEstimates | None, output: int = 16) -> hymell.CostReport:
    gpu, engine = load_gpu("h100-sxm"), get_engine("vllm")
    calibrated = calibrated_for(gpu, "vllm")
    assert calibrated is not None
    estimator = replace(calibrated, blocks=blocks, system=None, energies=None)
    graph = hymell.trace("llama-3-8b")
    workload = Workload(batch=2, prompt=64, output=output)
    return predict_graph(graph, workload, gpu=gpu, engine=engine, estimator=estimator)


def test_a_report_scales_the_blocks_and_says_so() -> None:
    plain = _report(None)
    made = _report(_estimates(_entry("attention", "heads", "decode", 1.25)))
    for before, after in zip(plain.blocks, made.blocks, strict=True):
        ours = (after.phase, after.block) == ("decode", "attention")
        assert after.estimator == ("level 2" if ours else "sum of level 1")
        assert after.time_s == pytest.approx((1.25 if ours else 1.0) * before.time_s)
        assert after.flops == before.flops
    assert made.decode.time_s > plain.decode.time_s
    assert made.prefill.time_s == pytest.approx(plain.prefill.time_s)
    assert made.energy_j > plain.energy_j
    assert (
        "attention in decode: level 2, fitted on 7 blocks of a test" in made.assumptions["blocks"]
    )
    assert "2.0% off on an unseen model, 9.0% without" in made.assumptions["blocks"]
    assert plain.assumptions["blocks"].startswith("sum of level 1")


def test_a_faster_block_draws_no_more_than_the_board() -> None:
    made = _report(_estimates(_entry("ffn", "dense", "decode", 0.1)))
    for block in made.blocks:
        assert block.energy_j <= load_gpu("h100-sxm").tdp_w * block.time_s * (1 + 1e-9)


def test_a_norm_that_was_not_timed_keeps_its_price() -> None:
    with_norm = _report(_estimates(_entry("ffn", "dense", "decode", 2.0)))
    without = _report(_estimates(_entry("ffn", "dense", "decode", 2.0, norm=False)))
    plain = _report(None)
    norms = [
        sum(
            k.time_s
            for k in r.kernels
            if (k.phase, k.block) == ("decode", "ffn") and "norm" in k.name
        )
        for r in (plain, without, with_norm)
    ]
    assert norms[1] == pytest.approx(norms[0])
    assert norms[2] == pytest.approx(2 * norms[0])


def test_many_workloads_are_priced_as_one_by_one() -> None:
    gpu, engine = load_gpu("h100-sxm"), get_engine("vllm")
    calibrated = calibrated_for(gpu, "vllm")
    assert calibrated is not None
    blocks = _estimates(
        _entry("attention", "heads", "decode", 1.25), _entry("ffn", "dense", "prefill", 0.9)
    )
    estimator = replace(calibrated, blocks=blocks, system=None, energies=None)
    graph = hymell.trace("llama-3-8b")
    found = price(graph, [2, 2, 1], 64, [16, 1, 16], gpu=gpu, engine=engine, estimator=estimator)
    for row, output in ((0, 16), (1, 1)):
        alone = _report(blocks, output)
        assert found["latency_s"][row] == pytest.approx(alone.latency_s)
        assert found["energy_j"][row] == pytest.approx(alone.energy_j)


def test_every_layer_of_one_kind_is_one_block() -> None:
    graph = hymell.trace("deepseek-v3")
    for index, phase in enumerate(("prefill", "decode")):
        kernels = lower(graph.regions[index], get_engine("vllm"), graph.facts).kernels
        found = blocks_of(kernels, phase)
        assert [(b.key, b.layers) for b in found] == [
            (("attention", "latent", phase), 3),
            (("ffn", "dense", phase), 3),
            (("attention", "latent", phase), 58),
            (("ffn", "experts", phase), 58),
        ]
        inside = {place for block in found for place in block.kernels}
        assert not any(isinstance(kernels[place].primitive, Collective) for place in inside)


def test_corrections_serve_their_own_gpu_alone() -> None:
    for path in shipped.FOLDER.glob("*/*.json"):
        made = shipped.load(path)
        assert (made.gpu, made.library) == (path.parent.name, path.stem)
        assert all(entry.mape < entry.sum_mape for entry in made.entries.values())
        own = calibrated_for(load_gpu(made.gpu), made.library)
        assert own is not None
        assert own.blocks is not None
        assert own.blocks.entries.keys() == made.entries.keys()
    transferred = calibrated_for(load_gpu("gh200"), "vllm")
    assert transferred is not None
    assert transferred.blocks is None
