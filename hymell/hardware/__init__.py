"""Data sheets of GPUs, and the way from a loose name to one of them.

A leaf of the package: standard library and `hymell.errors` only. The figures are JSON files in
``hymell/hardware/gpus``, one per board, each with its sources; see docs/hardware.md.
"""

from __future__ import annotations

from hymell.hardware.formats import FORMATS
from hymell.hardware.gpu import Gpu, Interconnect, Source
from hymell.hardware.load import gpu_names, list_gpus, load_gpu, read_gpu_file
from hymell.hardware.match import find_gpu

__all__ = [
    "FORMATS",
    "Gpu",
    "Interconnect",
    "Source",
    "find_gpu",
    "gpu_names",
    "list_gpus",
    "load_gpu",
    "read_gpu_file",
]
