"""Data-sheet JSON -> `Gpu`, checked field by field."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from hymell.errors import HymellError
from hymell.hardware.fields import JsonObject
from hymell.hardware.formats import FORMATS
from hymell.hardware.gpu import Gpu, Interconnect, Source


def _folder() -> Traversable:
    return files("hymell.hardware") / "gpus"


@cache
def gpu_names() -> tuple[str, ...]:
    """Names of the built-in GPUs, sorted; lists the folder, reads no file."""
    names = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(n.removesuffix(".json") for n in names if n.endswith(".json")))


@cache
def load_gpu(name: str) -> Gpu:
    """The built-in GPU of exactly this name. Raises HymellError when there is none."""
    if name not in gpu_names():
        raise HymellError(f"no built-in GPU {name[:60]!r}; `hymell gpus` lists them")
    file = f"{name}.json"
    return _parse((_folder() / file).read_bytes(), file)


def list_gpus() -> tuple[Gpu, ...]:
    """All built-in GPUs, sorted by name."""
    return tuple(load_gpu(name) for name in gpu_names())


def read_gpu_file(path: str | Path) -> Gpu:
    """A user's own data sheet, in the schema of the built-in files.

    Raises HymellError naming the file, and the field where one is missing, unknown or not of its
    type; a negative or absurd figure is not of its type.
    """
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL or a lone surrogate in the path
        reason = getattr(error, "strerror", None) or "not a valid path"
        raise HymellError(
            f"cannot read the GPU file {str(path)[:200]!r} ({reason}); "
            "give the path of a data sheet as docs/hardware.md describes it"
        ) from None
    return _parse(raw, str(path))


def _parse(raw: bytes, where: str) -> Gpu:
    try:
        data = json.loads(raw)
    except json.JSONDecodeError as error:
        raise HymellError(
            f"{where} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except (ValueError, RecursionError):  # bad UTF-8, an integer of 5000 digits; endless nesting
        raise HymellError(f"{where} is not valid JSON: it cannot be decoded") from None
    if not isinstance(data, dict):
        raise HymellError(f"{where} must hold one JSON object {{...}}; see docs/hardware.md")
    sheet = JsonObject(data, where)
    sheet.allow(field.name for field in fields(Gpu))
    return Gpu(
        name=sheet.text("name"),
        display_name=sheet.text("display_name"),
        vendor=sheet.text("vendor"),
        architecture=sheet.text("architecture"),
        compute_capability=_capability(sheet),
        peak_flops=_peak_flops(sheet.child("peak_flops")),
        memory_bytes=sheet.count("memory_bytes"),
        visible_memory_bytes=sheet.optional("visible_memory_bytes", sheet.count),
        memory_bandwidth_bytes_per_s=sheet.number("memory_bandwidth_bytes_per_s"),
        memory_type=sheet.text("memory_type"),
        l2_bytes=sheet.count("l2_bytes"),
        sm_count=sheet.count("sm_count"),
        base_clock_hz=sheet.optional("base_clock_hz", sheet.number),
        boost_clock_hz=sheet.optional("boost_clock_hz", sheet.number),
        tdp_w=sheet.number("tdp_w"),
        idle_power_w=sheet.optional("idle_power_w", sheet.number),
        interconnect=_interconnect(sheet.child("interconnect")),
        aliases=sheet.optional("aliases", sheet.texts) or (),
        sources=tuple(map(_source, sheet.optional("sources", sheet.children) or ())),
    )


def _capability(sheet: JsonObject) -> tuple[int, int] | None:
    text = sheet.optional("compute_capability", sheet.text)
    if text is None:
        return None
    major, _, minor = text.partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 4 for part in (major, minor)):
        raise sheet.wrong("compute_capability", 'text like "9.0", or null')
    return int(major), int(minor)


def _peak_flops(peaks: JsonObject) -> dict[str, float]:
    peaks.allow(FORMATS)
    peaks.number("fp32")  # what every other format falls back to in the end
    return {key: peaks.number(key) for key in FORMATS if key in peaks.data}


def _interconnect(links: JsonObject) -> Interconnect:
    links.allow(field.name for field in fields(Interconnect))
    return Interconnect(
        nvlink_bytes_per_s=links.optional("nvlink_bytes_per_s", links.number),
        pcie_bytes_per_s=links.optional("pcie_bytes_per_s", links.number),
        pcie_generation=links.optional("pcie_generation", links.count),
    )


def _source(entry: JsonObject) -> Source:
    entry.allow(field.name for field in fields(Source))
    return Source(
        fields=entry.texts("fields"),
        title=entry.text("title"),
        publisher=entry.text("publisher"),
        url=entry.optional("url", entry.text),
        note=entry.optional("note", entry.text),
    )
