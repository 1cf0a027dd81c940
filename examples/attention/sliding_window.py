"""Softmax attention over the last 4096 tokens (Beltagy et al. 2020, arXiv:2004.05150) in the place
of a model's attention. A default of the constructor, or --arg, sets what the config does not say.

    hymell attention examples/attention/sliding_window.py:Window --in llama-3-8b
"""

from __future__ import annotations

import sys
from typing import Any

import hymell
from hymell.zoo.attention import SlidingWindowAttention


class Window(SlidingWindowAttention):
    """The zoo's module with a window of its own."""

    def __init__(self, config: Any, layer_idx: int, window: int = 4096) -> None:
        super().__init__(config, layer_idx, window)


if __name__ == "__main__":
    model = sys.argv[1] if len(sys.argv) > 1 else "llama-3-8b"
    found = hymell.compare_attention(Window, model)
    for crossover in found.crossovers:
        print(crossover.measure, crossover.cheaper, crossover.context or "everywhere")
