"""What the text of an option stands for, where several commands read it alike."""

from __future__ import annotations

from hymell.errors import HymellError

_BYTES_PER_GB = 1e9


def dtype_of(name: str) -> str | None:
    """What ``--dtype`` names, None for the checkpoint's own format."""
    return None if name == "auto" else name


def pool_bytes(gb: float | None) -> float | None:
    """The KV pool of ``--kv-pool-gb`` in bytes, None where none is given."""
    return None if gb is None else gb * _BYTES_PER_GB


def listed(text: str) -> list[str]:
    """What stands between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(option: str, text: str, example: str) -> list[int]:
    """Whole numbers between commas. Raises HymellError, with the example, for anything else."""
    try:
        return [int(part) for part in listed(text)]
    except ValueError:
        raise HymellError(f"--{option} {text}: give whole numbers, e.g. {example}") from None
