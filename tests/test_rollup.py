"""The roll-up against the sum over every step."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import pytest
from deployments import (
    HEADS,
    HOST_BOUND,
    PLAIN,
    SERVING,
    deployment,
    kernel,
    region,
    step,
    toy,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from hymell.dims import B, L, S
from hymell.errors import HymellError
from hymell.estimators.base import Deployment, KernelTime
from hymell.estimators.energy import PowerModel, busy_terms
from hymell.estimators.level1.roofline import Roofline, limits
from hymell.estimators.level3.energy_counts import energy_counts
from hymell.estimators.rollup import PhaseTotals, decode_totals, prefill_totals
from hymell.estimators.sums import Samples, sum_over_steps
from hymell.graph import Range
from hymell.hardware import Gpu
from hymell.op_registry.primitives import (
    Attention,
    Experts,
    Gemm,
    Memory,
    Primitive,
    Scan,
    Value,
    at,
)


def arrays(*values: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([float(value)]) for value in values)


def every_step(model: Deployment, batch: int, prompt: int, output: int) -> dict[str, float]:
    """Decode priced at every whole L, each in the region that holds it, then added up."""
    total = dict.fromkeys((f.name for f in fields(PhaseTotals)), 0.0)
    overheads, power = model.engine.overheads, PowerModel.of(model.gpu)
    source, first = (1, prompt)
    if model.encoder_decoder:
        source, first = int(min(prompt, model.longest_source)), 1
    held: dict[int, list[int]] = {}
    for length in range(first, first + output - 1):
        held.setdefault(model.region_index("decode", batch, source, length), []).append(length)
    for index, lengths in held.items():
        kernel_s, launches = np.zeros(len(lengths)), 0.0
        for k in model.lowered(index).kernels:
            p = at(k.primitive, batch, source, np.array(lengths, dtype=float))
            time_s = model.estimator.time(p, model.gpu).time_s + 0 * kernel_s
            busy_s = np.minimum(
                time_s, np.max([t + 0 * time_s for t in busy_terms(p, model.gpu)], 0)
            )
            joules = model.estimator.energy_j(p, model.gpu, time_s)
            if joules is None:
                joules = power.energy_j(time_s, busy_s)
            moved = p.bytes_read + p.bytes_written
            counted = ("matrix_s", "padded_s", "cache_bytes", "activation_bytes")
            for name, value in (
                *zip(counted, energy_counts(p, model.gpu), strict=True),
                ("flops", p.flops),
                ("flops_causal", p.flops_causal),
                ("bytes", moved),
                ("weight_bytes", p.weight_bytes),
                ("kernel_j", joules),
            ):
                total[name] += k.repeat * math.fsum(value + 0 * time_s)
            kernel_s += k.repeat * time_s
            launches += k.repeat * k.launches
        host_s = 0 if overheads.cuda_graphs_in_decode else launches * overheads.host_s_per_launch
        step_s = np.maximum(kernel_s + launches * overheads.gap_s, host_s) + overheads.step_s
        total["steps"] += len(lengths)
        total["kernel_s"] += math.fsum(kernel_s)
        total["launches"] += launches * len(lengths)
        total["time_s"] += math.fsum(step_s)
    return total


def assert_equals_every_step(
    model: Deployment, batch: int, prompt: int, output: int, within: float = 1e-9
) -> None:
    found = decode_totals(model, *arrays(batch, prompt, output))
    for name, expected in every_step(model, batch, prompt, output).items():
        # Padded rows grow in steps, which pieces of a parabola smooth.
        rel = max(within, 5e-3) if name == "padded_s" and within > 1e-9 else within
        assert getattr(found, name)[0] == pytest.approx(expected, rel=rel), name


coefficients = st.tuples(*[st.floats(-1e3, 1e3, allow_subnormal=False)] * 3)


@given(
    terms=st.lists(coefficients, min_size=1, max_size=4),
    first=st.integers(0, 3000),
    count=st.integers(1, 300),
    breaks=st.lists(st.integers(-10, 4000), max_size=3),
)
@settings(max_examples=200, deadline=None)
def test_sum_of_a_maximum_of_parabolas(
    terms: list[tuple[float, float, float]], first: int, count: int, breaks: list[int]
) -> None:
    """Any parabolas, crossing anywhere or never; a break changes the sign of the last term."""

    def values(length: Value) -> list[Value]:
        sign = sum(np.where(length >= b, 1.0, 0.0) for b in breaks) if breaks else 1.0
        found = [a + b * length + c * length * length for a, b, c in terms]
        return [*found[:-1], found[-1] * sign]

    def cost(length: Value) -> Samples:
        return Samples((values(length)[0],), (tuple(values(length)),))

    every = np.arange(first, first + count, dtype=float)
    expected = [float(v.sum()) for v in (values(every)[0], np.max(values(every), axis=0))]
    sums, maxima = sum_over_steps(
        cost, *arrays(first, first + count - 1), [arrays(b)[0] for b in breaks]
    )
    largest = max(np.abs(values(every)).max(), 1.0) * count
    assert sums[0][0] == pytest.approx(expected[0], abs=1e-9 * largest)
    assert maxima[0][0] == pytest.approx(expected[1], abs=1e-9 * largest)


@given(
    batch=st.integers(1, 600),
    prompt=st.integers(1, 3000),
    output=st.integers(1, 400),
    window=st.one_of(st.none(), st.integers(1, 3300)),
    host_bound=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_decode_equals_every_step(
    batch: int, prompt: int, output: int, window: int | None, host_bound: bool
) -> None:
    model = toy(window, engine=PLAIN if host_bound else SERVING)
    assert_equals_every_step(model, batch, prompt, output)


@pytest.mark.parametrize("window", [1, 2, 100, 101, 137, 500])
def test_every_position_of_a_window(window: int) -> None:
    """The window fills before, at the first, inside, at the last and after the steps."""
    for first in (1, window - 2, window - 1, window, window + 1):
        for output in (1, 2, 3, 40):
            assert_equals_every_step(toy(window), 3, max(first, 1), output)


def test_regions_in_batch_and_length() -> None:
    """Batch 1 runs fewer kernels; past 64 cached tokens a layer kind changes."""
    short, long = step(1, L + 1), step(1, 64)
    extra = kernel(Memory("copy", B, B * 4096, B * 4096), "copy", repeat=7)
    model = deployment(
        [
            (region("decode", B=Range(1, 1), L=Range(0, 63)), short),
            (region("decode", B=Range(1, 1), L=Range(64, None)), long),
            (region("decode", B=Range(2, None), L=Range(0, 63)), (*short, extra)),
            (region("decode", B=Range(2, None), L=Range(64, None)), (*long, extra)),
        ]
    )
    for batch in (1, 2, 5):
        for prompt, output in ((10, 20), (10, 200), (63, 2), (64, 2), (62, 4), (300, 9)):
            assert_equals_every_step(model, batch, prompt, output)


def test_rows_of_one_call_do_not_touch_each_other() -> None:
    model = toy(90, engine=PLAIN)
    batch = np.array([1.0, 64.0, 3.0, 1.0, 900.0])
    prompt = np.array([5.0, 80.0, 4000.0, 1.0, 89.0])
    output = np.array([200.0, 1.0, 2.0, 3.0, 50.0])
    together = decode_totals(model, batch, prompt, output)
    for row in range(5):
        alone = decode_totals(model, *(v[row : row + 1] for v in (batch, prompt, output)))
        for f in fields(PhaseTotals):
            assert getattr(together, f.name)[row] == getattr(alone, f.name)[0]


def test_kernel_that_changes_from_memory_to_compute_bound() -> None:
    """Bytes fall behind FLOPs as L grows: the crossover splits the sum."""
    grows = kernel(Gemm(L + 1, 4096, 4096))
    model = deployment([(region("decode"), (grows,))])
    early, late = (limits(at(grows.primitive, 1, 1, n), model.gpu) for n in (10, 2000))
    assert early.matrix_s < early.memory_s
    assert late.matrix_s > late.memory_s
    assert_equals_every_step(model, 1, 10, 2000)


def test_host_bound_until_the_device_catches_up() -> None:
    """A step is max(device, host): the crossover in L is found, not averaged away."""
    model = toy(engine=PLAIN)
    launches = sum(k.repeat for k in step(1, L + 1))
    host_s = launches * HOST_BOUND.host_s_per_launch
    batch, prompt, output = 100, 900, 1200
    device = [decode_totals(model, *arrays(batch, n, 2)).kernel_s[0] for n in (prompt, 2098)]
    assert device[0] < host_s < device[1]
    assert_equals_every_step(model, batch, prompt, output)


def test_long_runs_keep_their_digits() -> None:
    """10^8 steps, against Faulhaber on whole numbers."""
    model = deployment([(region("decode"), (kernel(Attention(B, 1, L + 1, 1, 1, 64, 64)),))])
    found = decode_totals(model, *arrays(1, 1, 10**8))
    lengths = sum(range(2)) + (10**8 - 1) * (10**8 + 2) // 2
    assert found.flops[0] == pytest.approx(4 * 64 * lengths, rel=1e-12)


def test_scan_and_cross_attention() -> None:
    state = Scan("gla", B, 1, HEADS, 64, 64, 1, B * 4096, B * 4096)
    grows = Scan("gla", B, L + 1, HEADS, 64, 64, 64, B * (L + 1) * 64, B * 4096)
    model = deployment(
        [(region("decode", S=Range()), (kernel(state), kernel(grows)))],
        parts=("encoder", "decoder"),
    )
    assert_equals_every_step(model, 3, 700, 150)


def test_encoder_decoder_counts_generated_tokens() -> None:
    """S is the source, L starts at one generated token."""
    own = kernel(Attention(B, 1, L + 1, 8, 8, 64, 64), "self")
    cross = kernel(Attention(B, 1, S, 8, 8, 64, 64, causal=False), "cross")
    model = deployment(
        [(region("prefill"), (cross,)), (region("decode", S=Range()), (own, cross))],
        parts=("encoder", "decoder"),
    )
    found = decode_totals(model, *arrays(2, 300, 5))
    pairs = sum(length + 1 for length in range(1, 5)) + 4 * 300
    assert found.flops[0] == 2 * pairs * 4 * 8 * 64
    assert_equals_every_step(model, 2, 300, 5)


def test_a_source_of_fixed_length_ignores_the_prompt() -> None:
    """Whisper encodes the same frames whatever it is given: its decode regions have S = 1."""
    own = kernel(Attention(B, 1, L + 1, 8, 8, 64, 64), "self")
    model = deployment([(region("decode"), (own,))], parts=("encoder", "decoder"))
    assert_equals_every_step(model, 2, 300, 5)


def test_encoder_has_no_decode() -> None:
    found = decode_totals(deployment([(region("prefill"), step(S, S))]), *arrays(1, 10, 20))
    assert all(getattr(found, f.name)[0] == 0 for f in fields(PhaseTotals))


def test_prefill_is_one_step() -> None:
    model = toy()
    batch, prompt = 2, 300
    found = prefill_totals(model, *arrays(batch, prompt))
    kernels = model.lowered(0).kernels
    priced = [(k, at(k.primitive, batch, prompt, 0)) for k in kernels]
    assert found.flops[0] == sum(k.repeat * p.flops for k, p in priced)
    times = [k.repeat * float(Roofline().time(p, model.gpu).time_s) for k, p in priced]
    overheads, launches = SERVING.overheads, sum(k.repeat for k in kernels)
    host_s = launches * overheads.host_s_per_launch
    assert sum(times) + launches * overheads.gap_s < host_s, "the host is what prefill waits for"
    assert found.kernel_s[0] == pytest.approx(sum(times))
    assert found.time_s[0] == pytest.approx(host_s + overheads.step_s)


def test_a_step_no_region_holds_is_an_error() -> None:
    model = deployment([(region("decode", L=Range(5, 20)), step(1, L + 1))])
    with pytest.raises(HymellError, match=r"toy: no traced decode region holds B=1, S=1, L=21"):
        decode_totals(model, *arrays(1, 10, 40))
    with pytest.raises(HymellError, match="toy has no prefill phase"):
        prefill_totals(model, *arrays(1, 10))


@dataclass(frozen=True)
class Joined:
    """An estimator whose time is no maximum of polynomials, as calibrated ones are."""

    name: str = "joined"
    calibrated: bool = True

    def time(self, primitive: Primitive, gpu: Gpu) -> KernelTime:
        bound = limits(primitive, gpu)
        joined = (bound.matrix_s**1.5 + bound.memory_s**1.5) ** (1 / 1.5)
        return KernelTime(2e-6 + joined, np.zeros_like(joined))

    def energy_j(self, primitive: Primitive, gpu: Gpu, time_s: Value) -> Value:
        return 300.0 * time_s + 200.0 * np.sqrt(time_s * limits(primitive, gpu).memory_s)

    def terms(self, primitive: Primitive, gpu: Gpu) -> None:
        return None


@pytest.mark.parametrize(("prompt", "output"), [(1, 3000), (500, 2), (900, 1500)])
def test_an_estimator_without_closed_form_is_sampled(prompt: int, output: int) -> None:
    model = toy(1000, estimator=Joined())
    assert_equals_every_step(model, 8, prompt, output, within=1e-3)


def test_experts_reached_by_growing_tokens_are_sampled() -> None:
    experts = kernel(Experts(B * (L + 1), 2, 64, 256, 512))
    model = deployment([(region("decode"), (experts,))])
    assert_equals_every_step(model, 1, 1, 2000, within=1e-3)


def test_energy_stays_between_idle_and_tdp() -> None:
    model, power = toy(), PowerModel.of(toy().gpu)
    for batch, prompt, output in ((1, 1, 2), (512, 3000, 300), (64, 64, 64)):
        found = decode_totals(model, *arrays(batch, prompt, output))
        watts = found.kernel_j[0] / found.kernel_s[0]
        assert power.idle_w <= watts <= power.tdp_w


@given(
    point=st.tuples(st.integers(1, 300), st.integers(1, 4000), st.integers(1, 2000)),
    more=st.tuples(st.integers(0, 50), st.integers(0, 200), st.integers(0, 200)),
    window=st.one_of(st.none(), st.integers(1, 5000)),
    host_bound=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_cost_never_falls(
    point: tuple[int, int, int], more: tuple[int, int, int], window: int | None, host_bound: bool
) -> None:
    model = toy(window, engine=PLAIN if host_bound else SERVING)
    larger = tuple(a + b for a, b in zip(point, more, strict=True))
    for phase in (prefill_totals, decode_totals):
        size = 2 if phase is prefill_totals else 3
        less, more_cost = (phase(model, *arrays(*p[:size])) for p in (point, larger))
        for f in fields(PhaseTotals):
            a, b = getattr(less, f.name)[0], getattr(more_cost, f.name)[0]
            assert math.isfinite(a)
            assert b >= a * (1 - 1e-12), f.name
