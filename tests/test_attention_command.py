"""`hymell attention`: a class of the user in a model's attention, from its file to the answer."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attention_variants as benchmark
import numpy as np
import pytest
import torch
from torch import nn

import hymell
from hymell.analysis.attention_variant import MEASURES, AttentionComparison, check_contexts
from hymell.analysis.measured_blocks import price_blocks
from hymell.attention_findings import TimedBlock
from hymell.cli import main
from hymell.cli.attention import _arguments, _layers
from hymell.errors import HymellError, TraceError
from hymell.hardware import find_gpu
from hymell.measure.location import locate
from hymell.measure.operators import OPERATORS, rows_of
from hymell.op_registry.primitives import Conv1d, Scan
from hymell.zoo.attention import (
    VARIANTS,
    GatedDeltaAttention,
    RetentionAttention,
    SlidingWindowAttention,
    SoftmaxAttention,
)

EXAMPLES = Path(__file__).parents[1] / "examples" / "attention"

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}
CONTEXTS = (128, 4096, 65536)

#: What the classes of a user's file share; each test adds a forward.
HEAD = """
import torch
import torch.nn.functional as F
from torch import nn


class Mine(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)

"""

Write = Callable[[str], str]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A file with the class ``Mine`` with this forward (or this text); its target."""

    def made(forward: str) -> str:
        file = tmp_path / "mine.py"
        body = "".join(f"    {line}\n" for line in forward.strip("\n").splitlines())
        file.write_text(forward if "class Mine" in forward else HEAD + body)
        return f"{file}:Mine"

    return made


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    return str(file)


