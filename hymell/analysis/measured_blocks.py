"""Measured times of attention blocks beside what the data sheet of the same device predicts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hymell.attention_findings import BlockTime, Measurement, TimedBlock
from hymell.errors import HymellError
from hymell.estimators.predict import price
from hymell.hardware import Gpu, find_gpu, gpu_names
from hymell.op_registry.engines import get_engine

#: The built-in data sheet of a CPU that is no one product.
_GENERIC_CPU = "cpu"


def price_blocks(
    blocks: Iterable[TimedBlock],
    *,
    device: str,
    on_gpu: bool,
    dtype: str,
    batch: int,
    remark: str,
    asked: Gpu,
) -> Measurement:
    """Each timed block with its prediction: PyTorch eager on the device's data sheet.

    The data sheet is the built-in one of the GPU's name; else ``asked``, the one the user priced
    with, where it is their own (or, on a CPU, the generic one). Without any nothing is predicted,
    and ``basis`` says so by name.
    """
    sheet, basis = _sheet(device, on_gpu, asked)
    known = get_engine("eager")
    # One layer is part of a step: what a whole step adds is not in its time.
    eager = replace(known, overheads=replace(known.overheads, step_s=0.0))
    times = []
    for block in blocks:
        predicted = None
        if sheet is not None:
            tokens = block.context if block.phase == "prefill" else 1
            priced = price(block.graph, batch, tokens, 1, gpu=sheet, engine=eager)
            predicted = float(priced["ttft_s"])
        times.append(
            BlockTime(
                block.side, block.phase, block.context, block.measured_s, predicted, block.runs
            )
        )
    return Measurement(device, dtype, batch, basis, remark, tuple(times))


def _sheet(device: str, on_gpu: bool, asked: Gpu) -> tuple[Gpu | None, str]:
    if on_gpu:
        try:
            known = find_gpu(device)
        except HymellError:
            pass
        else:
            return known, f"predicted: PyTorch eager on the data sheet of {known.display_name}"
    own = asked.name not in gpu_names()
    if own or (not on_gpu and asked.name == _GENERIC_CPU):
        words = f"predicted: PyTorch eager on the data sheet {asked.display_name} that --gpu names"
        if not own:
            words += ", which is no one product: a JSON of this CPU's own figures would do better"
        return asked, words
    return None, (
        f"nothing is predicted: hymell has no data sheet of {device}; "
        "give its figures as --gpu FILE.json (docs/hardware.md)"
    )
