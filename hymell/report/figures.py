"""Pictures of a `CostReport` as matplotlib figures: where time and energy go, roofline, context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hymell.report.svg import INK, PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hymell.analysis.context_curve import ContextCurve
    from hymell.cost_report import CostReport, KernelCost
    from hymell.hardware import Gpu

#: What passes outside kernels, in the bars.
_OUTSIDE: Final = "outside kernels"

#: Markers, so that kinds are told apart without colour.
_MARKERS: Final = "osD^vPX*<>hp"

_PHASES: Final = ("prefill", "decode")


def where_it_goes(report: CostReport) -> Figure:
    """Stacked bars: the share of each block in the time and the energy of each phase."""
    from matplotlib.figure import Figure

    bars = [
        (phase, what)
        for phase in _PHASES
        for what in ("time_s", "energy_j")
        if getattr(report, phase).time_s > 0
    ]
    blocks = [*dict.fromkeys(b.block for b in report.blocks), _OUTSIDE]
    made = Figure(figsize=(8, 0.55 * len(bars) + 1.2), layout="constrained")
    axes = made.add_subplot()
    names = [f"{phase} {what.partition('_')[0]}" for phase, what in bars]
    left = np.zeros(len(bars))
    for place, block in enumerate(blocks):
        shares = np.array([100 * share_of(report, block, *bar) for bar in bars])
        colour = PALETTE[place % len(PALETTE)]
        axes.barh(names, shares, left=left, label=block, color=colour, edgecolor="white")
        left += shares
    axes.invert_yaxis()
    axes.set(xlim=(0, max(100.0, float(left.max()))), xlabel="% of the phase")
    made.legend(loc="outside lower center", ncols=min(len(blocks), 5))
    return made


def share_of(report: CostReport, block: str, phase: str, what: str) -> float:
    """Share of a block in the time (``time_s``) or the energy (``energy_j``) of a phase.

    Of what is outside kernels: 0 where the kernels alone are more than the phase.
    """
    whole = getattr(getattr(report, phase), what)
    inside = {
        name: sum(getattr(b, what) for b in report.blocks if b.phase == phase and b.block == name)
        for name in {b.block for b in report.blocks}
    }
    part = max(whole - sum(inside.values()), 0.0) if block == _OUTSIDE else inside[block]
    return float(part / whole) if whole else 0.0


def roofline(report: CostReport, gpu: Gpu) -> Figure:
    """Every kernel by arithmetic intensity and FLOP/s, under the GPU's roofs for its formats.

    Kernels without FLOPs or bytes have no place in it. Axes are logarithmic.
    """
    from matplotlib.figure import Figure

    made = Figure(figsize=(8, 5), layout="constrained")
    axes = made.add_subplot()
    kernels = [k for k in report.kernels if k.flops > 0 and k.bytes > 0 and k.time_s > 0]
    kinds = list(dict.fromkeys(k.primitive for k in kernels))
    for place, kind in enumerate(kinds):
        for phase, filled in zip(_PHASES, (True, False), strict=True):
            mine = [k for k in kernels if k.primitive == kind and k.phase == phase]
            colour = PALETTE[place % len(PALETTE)]
            axes.scatter(
                [k.flops / k.bytes for k in mine],
                [k.flops / k.time_s for k in mine],
                s=[30 + 300 * k.share_of_time for k in mine],
                marker=_MARKERS[place % len(_MARKERS)],
                facecolors=colour if filled else "none",
                edgecolors=colour,
                label=kind if filled or not _has(kernels, kind, "prefill") else None,
            )
    reach = [k.flops / k.bytes for k in kernels] or [1.0]
    intensity = np.geomspace(min(reach) / 2, max(*reach, 1000.0) * 2, 200)
    for place, (name, peak) in enumerate(roofs(report, gpu)):
        rate = np.minimum(peak, intensity * gpu.memory_bandwidth_bytes_per_s)
        style = ("-", "--", ":", "-.")[place % 4]
        axes.plot(intensity, rate, style, color=INK, linewidth=1.2, label=f"roof, {name}")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="arithmetic intensity, FLOP per byte",
        ylabel="FLOP/s",
    )
    made.legend(loc="outside lower center", ncols=4)
    return made


def roofs(report: CostReport, gpu: Gpu) -> list[tuple[str, float]]:
    """(format, dense peak) that the GPU computes in: 16 bits, and the weights' own if faster."""
    wide = max(("bf16", "fp16", "fp32"), key=lambda name: gpu.peak_flops.get(name, 0.0))
    found = [(wide, gpu.peak_flops[wide])]
    fast = [name for name in ("fp8", "fp4", "int8") if name in gpu.peak_flops]
    narrow = {"float8": "fp8", "fp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4", "int8": "int8"}
    used = next((name for key, name in narrow.items() if report.dtype.startswith(key)), "")
    return found + [(name, gpu.peak_flops[name]) for name in fast if name == used]


def _has(kernels: list[KernelCost], kind: str, phase: str) -> bool:
    return any(k.primitive == kind and k.phase == phase for k in kernels)


def over_context(report: CostReport, curve: ContextCurve) -> Figure:
    """TPOT and energy per output token over prompt length; the band is the 90% interval."""
    from matplotlib.figure import Figure

    generates = any(curve.tpot_s)
    first = ("tpot_s", "TPOT, ms", 1e3) if generates else ("ttft_s", "TTFT, ms", 1e3)
    panels = (first, ("energy_per_output_token_j", "J per output token", 1.0))
    made = Figure(figsize=(8, 3.6), layout="constrained")
    prompts = np.array(curve.prompts)
    for axes, (name, title, scale), colour in zip(
        made.subplots(1, 2), panels, PALETTE, strict=False
    ):
        values = scale * np.array(getattr(curve, name))
        axes.plot(prompts, values, "o-", color=colour)
        bounds = report.intervals.get(name)
        centre = getattr(report, name)
        if bounds is not None and centre:
            low, high = (bound / centre for bound in bounds)
            axes.fill_between(prompts, values * low, values * high, color=colour, alpha=0.2)
        axes.set(xscale="log", xlabel="prompt tokens", title=title)
        axes.minorticks_off()
        shown = prompts[:: -(-len(prompts) // 6)]
        axes.set_xticks(shown, [f"{p // 1024}k" if p >= 1024 else str(p) for p in shown])
        axes.set_ylim(bottom=0)
    return made
