"""Linear attention with the feature map elu + 1 (Katharopoulos et al. 2020, arXiv:2006.16236)
in the place of a model's attention.

    hymell attention examples/attention/kernel_linear.py:KernelLinearAttention --in llama-3-8b
"""

from __future__ import annotations

import sys

import hymell
from hymell.zoo.attention import KernelLinearAttention

if __name__ == "__main__":
    model = sys.argv[1] if len(sys.argv) > 1 else "llama-3-8b"
    found = hymell.compare_attention(KernelLinearAttention, model)
    for crossover in found.crossovers:
        print(crossover.measure, crossover.cheaper, crossover.context or "everywhere")
