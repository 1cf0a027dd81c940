"""Numbers as people read them: three significant digits, in the unit that keeps them short."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

#: Low and high ends, in the unit of the value that they belong to; None: not known.
Interval: TypeAlias = tuple[float, float] | None

_SECONDS = ((1e-9, "ns"), (1e-6, "us"), (1e-3, "ms"), (1.0, "s"), (3600.0, "h"))
_DECIMAL = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"), (1e18, "E"))
_SMALL = ((1e-9, "n"), (1e-6, "u"), (1e-3, "m"))
_BINARY = tuple((1024.0**i, f"{p}B") for i, p in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi")))


def number(value: float) -> str:
    """Three significant digits, thousands grouped, no exponent between 1e-5 and 1e15."""
    if value == 0:
        return "0"
    if not math.isfinite(value) or not 1e-5 <= abs(value) < 1e15:
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(float(f"{abs(value):.3g}"))))
    return f"{value:,.{digits}f}"


def count(value: float) -> str:
    """A whole number in full, thousands grouped."""
    return f"{round(value):,}"


def with_interval(text: str, ends: Interval, factor: float = 1.0) -> str:
    """``12.3 ms (11.6-13.1)``: a text, and the ends in units of ``factor``."""
    if ends is None:
        return text
    return f"{text} ({number(ends[0] / factor)}-{number(ends[1] / factor)})"


def seconds(value: float, interval: Interval = None) -> str:
    """A duration: ``812 us``, ``6.12 ms``, ``1.50 h``; ``12.3 ms (11.6-13.1)`` with an interval."""
    return _scaled(value, _SECONDS, interval)


def data(value: float) -> str:
    """Bytes in decimal units: ``16.1 GB`` is 16.1e9 bytes."""
    return _scaled(value, tuple((factor, f"{prefix}B") for factor, prefix in _DECIMAL))


def memory(value: float) -> str:
    """Bytes in decimal and binary units: ``16.1 GB (15.0 GiB)``."""
    if value < 1024:
        return data(value)
    return f"{data(value)} ({_scaled(value, _BINARY)})"


def gib(value: float) -> str:
    """Bytes in units of 1024^3: ``80.0 GiB``."""
    return f"{number(value / 1024**3)} GiB"


def tera(value: float) -> str:
    """The number of trillions in a value, for columns whose title says the unit."""
    return number(value / 1e12)


def flops(value: float) -> str:
    """Floating-point operations: ``15.9 TFLOP``."""
    return _prefixed(value, "FLOP")


def joules(value: float, interval: Interval = None) -> str:
    """Energy: ``12.0 mJ``, ``3.20 kJ (2.90-3.60)``."""
    return _scaled(value, tuple((f, f"{p}J") for f, p in (*_SMALL, *_DECIMAL)), interval)


def watts(value: float) -> str:
    """Power: ``412 W``."""
    return f"{number(value)} W"


def hertz(value: float) -> str:
    """Frequency: ``1.98 GHz``."""
    return _prefixed(value, "Hz")


def grams(value: float) -> str:
    """Mass: ``3.20 mg``, ``12.0 g``, ``1.50 kg``."""
    return _scaled(value, tuple((f, f"{p}g") for f, p in (*_SMALL, *_DECIMAL[:3])))


def share(value: float) -> str:
    """A fraction of one as a percentage that never rounds a part up to 100% or down to 0%."""
    percent = 100 * value
    if percent > 0 and percent < 0.05:
        return "<0.1%"
    if percent < 100 and percent >= 99.95:
        return ">99.9%"
    return f"{percent:.1f}%" if percent < 100 else f"{percent:.0f}%"


def parameters(value: float) -> str:
    """A parameter count: ``8.03 B``, ``124 M``."""
    return _scaled(value, ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "B"), (1e12, "T")))


def text(value: Any) -> str:
    """Any value in words: yes and no, ``-`` for what is absent, ``name=value`` for mappings."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={text(item)}" for key, item in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(text, value)) or "-"
    return str(value)


def _prefixed(value: float, unit: str) -> str:
    return _scaled(value, tuple((factor, f"{prefix}{unit}") for factor, prefix in _DECIMAL))


def _scaled(value: float, units: tuple[tuple[float, str], ...], interval: Interval = None) -> str:
    if value == 0 or not math.isfinite(value):
        unit = next((name for factor, name in units if factor == 1.0), units[0][1])
        return with_interval(f"{number(value)} {unit}".strip(), interval)
    rounded = float(f"{value:.3g}")
    factor, unit = units[0]
    for candidate, name in units:
        if abs(rounded) >= candidate * (1 - 1e-9):
            factor, unit = candidate, name
    return with_interval(f"{number(value / factor)} {unit}".strip(), interval, factor)
