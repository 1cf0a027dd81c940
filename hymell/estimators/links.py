"""Messages between GPUs: what a calibration measured of them, else one line from the data sheet.

    time = alpha(n) + crossings * (n - 1)/n * message_bytes / link

with the link as marketed in one direction (NVLink, else PCIe), the latency alpha of a small NCCL
message, and the crossings of a ring (nccl-tests, PERFORMANCE.md). Everything lies inside one
machine; the network between machines is not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hymell.errors import HymellError
from hymell.estimators.base import LAUNCH, MEMORY, Estimator, KernelTime, Origin
from hymell.estimators.calibrated import Calibrated
from hymell.estimators.calibration import Key
from hymell.estimators.fitted import Found, find_fitted, predict_rows
from hymell.estimators.level1.collective import (
    ALPHAS_S,
    CROSSINGS,
    LATENCY_GROWTH,
    link_bytes_per_s,
)
from hymell.estimators.level1.device import Device
from hymell.estimators.queries import columns
from hymell.hardware import Gpu
from hymell.op_registry.primitives import Collective, Primitive, Value

#: Seconds of a small message between two GPUs.
ALPHA_S = ALPHAS_S[0]

#: Times that the data crosses a link, in units of (n - 1)/n of the message; a message that one GPU
#: sends another crosses it whole.
_CROSSINGS = {**CROSSINGS, "send_recv": 2.0}

#: Engines' own all-reduce takes messages of up to this many bytes, NCCL the others (vLLM and
#: SGLang: ``max_size`` of CustomAllreduce).
CUSTOM_BYTES = 8 * 1024**2

#: Formats that links were measured in; the form depends on bytes alone.
_FORMATS = ("bfloat16", "float16", "int8")
_CUSTOM = tuple(
    ("custom_all_reduce", dtype, variant)
    for variant in ("vLLM_custom_graph", "")
    for dtype in _FORMATS
)


@dataclass(frozen=True)
class Linked:
    """`hymell.estimators.base.Estimator` that prices messages itself and asks ``inner`` the rest.

    ``custom``: the engine has an all-reduce of its own for small messages.
    """

    inner: Estimator
    custom: bool = True
    _found: dict[tuple[Key, ...], Found | None] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def name(self) -> str:
        """That of the estimator of the other kernels."""
        return self.inner.name

    @property
    def calibrated(self) -> bool:
        """That of the estimator of the other kernels."""
        return self.inner.calibrated

    def time(self, primitive: Primitive, gpu: Gpu) -> KernelTime:
        """Time and regime: launch where latency is most of a message's time, else memory."""
        if not isinstance(primitive, Collective):
            return self.inner.time(primitive, gpu)
        found = self._fitted(primitive.op)
        if found is None:
            alpha_s, wire_s = data_sheet_terms(primitive, gpu)
            return KernelTime(alpha_s + wire_s, np.where(wire_s > alpha_s, MEMORY, LAUNCH))
        sizes = columns({"message_bytes": primitive.message_bytes, "n_gpus": primitive.n_gpus})
        priced = predict_rows(found.estimator, sizes)
        time_s, launch, in_range = priced.time_s, priced.regime == 0, priced.in_range
        own_kind = self._own_all_reduce(primitive.op)
        if own_kind is not None:
            other = predict_rows(own_kind.estimator, sizes)
            small = sizes["message_bytes"] <= CUSTOM_BYTES
            time_s = np.where(small, other.time_s, time_s)
            launch = np.where(small, other.regime == 0, launch)
            in_range = np.where(small, other.in_range, in_range)
        return KernelTime(time_s, np.where(launch, LAUNCH, MEMORY), in_range)

    def describe(self, gpu: Gpu) -> str:
        """What prices the kernels, then what prices the messages."""
        found = self._fitted("all_reduce")
        words = f"fitted on {found.calibration}" if found else "data-sheet latency and link rate"
        return f"{self.inner.describe(gpu)}; messages between GPUs: {words}"

    def origin(self, primitive: Primitive, gpu: Gpu) -> Origin:
        """The form and the measurements that price this kind of primitive."""
        if not isinstance(primitive, Collective):
            return self.inner.origin(primitive, gpu)
        found = self._fitted(primitive.op)
        if found is None:
            return Origin("alpha-beta, data sheet")
        small = self._own_all_reduce(primitive.op)
        where = found.calibration
        if small is not None:
            where = f"{small.calibration}; beyond {CUSTOM_BYTES >> 20} MiB {where}"
        return Origin(found.estimator.form.name, where, found.at_home)

    def energy_j(self, primitive: Primitive, gpu: Gpu, time_s: Value) -> Value | None:
        """Nothing is fitted for messages: the data-sheet power model."""
        return self.inner.energy_j(primitive, gpu, time_s)

    def energy_origin(self, primitive: Primitive, gpu: Gpu) -> Origin:
        """As the estimator of the other kernels says."""
        return self.inner.energy_origin(primitive, gpu)

    def terms(self, primitive: Primitive, gpu: Gpu) -> tuple[Value, ...] | None:
        """One line for a message by the data sheet; fitted ones have no such terms."""
        if not isinstance(primitive, Collective):
            return self.inner.terms(primitive, gpu)
        if self._fitted(primitive.op) is not None:
            return None
        alpha_s, wire_s = data_sheet_terms(primitive, gpu)
        return (alpha_s + wire_s,)

    def _fitted(self, op: str) -> Found | None:
        return self._find(tuple((op, dtype, "") for dtype in _FORMATS))

    def _own_all_reduce(self, op: str) -> Found | None:
        return self._find(_CUSTOM) if self.custom and op == "all_reduce" else None

    def _find(self, keys: tuple[Key, ...]) -> Found | None:
        if keys not in self._found:
            self._found[keys] = self._search(keys)
        return self._found[keys]

    def _search(self, keys: tuple[Key, ...]) -> Found | None:
        if not isinstance(self.inner, Calibrated):
            return None
        return find_fitted(self.inner.gpu, self.inner.sources, keys)


def data_sheet_terms(message: Collective, gpu: Gpu) -> tuple[Value, Value]:
    """(latency, seconds on the wire) of a message, numbers or one entry per workload.

    Raises HymellError for a GPU whose data sheet has no link to others.
    """
    link = link_bytes_per_s(Device.of(gpu))
    if not link:
        raise HymellError(
            f"the data sheet of {gpu.name} has no link to other GPUs; leave out --tp, --ep and "
            "--pp, or give a data sheet with an interconnect"
        )
    n = message.n_gpus
    alpha_s = ALPHA_S * LATENCY_GROWTH ** (np.log2(n) - 1)
    wire = _CROSSINGS[message.op] * (n - 1) / n * message.message_bytes
    return alpha_s, wire * (1 / link)
