"""What a user's own runs say of a configuration beside its estimate, and how it enters a price.

    time   = factor of the phase * estimate + (step_s + sequence_s * sequences) * steps
    energy = energy * estimate at that time, never above the boards' power limit

A kernel that takes longer or shorter than estimated draws idle power for the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from hymell.graph import Phase
from hymell.op_registry.primitives import Value

#: No factor of time or energy leaves this range: what is farther off is no offset.
LEAST: Final = 0.25
MOST: Final = 4.0

_SHOWN: Final = {"ttft": "TTFT", "tpot": "TPOT", "latency": "latency", "energy": "energy"}


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets of one configuration: a model, GPU, engine, format and number of GPUs.

    ``prefill`` and ``decode`` are factors of the phases' time, ``step_s`` seconds per step and
    ``sequence_s`` seconds per step and sequence of one GPU, both 0 or more; ``energy`` is a factor
    of energy. ``source`` names the ``rows`` runs behind them; ``before`` and ``after`` are mean
    absolute errors on them in %, by what was measured: of the estimate, and of each run by offsets
    fitted to the others (None for a single run).
    """

    prefill: float = 1.0
    decode: float = 1.0
    step_s: float = 0.0
    sequence_s: float = 0.0
    energy: float = 1.0
    source: str = ""
    rows: int = 0
    before: Mapping[str, float] | None = None
    after: Mapping[str, float] | None = None

    def factor(self, phase: Phase) -> float:
        """Factor of the estimated time of a phase."""
        return self.prefill if phase == "prefill" else self.decode

    def outside_s(self, steps: Value, sequences: Value) -> Value:
        """Seconds added to ``steps`` steps of ``sequences`` sequences on one GPU."""
        return (self.step_s + self.sequence_s * sequences) * steps

    def energy_j(self, joules: Value, time_s: Value, limit_w: float) -> Value:
        """Joules of boards that were estimated to draw ``joules`` in ``time_s`` seconds."""
        return np.minimum(self.energy * joules, limit_w * time_s)

    def describe(self) -> str:
        """The offsets in words, for a report's assumptions."""
        words = [f"prefill x {self.prefill:.2f}, decode x {self.decode:.2f}"]
        if self.step_s:
            words.append(f"{self.step_s * 1e6:+.0f} us per step")
        if self.sequence_s:
            words.append(f"{self.sequence_s * 1e6:+.1f} us per sequence and step")
        words.append(f"energy x {self.energy:.2f}")
        runs = "1 run" if self.rows == 1 else f"{self.rows} runs"
        return (
            f"offset of your {runs} ({self.source}): {', '.join(words)}; "
            f"{', '.join(self._errors())}"
        )

    def _errors(self) -> list[str]:
        """What is off on these runs without offsets, and by those of the other runs."""
        after = self.after or {}
        return [
            f"{_SHOWN[name]} {error:.1f}% off"
            + (f" before, {after[name]:.1f}% after" if after else "")
            for name, error in (self.before or {}).items()
        ]
