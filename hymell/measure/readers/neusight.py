"""sitar-lab/NeuSight: PyTorch eager operators in float32 on several GPUs, as CSV files.

Layout: ``scripts/asplos/data/dataset/SPLIT/OP.csv``. Times are in milliseconds and hold the host
overhead of eager mode (15-60 us); matrix products do not use the tensor cores. The per-model
labels beside them (``scripts/asplos/label``) are of whole layers and not read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path

import pandas as pd

from hymell.measure.readers.layout import MeasuredFile, Part, find_folders, gpu_name, read_csv

SOURCE = "neusight"

_LIBRARY = "pytorch"
_VERSION = "2.1.0"
_OPS = {
    "linear": "gemm",
    "bmm": "batched_gemm",
    "ln": "layer_norm",
    "softmax": "softmax",
    "elem": "pointwise",
}
_BINARY = frozenset({"add", "mul", "pow", "div"})


def files(root: Path) -> Iterator[MeasuredFile]:
    """One entry per file and GPU, since every file holds all GPUs."""
    for data in find_folders(root, "scripts/asplos/data/dataset"):
        for path in sorted(data.glob("*/*.csv")):
            if path.stem in _OPS:
                for device in _devices(path, path.stat().st_mtime_ns):
                    yield MeasuredFile(
                        path=path,
                        source=SOURCE,
                        gpu=gpu_name(device),
                        library=_LIBRARY,
                        version=_VERSION,
                        ops=frozenset({_OPS[path.stem]}),
                        load=partial(load, device=device),
                    )


@lru_cache(maxsize=64)
def _devices(path: Path, _modified_ns: int) -> tuple[str, ...]:
    """The GPUs of a file, kept because every `read` asks for them."""
    return tuple(sorted(read_csv(path)["Device"].unique()))


def load(path: Path, device: str) -> Iterator[Part]:
    """The rows of one device. Upstream's N is the inner size and its K the output's width."""
    everything = read_csv(path)
    raw = everything[everything["Device"] == device]
    op = _OPS[path.stem]
    common = pd.DataFrame(
        {"dtype": "float32", "kernel": raw["Kernel Name"], "time_s": raw["Latency"] * 1e-3}
    )
    if op == "gemm":
        sizes = {"m": raw["B"] * raw["M"], "n": raw["K"], "k": raw["N"]}
    elif op == "batched_gemm":
        sizes = {"batch": raw["B"], "m": raw["M"], "n": raw["K"], "k": raw["N"]}
    else:
        sizes = {"rows": raw["B"], "cols": raw["H"]}
    if op == "pointwise":
        # A trailing u marks the variant with a scalar on one side: one tensor is read.
        sizes["kind"] = raw["OPName"]
        sizes["reads"] = raw["OPName"].isin(_BINARY) + 1
    yield Part(op, common.assign(**sizes))
