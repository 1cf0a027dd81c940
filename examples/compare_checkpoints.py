"""Does the smaller checkpoint pay, and where does its advantage come from?"""

from __future__ import annotations

import hymell

found = hymell.compare(
    ["Qwen/Qwen3-8B", "Qwen/Qwen3-4B"], hymell.Workload(batch=16, prompt=2048, output=256)
)
for each in found.differences:
    bounds = "" if each.low is None else f" ({each.low:.2f}-{each.high:.2f})"
    print(f"{each.quantity:26} {each.ratio:6.3f}{bounds} {each.verdict}")
for step in found.by_block[:4]:
    print(f"{step.phase} {step.part}: {1e3 * step.added_s:+.1f} ms, {step.added_j:+.1f} J")