@pytest.fixture
def run(config: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command on the small model: exit status, stdout, stderr."""

    def called(target: str, *arguments: str) -> tuple[int, str, str]:
        status = main(("attention", target, "--in", config, *arguments))
        out, err = capsys.readouterr()
        return status, out, err

    return called


def compare(attention: Any, **how: Any) -> AttentionComparison:
    how = {"contexts": CONTEXTS, "calibration": "none", "check": False, **how}
    return hymell.compare_attention(attention, how.pop("model", CONFIG), **how)


# --- the comparison --------------------------------------------------------------------------


def test_the_same_attention_costs_the_same() -> None:
    found = compare(SoftmaxAttention)
    assert found.layers == (0, 1, 2)
    assert found.parameters["variant"] == found.parameters["original"]
    assert not found.not_understood
    assert found.understood_share_of_ops == 1
    for row in found.rows:
        assert row.variant == row.original
    assert {c.measure for c in found.crossovers} == set(MEASURES)
    assert all(c.cheaper == "neither" and c.context is None for c in found.crossovers)


@pytest.mark.parametrize("name", [n for n in VARIANTS if n != "sliding_window"])
def test_the_cache_is_that_of_the_formula(name: str) -> None:
    from transformers import LlamaConfig

    found = compare(VARIANTS[name].module)
    sizes = LlamaConfig(**CONFIG)
    for row in found.rows:
        # The step after the prompt adds a token.
        per_layer = VARIANTS[name].state_bytes(sizes, row.context + 1, 2)
        assert row.variant.cache_bytes == 3 * per_layer


def test_a_recurrent_state_overtakes_a_growing_cache_where_their_sizes_meet() -> None:
    found = compare(RetentionAttention, contexts=(2, 4096))
    state = 3 * 4 * 16 * 16 * 4
    per_token = 3 * 2 * 2 * 16 * 2
    cache = found.cache
    assert cache["original"].bytes_per_token == per_token
    assert cache["original"].fixed_bytes == 0
    assert (cache["variant"].bytes_per_token, cache["variant"].fixed_bytes) == (0, state)
    [crossover] = [c for c in found.crossovers if c.measure == "cache"]
    assert crossover.cheaper == "variant"
    # The prompt and one more token; a state is no dearer from there on.
    assert crossover.context is not None
    assert crossover.context + 1 == math.ceil(state / per_token)


def test_flops_of_the_attention_are_those_of_its_products() -> None:
    found = compare(RetentionAttention, contexts=(128, 256))
    first, second = found.rows
    hidden, wide, kv = 64, 64, 32
    projections = 2 * hidden * (wide + 2 * kv + wide)
    pairs = 128 * 129 / 2
    softmax = 4 * 4 * 16 * pairs
    assert first.original.attention_prefill_flops == 3 * (128 * projections + softmax)
    # Linear attention: twice the tokens, twice the work.
    ratio = second.variant.attention_prefill_flops / first.variant.attention_prefill_flops
    assert ratio == pytest.approx(2)
    one = first.variant
    assert one.attention_decode_flops == second.variant.attention_decode_flops
    assert 0 < one.attention_decode_bytes < one.decode_bytes
    assert 0 < one.attention_decode_s < one.tpot_s
    assert 0 < one.attention_decode_energy_j < one.decode_energy_j


def test_costs_are_those_that_predict_gives() -> None:
    found = compare(SoftmaxAttention, contexts=(1024,), gpu="a100", batch=3, engine="sglang")
    report = hymell.predict(
        CONFIG, hymell.Workload(3, 1024, 2), gpu="a100", engine="sglang", calibration="none"
    )
    cost = found.rows[0].original
    assert cost.ttft_s == pytest.approx(report.ttft_s)
    assert cost.tpot_s == pytest.approx(report.tpot_s)
    assert cost.prefill_energy_j == pytest.approx(report.prefill.energy_j)
    assert cost.decode_energy_j == pytest.approx(report.decode.energy_j)
    assert cost.prefill_flops == pytest.approx(report.prefill.flops_causal)
    assert cost.decode_bytes == pytest.approx(report.decode.bytes)
    assert cost.cache_bytes == report.memory.kv_cache_bytes
    assert cost.memory_bytes == report.memory.total_bytes
    kernels = [k for k in report.kernels if ".self_attn" in k.path and k.phase == "prefill"]
    assert cost.attention_prefill_s == pytest.approx(sum(k.time_s for k in kernels))
    assert cost.attention_prefill_flops == pytest.approx(sum(k.flops_causal for k in kernels))


def test_a_crossover_is_where_the_order_changes() -> None:
    found = compare(GatedDeltaAttention, contexts=(128, 1 << 20))
    [crossover] = [c for c in found.crossovers if c.measure == "decode bytes"]
    assert crossover.cheaper == "variant"
    at = crossover.context
    assert at is not None
    before, after = compare(GatedDeltaAttention, contexts=(at - 1, at)).rows
    assert before.variant.decode_bytes > before.original.decode_bytes
    assert after.variant.decode_bytes <= after.original.decode_bytes


def test_alike_at_first_is_cheaper_from_where_they_differ() -> None:
    found = compare(SlidingWindowAttention, options={"window": 512}, contexts=(128, 1 << 20))
    [crossover] = [c for c in found.crossovers if c.measure == "cache"]
    assert crossover.cheaper == "variant"
    # vLLM keeps the 512 tokens of the window; 0.5% more than that, one of them the new one.
    assert crossover.context == math.ceil(512 * 1.005) - 1


def test_a_window_stops_growing() -> None:
    found = compare(SlidingWindowAttention, options={"window": 512}, contexts=(256, 512, 65536))
    short, full, far = (row.variant for row in found.rows)
    assert short.cache_bytes == found.rows[0].original.cache_bytes
    assert full.cache_bytes == far.cache_bytes
    assert full.attention_decode_bytes == far.attention_decode_bytes
    assert found.cache["variant"].bytes_per_token == 0


def test_some_layers_keep_the_attention_of_the_model() -> None:
    found = compare(RetentionAttention, layers=(0, 2))
    whole = compare(RetentionAttention)
    assert found.layers == (0, 2)
    for part, all_, row in zip(found.rows, whole.rows, found.rows, strict=True):
        kept = row.original.cache_bytes / 3
        assert part.variant.cache_bytes == pytest.approx(kept + 2 / 3 * all_.variant.cache_bytes)


def test_a_kernel_that_nobody_measured_is_named() -> None:
    found = compare(RetentionAttention, calibration="auto", contexts=(4096,))
    assert any("retention scan" in text and "no measurement" in text for text in found.warnings)
    scans = [k for k in found.kernels if k.name == "retention scan"]
    assert [k.phase for k in scans] == ["prefill", "decode"]
    assert all(k.side == "variant" and not k.calibration and k.understood for k in scans)


def test_contexts_beyond_the_model_are_priced_and_said() -> None:
    assert any("made for 8192 tokens" in text for text in compare(SoftmaxAttention).warnings)
    found = compare(SoftmaxAttention, contexts=(128, 1024))
    assert not any("made for" in text for text in found.warnings)


@pytest.mark.parametrize("lengths", [[], [1], [-5, 128], [2, 10**9], range(2, 2000)])
def test_impossible_contexts_are_refused(lengths: Any) -> None:
    with pytest.raises(HymellError, match="context"):
        check_contexts(lengths)


def test_other_families_take_a_module_too() -> None:
    small = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "vocab_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    for model in (
        {"model_type": "qwen3", **small, **heads},
        {
            "model_type": "qwen3_moe",
            **small,
            **heads,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
    ):
        found = compare(RetentionAttention, model=model, check=True, contexts=(128,))
        assert not found.failed
        assert found.layers == (0, 1)


def test_a_model_without_such_layers_is_refused() -> None:
    gpt2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128}
    with pytest.raises(HymellError, match="self_attn"):
        compare(RetentionAttention, model=gpt2)


# --- signatures ------------------------------------------------------------------------------

RETURNS_ITS_STATE = """
def forward(self, x, mask=None, layer_past=None, use_cache=False):
    k = self.proj(x)
    if layer_past is not None:
        k = torch.cat([layer_past, k], dim=1)
    o = F.scaled_dot_product_attention(x, k, k, is_causal=x.shape[1] > 1)
    return (o, k) if use_cache else o
"""
FILLS_THE_CACHE = """
def forward(self, hidden_states, cos, sin, attention_mask, past_key_value=None):
    q = k = self.proj(hidden_states)[:, None]
    if past_key_value is not None:
        k, _ = past_key_value.update(k, k, self.layer_idx)
    causal = attention_mask is None and q.shape[2] > 1
    o = F.scaled_dot_product_attention(q, k, k, attn_mask=attention_mask, is_causal=causal)
    return o[:, 0], None, past_key_value
"""
KEEPS_A_WINDOW = """
def forward(self, hidden_states, state=None):
    x = self.proj(hidden_states)
    seen = x if state is None else torch.cat([state, x], dim=1)
    padded = F.pad(seen, (0, 0, 7, 0))
    o = torch.stack([padded[:, i : i + seen.shape[1]] for i in range(8)]).mean(0)
    return o[:, -x.shape[1] :], seen[:, -7:]
"""
CUMULATIVE_SUM = """
def forward(self, hidden_states, state=None, **kwargs):
    total = self.proj(hidden_states).cumsum(dim=1)
    if state is not None:
        total = total + state["sum"]
    return total, {"sum": total[:, -1:]}
"""


@pytest.mark.parametrize(
    ("forward", "per_token", "fixed"),
    [
        (RETURNS_ITS_STATE, 3 * 64 * 2, 0),
        (FILLS_THE_CACHE, 3 * 2 * 64 * 2, 0),
        (KEEPS_A_WINDOW, 0, 3 * 7 * 64 * 2),
        (CUMULATIVE_SUM, 0, 3 * 64 * 2),
    ],
)
def test_forwards_of_other_shapes_are_met_halfway(
    write: Write, forward: str, per_token: int, fixed: int
) -> None:
    found = compare(write(forward), check=True)
    assert found.failed == ()
    assert [check.name for check in found.checks] == [
        "shape and dtype",
        "causal",
        "rows independent",
        "decode equals prefill",
    ]
    size = found.cache["variant"]
    assert (size.bytes_per_token, size.fixed_bytes) == (per_token, fixed)


def test_a_returned_state_is_appended_to_in_place(write: Write) -> None:
    found = compare(write(RETURNS_ITS_STATE))
    [append] = [
        k for k in found.kernels if k.phase == "decode" and k.side == "variant" and "kv" in k.name
    ]
    assert append.understood
    short, _, long = (row.variant.attention_decode_bytes for row in found.rows)
    # Keys and values are one tensor, which the attention reads as both.
    assert long - short == pytest.approx(3 * 2 * 64 * 2 * (65536 - 128), rel=0.01)


# --- checks ----------------------------------------------------------------------------------


def failed(target: str) -> dict[str, str]:
    return {check.name: check.remark for check in compare(target, check=True).failed}


def test_a_module_that_sees_the_future_fails(write: Write) -> None:
    remarks = failed(
        write("""
def forward(self, hidden_states, cache=None, **kwargs):
    k = self.proj(hidden_states)[:, None]
    if cache is not None:
        k, _ = cache.update(k, k, self.layer_idx)
    return F.scaled_dot_product_attention(hidden_states[:, None], k, k)[:, 0]
""")
    )
    assert set(remarks) == {"causal", "decode equals prefill"}


def test_a_module_that_needs_the_mask_fails_where_none_is_passed(write: Write) -> None:
    remarks = failed(
        write("""
def forward(self, hidden_states, attention_mask=None, cache=None, **kwargs):
    k = self.proj(hidden_states)[:, None]
    if cache is not None:
        k, _ = cache.update(k, k, self.layer_idx)
    scores = hidden_states[:, None] @ k.mT
    if attention_mask is not None:
        scores = scores + attention_mask
    return (scores.softmax(-1) @ k)[:, 0]
""")
    )
    assert "causal" in remarks
    assert "sdpa" in remarks["causal"]


def test_a_state_that_is_not_carried_fails(write: Write) -> None:
    remarks = failed(write(CUMULATIVE_SUM.replace("total = total + state", "state = state")))
    assert list(remarks) == ["decode equals prefill"]


def test_rows_that_mix_fail(write: Write) -> None:
    mixed = CUMULATIVE_SUM.replace(
        "self.proj(hidden_states)", "self.proj(hidden_states - hidden_states.mean(0))"
    )
    assert "rows independent" in failed(write(mixed))


def test_a_module_that_ignores_its_input_fails(write: Write) -> None:
    nothing = CUMULATIVE_SUM.replace("self.proj(hidden_states)", "torch.ones_like(hidden_states)")
    assert "causal" in failed(write(nothing))


def test_infinities_fail(write: Write) -> None:
    remarks = failed(write(CUMULATIVE_SUM.replace("return total,", "return total / 0,")))
    assert "not finite" in remarks["shape and dtype"]


def test_checks_leave_the_random_state_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    compare(RetentionAttention, check=True, contexts=(128,))
    assert torch.equal(torch.rand(1), expected)


# --- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forward", "named"),
    [
        ("def forward(self, hidden_states): return hidden_states", "takes no cache"),
        ("def forward(self, hidden_states, cache, depth): return hidden_states", "'depth'"),
        ("def forward(self): return 1", "no hidden states"),
        ("def forward(self, cache, mask): return cache", "no hidden states"),
        ("def forward(self, x, cache, /): return x", "by position only"),
        ("def forward(self, x, cache=None): return x", "cannot decode"),
        ("def forward(self, x, cache=None): return x[..., :3]", r"shape \(2, 4, 3\)"),
        ("def forward(self, x, cache=None): return x.float()", "float32"),
        ("def forward(self, x, cache=None): return {'out': x}", "returned dict"),
        ("def forward(self, x, state=None): return x, x[:, ::2]", "one entry per token"),
        ("def other(self): pass", "has no forward"),
    ],
)
def test_a_forward_that_does_not_fit_is_named(
    run: Run, write: Write, forward: str, named: str
) -> None:
    import re

    status, out, err = run(write(forward), "--contexts", "128")
    assert status == 2
    assert not out
    assert re.search(named, err), err
    assert err.count("\n") == 1
    assert "Mine" in err or "returned state" in err
    assert "Traceback" not in err


def test_a_loop_over_tokens_names_the_remedy(run: Run, write: Write) -> None:
    status, _, err = run(
        write("""
def forward(self, x, state=None):
    total, found = 0 if state is None else state, []
    for t in range(x.shape[1]):
        total = 0.9 * total + self.proj(x[:, t])
        found.append(total)
    return torch.stack(found, 1), total
""")
    )
    assert status == 2
    assert "hymell.zoo.attention.scan" in err


def test_an_error_of_the_module_names_its_line(run: Run, write: Write) -> None:
    status, _, err = run(write("def forward(self, x, cache=None):\n    return self.nothing(x)"))
    assert status == 2
    assert "no attribute 'nothing'" in err
    assert "mine.py, line 14" in err


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("import no_such_package", "No module named 'no_such_package' (mine.py, line 1)"),
        ("x = 1\ny = x / 0", "division by zero (mine.py, line 2)"),
        ("def broken(:", "line 1"),
        ("import sys; sys.exit(3)", "SystemExit"),
    ],
)
def test_a_file_that_fails_is_named(run: Run, tmp_path: Path, content: str, named: str) -> None:
    (tmp_path / "mine.py").write_text(content)
    status, out, err = run(f"{tmp_path}/mine.py:Mine")
    assert (status, out) == (2, "")
    assert named in err
    assert "could not be imported" in err
    assert "Traceback" not in err


def test_a_class_that_is_not_there_is_named(run: Run, write: Write, tmp_path: Path) -> None:
    target = write(CUMULATIVE_SUM).replace(":Mine", ":Other")
    assert "no class Other; it has Mine" in run(target)[2]
    (tmp_path / "mine.py").write_text("Mine = 3\nclass Plain: pass\n")
    assert "no class of torch.nn.Module" in run(f"{tmp_path}/mine.py:Mine")[2]
    assert "no class of torch.nn.Module" in run(f"{tmp_path}/mine.py:Plain")[2]
    assert "no torch.nn.Module class at all" in run(f"{tmp_path}/mine.py:Nothing")[2]
    for target in ("mine.py", "mine:Mine", "mine.py:", f"{tmp_path}/mine.py:a b"):
        assert "FILE.py:Class" in run(target)[2]
    assert "does not exist" in run(f"{tmp_path}/absent.py:Mine")[2]


def test_a_neighbour_of_the_file_can_be_imported(write: Write, tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("SCALE = 2.0\n")
    text = HEAD + "    " + CUMULATIVE_SUM.strip().replace("\n", "\n    ")
    before = list(sys.path)
    found = compare(write(text.replace("import torch\n", "import torch\nimport beside_it\n", 1)))
    assert found.variant == "Mine"
    assert sys.path == before


def test_constructors_get_what_they_ask_for(run: Run, write: Write) -> None:
    text = (
        HEAD.replace(
            "def __init__(self, config, layer_idx):",
            "def __init__(self, hidden_size, config, rank, kind='a', layer_idx=None):",
        )
        + "    "
        + CUMULATIVE_SUM.strip().replace("\n", "\n    ")
    )
    target = write(text)
    status, _, err = run(target)
    assert (status, "--arg rank=VALUE" in err) == (2, True)
    status, _, err = run(target, "--arg", "rank=3", "--arg", "wrong=1")
    assert status == 2
    assert "no argument 'wrong'; it takes hidden_size, config, rank, kind, layer_idx" in err
    found = compare(target, options={"rank": 3})
    assert found.layers == (0, 1, 2)
    text = text.replace("super().__init__()", "super().__init__()\n        rank + 'x'")
    status, _, err = run(write(text), "--arg", "rank=3")
    assert status == 2
    assert "could not be made for layer 0: TypeError" in err


def test_arguments_are_python_literals_or_text() -> None:
    assert _arguments(["a=3", "b=1e-3", "c=true", "d=relu", "e=(1, 2)", "f=x=y", "g="]) == {
        "a": 3,
        "b": 1e-3,
        "c": True,
        "d": "relu",
        "e": (1, 2),
        "f": "x=y",
        "g": "",
    }
    for bad in ("a", "=3", "a b=3"):
        with pytest.raises(HymellError, match="NAME=VALUE"):
            _arguments([bad])


def test_layers_are_lists_of_ranges() -> None:
    assert _layers("all") is None
    assert _layers("3") == [3]
    assert _layers("0,4-6,10-20:5") == [0, 4, 5, 6, 10, 15, 20]
    for bad in ("", "some", "5-3", "1-9:0", "0-", "-1"):
        with pytest.raises(HymellError, match="--layers"):
            _layers(bad)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--layers", "7"), "no attention in layer 7; the model has it in layers 0 to 2"),
        (("--contexts", "a,b"), "whole numbers"),
        (("--contexts", "0"), "no context length"),
        (("--batch", "0"), "batch"),
        (("--gpu", "no-such-gpu"), "no-such-gpu"),
        (("--engine", "no-such-engine"), "no-such-engine"),
        (("--dtype", "float7"), "float7"),
        (("--plot", "x.gif"), "gif"),
        (("--md", "--csv"), "choose one"),
    ],
)
def test_bad_options_are_one_sentence(
    run: Run, write: Write, arguments: tuple[str, ...], named: str
) -> None:
    status, _, err = run(write(CUMULATIVE_SUM), *arguments)
    assert status == 2
    assert named in err
    assert "Traceback" not in err


def test_an_unknown_model_is_named(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("attention", write(CUMULATIVE_SUM), "--in", "./absent.json")) == 2
    assert "absent.json does not exist" in capsys.readouterr().err


def test_only_configs_and_classes_are_taken() -> None:
    with pytest.raises(HymellError, match="not in a Linear"):
        compare(RetentionAttention, model=nn.Linear(1, 1))
    with pytest.raises(HymellError, match=r"class of torch\.nn\.Module"):
        compare(nn.Linear(1, 1))
    with pytest.raises(HymellError, match="at least one layer"):
        compare(RetentionAttention, layers=())


def test_what_fails_in_a_trace_is_a_trace_error(write: Write) -> None:
    branch = """
def forward(self, x, state=None):
    y = self.proj(x)
    if y.sum() > 0:
        y = -y
    return y, y[:, -1:]
"""
    with pytest.raises(TraceError, match=r"Mine in llama could not be traced.*mine\.py, line 15"):
        compare(write(branch))


# --- the command -----------------------------------------------------------------------------


def test_the_page_holds_both_sides(run: Run, write: Write) -> None:
    target = write(CUMULATIVE_SUM)
    status, out, err = run(target, "--contexts", "128,1024,8192")
    assert (status, err) == (0, "")
    for words in (
        "Mine in",
        "Crossovers",
        "Prefill of the whole context",
        "One decode step after it",
        "Attention alone, prefill",
        "Memory",
        "Kernels of the attention at 8,192 tokens",
        "4 of 4 passed",
        "Assumptions",
    ):
        assert words in out
    status, out, _ = run(target, "--contexts", "128,1024", "--no-check", "--layers", "1")
    assert status == 0
    assert "Checks" not in out
    assert "replaced: 1" in out


def test_json_csv_and_markdown_agree(run: Run, write: Write, tmp_path: Path) -> None:
    target = write(CUMULATIVE_SUM)
    quick = ("--contexts", "128,1024", "--no-check")
    _, out, _ = run(target, *quick, "--json")
    data = json.loads(out)
    assert [row["context"] for row in data["rows"]] == [128, 1024]
    assert data["schema_version"] == 1
    _, out, _ = run(target, *quick, "--csv")
    records = list(csv.DictReader(io.StringIO(out)))
    assert float(records[1]["variant_tpot_s"]) == pytest.approx(
        data["rows"][1]["variant"]["tpot_s"]
    )
    file = tmp_path / "answer.md"
    status, out, err = run(target, *quick, "-o", str(file))
    assert (status, out) == (0, "")
    assert "wrote" in err
    assert "## Crossovers" in file.read_text()


def test_a_failed_check_ends_with_status_one(run: Run, write: Write) -> None:
    target = write(CUMULATIVE_SUM.replace("total = total + state", "state = state"))
    status, out, err = run(target, "--contexts", "128")
    assert status == 1
    assert "FAILED: decode equals prefill" in out
    assert "decode equals prefill FAILED" in err


def test_strict_ends_with_status_three(run: Run, write: Write) -> None:
    odd = CUMULATIVE_SUM.replace(
        "self.proj(hidden_states)", "torch.special.i1(self.proj(hidden_states))"
    )
    target = write(odd)
    quick = ("--contexts", "128", "--no-check")
    status, out, _ = run(target, *quick)
    assert status == 0
    assert "not understood: aten.special_i1.default" in out
    status, _, err = run(target, *quick, "--strict")
    assert status == 3
    assert "special_i1" in err


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_plot_is_drawn(run: Run, write: Write, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"plot{suffix}"
    target = write(CUMULATIVE_SUM)
    status, _, _ = run(target, "--contexts", "128,1024,8192", "--no-check", "--plot", str(file))
    assert status == 0
    start = {".png": b"\x89PNG", ".svg": b"<?xml"}[suffix]
    assert file.read_bytes().startswith(start)
    status, _, err = run(target, "--contexts", "128", "--no-check", "--plot", str(file))
    assert status == 2
    assert "two context lengths" in err


# --- times -----------------------------------------------------------------------------------


def test_blocks_are_timed_beside_their_prediction() -> None:
    found = compare(RetentionAttention, gpu="cpu", measure=True, contexts=(128, 256))
    measured = found.measurement
    assert measured is not None
    assert measured.dtype == "float32"
    assert measured.device
    assert [(t.side, t.phase, t.context) for t in measured.times] == [
        (side, phase, context)
        for context in (128, 256)
        for side in ("original", "variant")
        for phase in ("prefill", "decode")
    ]
    for time in measured.times:
        assert time.measured_s > 0
        assert time.predicted_s is not None
        assert time.predicted_s > 0
        assert time.runs >= 1
    by = {(t.side, t.phase, t.context): t.predicted_s for t in measured.times}
    # Twice the chunks are twice the launches of an unrolled scan.
    assert by["variant", "prefill", 256] > by["variant", "prefill", 128]
    assert "generic" in measured.basis.lower()


def test_without_a_data_sheet_nothing_is_predicted() -> None:
    block = TimedBlock("variant", "decode", 128, 1e-3, 5, hymell.trace(CONFIG))
    how: dict[str, Any] = {"dtype": "float32", "batch": 1, "remark": ""}
    h100 = find_gpu("h100-sxm")
    on_cpu = price_blocks([block], device="Some CPU", on_gpu=False, asked=h100, **how)
    assert on_cpu.times[0].predicted_s is None
    assert "no data sheet of Some CPU" in on_cpu.basis
    strange = price_blocks([block], device="Odd GPU 9", on_gpu=True, asked=h100, **how)
    assert strange.times[0].predicted_s is None
    assert "no data sheet of Odd GPU 9" in strange.basis


def test_a_known_gpu_is_predicted_with_its_own_data_sheet() -> None:
    block = TimedBlock("variant", "prefill", 128, 1e-3, 5, hymell.trace(CONFIG))
    how: dict[str, Any] = {"dtype": "bfloat16", "batch": 1, "remark": ""}
    asked = find_gpu("l4")
    on = "NVIDIA H100 80GB HBM3"
    found = price_blocks([block], device=on, on_gpu=True, asked=asked, **how)
    assert find_gpu(on).display_name in found.basis
    assert found.times[0].predicted_s


# --- examples --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("kernel_linear", "KernelLinearAttention"),
        ("retention", "RetentionAttention"),
        ("gated_linear", "GatedLinearAttention"),
        ("gated_delta", "GatedDeltaAttention"),
        ("sliding_window", "Window"),
        ("own_multi_query", "MultiQuery"),
    ],
)
def test_the_examples_run(run: Run, file: str, name: str) -> None:
    path = EXAMPLES / f"{file}.py"
    assert f"{path.relative_to(EXAMPLES.parents[1])}:{name} --in" in path.read_text()
    status, out, err = run(f"{path}:{name}", "--contexts", "128,16384")
    assert (status, err) == (0, "")
    assert "every op is understood" in out
    assert "4 of 4 passed" in out


def test_every_variant_of_the_zoo_has_an_example() -> None:
    held = {file.stem for file in EXAMPLES.glob("*.py")}
    assert set(VARIANTS) - {"softmax"} <= held


# --- the tables of the gated delta rule ------------------------------------------------------


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_variants_kernels_have_the_sizes_of_the_tables(phase: str) -> None:
    heads, batch, length = 4, np.array([1.0, 2.0, 8.0]), np.array([128.0, 4096.0, 512.0])
    if phase == "decode":
        length = np.ones(3)
    model = benchmark.deployment(heads, "h100-sxm")
    for which, scan in benchmark.kernels(model, Scan, phase, batch, length):
        assert (scan.heads, scan.key_dim, scan.value_dim) == (heads, 128, 128)
        assert np.array_equal(np.broadcast_to(scan.batch, which.sum()), batch[which])
        assert np.array_equal(np.broadcast_to(scan.length, which.sum()), length[which])
        # Queries, keys, values and outputs in bf16, beside them a decay and a strength per head.
        tokens = batch[which] * length[which] * heads
        state = batch[which] * heads * 128 * 128 * 4
        states = 2 if phase == "decode" else 1
        moved = scan.bytes_read + scan.bytes_written - states * state
        assert np.allclose(moved, tokens * (4 * 128 * 2 + 6))
    seen = 0
    for which, convolution in benchmark.kernels(model, Conv1d, phase, batch, length):
        assert convolution.channels == 3 * heads * 128
        assert np.array_equal(np.broadcast_to(convolution.length, which.sum()), length[which])
        seen += which.sum()
    assert seen == 3


def test_predictions_are_near_the_measured_scans() -> None:
    try:
        root = locate()
    except HymellError as error:
        pytest.skip(str(error))
    operator = next(o for o in OPERATORS if o.op == "gdn" and o.rows.get("phase") == "generation")
    [rows] = rows_of(operator, "h100-sxm", "vllm", root)
    sheet, fitted = benchmark.judge(operator, "h100-sxm", rows)
    assert fitted.rows == sheet.rows > 40
    assert fitted.mape < 3 < sheet.mape


def test_the_page_shows_every_record() -> None:
    place: dict[str, Any] = {"gpu": "h100-sxm", "library": "vllm", "version": "1"}
    errors: dict[str, Any] = {"median": 1.0, "p90": 2.0, "max": 3.0, "bias": -0.5}
    records = [
        benchmark.Record(
            **place,
            kernel="scan",
            phase=phase,
            estimator=estimator,
            rows=5,
            of=9,
            heads=(2, 4),
            mape=mape,
            **errors,
        )
        for phase in ("prefill", "decode")
        for estimator, mape in (("roofline", 80.0), ("fitted", 1.25))
    ]
    page = benchmark.page(records)
    for phase in ("prefill", "decode"):
        row = f"| h100-sxm | vllm 1 | scan | {phase} | 1.2 (80) | 1.0 | 2.0 | 3.0 | -0.5 | 5 | 9 |"
        assert row in page


def test_the_committed_page_is_that_of_its_records() -> None:
    records = json.loads(benchmark.PAGE.with_suffix(".json").read_text())["errors"]
    made = [benchmark.Record(**{**r, "heads": tuple(r["heads"])}) for r in records]
    assert benchmark.PAGE.read_text() == benchmark.page(made)
    assert {r.gpu for r in made} == set(benchmark.GPUS)
