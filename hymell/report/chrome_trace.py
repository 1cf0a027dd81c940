"""One prefill and one decode step as a timeline that Perfetto and chrome://tracing load.

The format is Chrome's Trace Event Format: complete events ("X") with microseconds. Identical layers
are spelt out; where a model has several kinds of layers a report does not keep their order, so they
are spread evenly. A phase lasts as long as its kernels and what passes outside of them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from hymell.cost_report import CostReport, KernelCost, PhaseCost
from hymell.errors import HymellError
from hymell.report.kernel_text import sizes_text
from hymell.report.listings import layer_path

_PHASES, _KERNELS = 1, 2
_US: Final = 1e6


def to_chrome_trace(report: CostReport) -> str:
    """The file. ``report`` has one decode step at most: an output of 2 tokens, or of 1.

    Raises HymellError for a report of more steps, which has no single step's times.
    """
    if report.decode.steps > 1:
        raise HymellError("a timeline shows one decode step: price an output of 2 tokens for it")
    setting = f"{report.model} on {report.gpu}, {report.engine}"
    events: list[dict[str, Any]] = [
        _name("process_name", setting, _PHASES),
        _name("thread_name", "phases", _PHASES),
        _name("thread_name", "kernels (predicted)", _KERNELS),
    ]
    start_s = 0.0
    for phase in ("prefill", "decode"):
        cost: PhaseCost = getattr(report, phase)
        if cost.time_s:
            kernels = [kernel for kernel in report.kernels if kernel.phase == phase]
            events += _phase(phase, cost, kernels, start_s)
            start_s = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X") / _US
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n"


def _name(what: str, name: str, thread: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 1, "tid": thread, "args": {"name": name}}


def _phase(
    phase: str, cost: PhaseCost, kernels: Sequence[KernelCost], start_s: float
) -> Iterator[dict[str, Any]]:
    title = "prefill" if phase == "prefill" else "one decode step"
    yield _event(title, "phase", start_s, cost.time_s, _PHASES, {"energy_j": cost.energy_j})
    at = start_s
    for kernel, layer in launches(kernels):
        lasts_s = kernel.time_s / kernel.repeat
        yield _event(kernel.name, kernel.block, at, lasts_s, _KERNELS, _details(kernel, layer))
        at += lasts_s
    outside_s = start_s + cost.time_s - at
    if outside_s > 0:
        words = {"what": "gaps between launches, waiting for the host, work per step"}
        yield _event("outside kernels", "outside", at, outside_s, _KERNELS, words)


def _event(
    name: str, category: str, at_s: float, lasts_s: float, thread: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": at_s * _US,
        "dur": lasts_s * _US,
        "pid": 1,
        "tid": thread,
        "args": args,
    }


def _details(kernel: KernelCost, layer: int | None) -> dict[str, Any]:
    return {
        "module": kernel.path,
        "instance": layer,
        "sizes": sizes_text(kernel.sizes),
        "bound by": kernel.regime,
        "FLOPs": kernel.flops / kernel.repeat,
        "bytes": kernel.bytes / kernel.repeat,
        "energy_j": kernel.energy_j / kernel.repeat,
        "priced by": kernel.estimator,
    }


def launches(kernels: Sequence[KernelCost]) -> Iterator[tuple[KernelCost, int | None]]:
    """Every execution of the kernels of a step in order, with the layer's number among its kind.

    None stands for a kernel outside layers.
    """
    for in_layers, group in groupby(kernels, key=lambda kernel: bool(kernel.layer)):
        members = list(group)
        if not in_layers:
            for kernel in members:
                yield from ((kernel, None) for _ in range(kernel.repeat))
            continue
        kinds = [list(kind) for _, kind in groupby(members, key=lambda k: layer_path(k.path))]
        copies = [
            ((place + 0.5) / _count(kind), number, place, kind)
            for number, kind in enumerate(kinds)
            for place in range(_count(kind))
        ]
        for _, _, place, kind in sorted(copies, key=lambda copy: copy[:3]):
            yield from ((kernel, place) for kernel in _of_layer(kind, place))


def _count(kind: Sequence[KernelCost]) -> int:
    """Layers of a kind: kernels that stand in each other's place share its layers."""
    shared: dict[str, int] = defaultdict(int)
    for kernel in kind:
        shared[kernel.path] += kernel.repeat
    once = max(kernel.repeat for kernel in kind)
    fitting = [total for total in shared.values() if once <= total < 2 * once]
    return max(fitting, default=once)


def _of_layer(kind: Sequence[KernelCost], place: int) -> Iterator[KernelCost]:
    """The kernels of one layer: the rarer of two in one place stand in the first layers."""
    count = _count(kind)
    for _, group in groupby(kind, key=lambda kernel: kernel.path):
        members = list(group)
        partial = sorted((k for k in members if k.repeat < count), key=lambda k: k.repeat)
        start = 0
        here = set()
        for kernel in partial:
            if start <= place < start + kernel.repeat:
                here.add(id(kernel))
            start += kernel.repeat
        for kernel in members:
            if kernel.repeat >= count:
                for _ in range(max(kernel.repeat // count, 1)):
                    yield kernel
            elif id(kernel) in here:
                yield kernel
