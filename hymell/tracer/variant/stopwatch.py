"""Times of one attention layer as PyTorch runs it, and the ops that it ran.

The layer is taken from a model with the real sizes of the attention and little around it. Scans
that a trace keeps whole are run, and recorded, as they are written.
"""

from __future__ import annotations

import copy
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import DynamicCache

from hymell.attention_findings import TimedBlock
from hymell.errors import HymellError
from hymell.graph import FORMAT_VERSION, ModelFacts, Op, Operand, OpGraph, Region
from hymell.tracer.build import build_model
from hymell.tracer.concrete import trace_once
from hymell.tracer.variant.small import with_sizes
from hymell.tracer.variant.substitute import Variant, attention_at, empty_cache, passed_to
from hymell.tracer.variant.user_class import file_of, said

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SHORTEST = 128
#: A single call longer than this ends the series of lengths.
_LONGEST_S = 0.5
#: Runs after one to warm up: at least, at most, and the seconds after which it is enough.
_FEWEST, _MOST, _ENOUGH_S = 3, 30, 0.3


@dataclass(frozen=True, slots=True)
class Timings:
    """What was timed, where, in which format, and why the lengths end."""

    device: str
    kind: str
    dtype: str
    remark: str
    blocks: tuple[TimedBlock, ...]


def time_blocks(
    variant: Variant,
    config: PretrainedConfig,
    *,
    activations: str | None,
    batch: int,
    longest: int,
    trust_remote_code: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Timings:
    """One layer of the original and of the variant, prefill and decode, over powers of two.

    ``activations`` names a torch dtype; None: the config's on a GPU, float32 on a CPU. Lengths end
    at ``longest``, at a call of half a second, or where memory does. Raises HymellError where the
    module fails on the device.
    """
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    text = config.get_text_config(decoder=True)
    own = str(getattr(text, "dtype", None) or "bfloat16").removeprefix("torch.")
    dtype = activations or (own if kind == "cuda" else "float32")
    single = with_sizes(text, {}, layers=1)
    everywhere = replace(
        variant, layers=None, contract=replace(variant.contract, scans_as_written=True)
    )
    sides = {
        "original": _Side.of(None, single, kind, dtype, trust_remote_code),
        "variant": _Side.of(everywhere, single, kind, dtype, trust_remote_code),
    }
    blocks: list[TimedBlock] = []
    length, remark = SHORTEST, f"lengths up to the longest context, {longest:,}"
    while length <= longest:
        slowest = 0.0
        try:
            for name, side in sides.items():
                progress(f"timing the {name} attention at {length} tokens on {kind}")
                for phase, seconds, runs in side.times(batch, length):
                    graph = side.graph(phase, batch, length)
                    blocks.append(TimedBlock(name, phase, length, seconds, runs, graph))
                    slowest = max(slowest, seconds)
        except torch.OutOfMemoryError:
            remark = f"lengths end where {length:,} tokens do not fit the memory"
            break
        except HymellError:
            raise
        except Exception as error:
            raise HymellError(
                f"{variant.label} could not run on the {kind} with {length} tokens: "
                f"{said(error, file_of(variant.cls))}; mend it, or leave --measure out"
            ) from error
        if slowest > _LONGEST_S:
            remark = f"lengths end where a call takes over {_LONGEST_S:g} s"
            break
        length *= 2
    shown = "median of the runs; as PyTorch runs it, scans unrolled as they are written; " + remark
    return Timings(_device_name(kind), kind, dtype, shown, tuple(blocks))


@dataclass(frozen=True, slots=True)
class _Side:
    """A model of one layer that runs, and its twin on meta that is traced."""

    model: nn.Module
    twin: nn.Module
    kind: str

    @staticmethod
    def of(
        variant: Variant | None,
        config: PretrainedConfig,
        kind: str,
        dtype: str,
        trust_remote_code: bool,
    ) -> _Side:
        made = []
        for device in (kind, "meta"):
            with torch.random.fork_rng(devices=[]):
                model = build_model(
                    copy.deepcopy(config),
                    trust_remote_code=trust_remote_code,
                    device=device,
                    dtype=getattr(torch, dtype),
                )
                if variant is not None:
                    variant.put_into(model)
            made.append(model)
        return _Side(made[0], made[1], kind)

    def times(self, batch: int, length: int) -> Iterator[tuple[str, float, int]]:
        """(phase, seconds, runs) of a prompt of ``length`` tokens and of a step after it."""
        module = attention_at(self.model, 0)
        passed = passed_to(self.model, 0, batch, length)

        def prefill() -> Any:
            cache = empty_cache(self.model)
            module(**_with_cache(passed, cache))
            return cache

        with torch.no_grad():
            yield ("prefill", *self._timed(prefill))
            cache = prefill()
            step = passed_to(self.model, 0, batch, 1, cache)
            yield ("decode", *self._timed(lambda: module(**step)))

    def graph(self, phase: str, batch: int, length: int) -> OpGraph:
        """The attention's ops of the same call."""
        size = (length, 0) if phase == "prefill" else (1, length)
        region = trace_once(self.twin, phase, batch, *size, memo=False)  # type: ignore[arg-type]
        return attention_only(region, self.twin)

    def _timed(self, call: Callable[[], Any]) -> tuple[float, int]:
        call()
        times: list[float] = []
        while len(times) < _FEWEST or (len(times) < _MOST and sum(times) < _ENOUGH_S):
            self._wait()
            start = time.perf_counter()
            call()
            self._wait()
            times.append(time.perf_counter() - start)
            if times[-1] > _LONGEST_S:
                break
        return median(times), len(times)

    def _wait(self) -> None:
        if self.kind == "cuda":
            torch.cuda.synchronize()


def _with_cache(passed: dict[str, Any], cache: Any) -> dict[str, Any]:
    return {k: cache if isinstance(v, DynamicCache) else v for k, v in passed.items()}


def attention_only(region: Region, model: nn.Module) -> OpGraph:
    """The ops of the attention modules as a graph of one prefill at the region's sizes."""
    kept = [op for op in region.ops if ".self_attn" in op.path]
    number = {op.id: i for i, op in enumerate(kept)}
    ops = tuple(_renumbered(op, number) for op in kept)
    alone = Region("prefill", ops, (), (), region.B, region.S, replace(region.L, lo=0, hi=None))
    weights = [p for name, p in model.named_parameters() if ".self_attn." in name]
    held = sum(p.numel() for p in weights)
    facts = ModelFacts(
        name="attention",
        model_type="module",
        architecture=type(model).__name__,
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
        parameters=held,
        active_parameters=held,
        weight_bytes=float(sum(p.numel() * p.element_size() for p in weights)),
        weight_bytes_by_dtype={},
    )
    return OpGraph(facts, (alone,), {"graph_format": str(FORMAT_VERSION)})


def _renumbered(op: Op, number: dict[int, int]) -> Op:
    inputs = tuple(_operand(operand, number) for operand in op.inputs)
    return replace(op, id=number[op.id], inputs=inputs)


def _operand(operand: Operand, number: dict[int, int]) -> Operand:
    if operand.kind != "op":
        return operand
    if operand.op in number:
        return replace(operand, op=number[operand.op])
    return replace(operand, kind="input", op=-1, index=0, name="hidden")


def _device_name(kind: str) -> str:
    if kind == "cuda":
        return str(torch.cuda.get_device_name())
    return f"{_cpu_name()}, {torch.get_num_threads()} threads"


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"
