"""Image and audio inputs of the size a model's config names, on meta.

One image per sequence, at the config's own size; models that take any size get 448 x 448 pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hymell.tracer.session import Session

#: Side of an image, in pixels, where the config fixes none.
_FREE_SIZE = 448
#: Samples of 10 seconds of 16 kHz audio, for encoders of raw waveforms.
_WAVEFORM = 160_000


def image_inputs(
    session: Session,
    config: Any,
    parameters: Mapping[str, Any],
    batch: int,
    dtype: torch.dtype,
    outer: Any = None,
) -> dict[str, Any]:
    """Keyword arguments that carry one image per sequence, by what the forward takes."""
    with session.capture.paused():
        return _image_inputs(session, config, parameters, batch, dtype, outer)


def _image_inputs(
    session: Session,
    config: Any,
    parameters: Mapping[str, Any],
    batch: int,
    dtype: torch.dtype,
    outer: Any,
) -> dict[str, Any]:
    channels = getattr(config, "num_channels", None) or getattr(config, "in_channels", None) or 3
    height, width = image_size(config)
    grid = next((n for n in ("image_grid_thw", "grid_thw") if n in parameters), None)
    if grid is not None:
        return _patches(session, config, grid, batch, channels, height, width, dtype)
    if "image_position_ids" in parameters:
        return _positioned_patches(session, config, outer, batch, channels, dtype)
    arguments: dict[str, Any] = {}
    shape: tuple[int, ...] = (batch, channels, height, width)
    crops = getattr(outer, "image_grid_pinpoints", None)
    if crops and "image_sizes" in parameters:
        # The whole image at low resolution and its 2 x 2 crops, as LLaVA-NeXT cuts it.
        shape = (batch, 5, channels, height, width)
        arguments["image_sizes"] = torch.tensor([[2 * height, 2 * width]] * batch, device="cpu")
    elif "image_sizes" in parameters:
        arguments["image_sizes"] = torch.tensor([[height, width]] * batch, device="cpu")
    arguments["pixel_values"] = session.input("pixel_values", *shape, dtype=dtype)
    return arguments


def image_size(config: Any) -> tuple[int, int]:
    """(height, width) in pixels that a vision config names."""
    size = getattr(config, "image_size", None)
    if isinstance(size, dict):
        return int(size.get("height", _FREE_SIZE)), int(size.get("width", _FREE_SIZE))
    if isinstance(size, (list, tuple)) and size:
        return int(size[0]), int(size[-1])
    return (int(size), int(size)) if size else (_FREE_SIZE, _FREE_SIZE)


def _patches(
    session: Session,
    config: Any,
    grid_name: str,
    batch: int,
    channels: int,
    height: int,
    width: int,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """Flattened patches and their (time, height, width) grid, as Qwen-VL takes them.

    The images are the frames of one entry: frames attend within themselves as images do, and no
    Python loop over entries makes the graph grow with the batch.
    """
    patch = config.patch_size
    patch = patch if isinstance(patch, int) else patch[-1]
    merge = getattr(config, "spatial_merge_size", None) or 1
    rows, columns = (max(merge, size // patch // merge * merge) for size in (height, width))
    frames = getattr(config, "temporal_patch_size", None)
    count = batch * rows * columns
    shape: tuple[int, ...] = (count, channels, patch, patch)
    if frames:
        shape = (count, channels * frames * patch * patch)
    return {
        "pixel_values": session.input("pixel_values", *shape, dtype=dtype),
        grid_name: torch.tensor([[batch, rows, columns]], device="cpu"),
    }


def _positioned_patches(
    session: Session, config: Any, outer: Any, batch: int, channels: int, dtype: torch.dtype
) -> dict[str, Any]:
    """Flattened patches with their (x, y) positions, as Gemma 4 takes them: a square image."""
    pool = getattr(config, "pooling_kernel_size", None) or 1
    tokens = getattr(outer, "vision_soft_tokens_per_image", None) or 256
    side = int(tokens**0.5) * pool
    values = channels * config.patch_size * config.patch_size
    steps = torch.arange(side, device="cpu")
    positions = torch.cartesian_prod(steps, steps).expand(batch, -1, -1)
    return {
        "pixel_values": session.input("pixel_values", batch, side * side, values, dtype=dtype),
        "image_position_ids": positions,
    }


def spectrogram_shape(config: Any, name: str, batch: int) -> tuple[int, ...]:
    """Shape of an audio encoder's input: a waveform, or mel bins by frames."""
    if name == "input_values":
        return (batch, _WAVEFORM)
    bins = getattr(config, "num_mel_bins", None) or 80
    positions = getattr(config, "max_source_positions", None) or 1500
    # Whisper's second convolution halves the frames.
    return (batch, bins, 2 * positions)
