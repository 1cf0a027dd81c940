"""Energy of kernels by fitted power forms: where a calibration has one, and where it may be lent.

The time is given, whatever priced it. A relative lends its form only within one kernel family and
to a board of about its power: the coefficients are then scaled by TDP.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hymell.estimators.base import DATA_SHEET_POWER, Origin
from hymell.estimators.calibration import Calibration
from hymell.estimators.fitted import Found, find_fitted, native, own, predict_rows
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.kernel_energy import SIZES, energy_dims, energy_op
from hymell.estimators.queries import query
from hymell.hardware import Gpu, load_gpu
from hymell.op_registry.primitives import Primitive, Value

#: Boards further apart in TDP are built otherwise (PCIe cards, modules with a CPU): nothing is
#: lent. B200 and GB200 are a factor of 1.2 apart, H100 SXM and PCIe 2, H200 and GH200 1.3.
_ALIKE_TDP = 1.25


@dataclass(frozen=True)
class FittedEnergy:
    """Power forms of calibrations for ``gpu``, those first in ``sources`` winning."""

    gpu: Gpu
    sources: tuple[Calibration, ...]
    _found: dict[object, Found | None] = field(default_factory=dict, repr=False, compare=False)

    def energy_j(self, primitive: Primitive, time_s: Value) -> Value | None:
        """Joules of a kernel that takes ``time_s`` seconds; None where nothing was fitted.

        Sizes and times are numbers or arrays with one entry per workload. No more than the TDP for
        the time: the board's limit.
        """
        found = self._find(primitive)
        if found is None:
            return None
        drawn_j = predict_rows(found.estimator, energy_dims(primitive, self.gpu, time_s)).time_s
        return np.minimum(drawn_j, self.gpu.tdp_w * time_s)

    def origin(self, primitive: Primitive) -> Origin:
        """The form and the measurements behind it, or the data sheet."""
        found = self._find(primitive)
        if found is None:
            return Origin(DATA_SHEET_POWER)
        return Origin(found.estimator.form.name, found.calibration, found.at_home)

    def _find(self, primitive: Primitive) -> Found | None:
        asked = query(primitive)
        if asked is None or asked.stand_in or asked.keys[0][0] not in SIZES:
            return None
        key = (asked.keys, primitive.math)
        if key not in self._found:
            self._found[key] = self._search(
                [(energy_op(op), dtype, "") for op, dtype, _ in asked.keys], primitive.math
            )
        return self._found[key]

    def _search(self, keys: list[tuple[str, str, str]], math: str) -> Found | None:
        if not native(self.gpu, math):
            return None
        lenders = (c for c in self.sources if own(self.gpu, c) or _alike(self.gpu, load_gpu(c.gpu)))
        return find_fitted(self.gpu, lenders, keys)


def _alike(a: Gpu, b: Gpu) -> bool:
    return Device.of(a).family == Device.of(b).family != "other" and like_power(a, b)


def like_power(a: Gpu, b: Gpu) -> bool:
    """Whether the power limits of two boards are near enough for one to say how the other draws."""
    return 1 / _ALIKE_TDP <= a.tdp_w / b.tdp_w <= _ALIKE_TDP
