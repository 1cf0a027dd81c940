"""A small multilayer perceptron as plain arrays: forward pass in numpy, weights in safetensors.

Training is in `hymell.estimators.training`; nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Rows worked on together: their activations stay in a core's cache.
_BLOCK_ROWS = 512


def _silu(x: NDArray[np.float32]) -> None:
    """x / (1 + exp(-x)) in place, as x / 2 (1 + tanh(x / 2)): numpy's tanh is the faster one."""
    x *= 0.5
    gate = np.tanh(x)
    gate += 1.0
    x *= gate


@dataclass(frozen=True, slots=True)
class Mlp:
    """An ensemble of networks of one shape that predict a bounded log correction.

    ``mean``, ``scale``: standardisation of the features; ``low``, ``high``: the training range
    that inputs are clipped to; ``weights[l]`` is (members, in, out), ``biases[l]`` (members, out);
    the output is ``centre + spread * tanh-bounded net``, clipped to +-``bound``.
    """

    mean: Array
    scale: Array
    low: Array
    high: Array
    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    centre: float
    spread: float
    bound: float

    def predict(self, features: Array) -> tuple[Array, Array]:
        """(mean, standard deviation over the members) of the log correction, (rows,) each."""
        weights = [weight.astype(np.float32) for weight in self.weights]
        biases = [bias.astype(np.float32)[:, None] for bias in self.biases]
        low, high = self.low.astype(np.float32), self.high.astype(np.float32)
        # Standardisation is part of the first layer.
        shift = (self.mean / self.scale) @ self.weights[0]
        biases[0] = (self.biases[0] - shift).astype(np.float32)[:, None]
        weights[0] = (self.weights[0] / self.scale[:, None]).astype(np.float32)
        outputs = np.empty((len(weights[0]), len(features)), dtype=np.float32)
        for start in range(0, len(features), _BLOCK_ROWS):
            x = features[start : start + _BLOCK_ROWS].astype(np.float32)
            np.minimum(np.maximum(x, low, out=x), high, out=x)
            for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
                x = x @ weight
                x += bias
                _silu(x)
            outputs[:, start : start + _BLOCK_ROWS] = (x @ weights[-1] + biases[-1])[..., 0]
        outputs *= self.spread
        outputs += self.centre
        np.clip(outputs, -self.bound, self.bound, out=outputs)
        return outputs.mean(0), outputs.std(0)

    def to_arrays(self, prefix: str) -> dict[str, NDArray[np.float32]]:
        """Named float32 arrays, as safetensors keeps them."""
        arrays = {
            f"{prefix}.mean": self.mean,
            f"{prefix}.scale": self.scale,
            f"{prefix}.low": self.low,
            f"{prefix}.high": self.high,
            f"{prefix}.output": np.array([self.centre, self.spread, self.bound]),
        }
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            arrays[f"{prefix}.w{layer}"] = weight
            arrays[f"{prefix}.b{layer}"] = bias
        return {name: np.ascontiguousarray(a, dtype=np.float32) for name, a in arrays.items()}

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray[np.float32]], prefix: str) -> Mlp:
        """The inverse of `to_arrays`; KeyError when an array is missing."""
        get = {
            k.removeprefix(f"{prefix}."): np.asarray(v, dtype=np.float64)
            for k, v in arrays.items()
            if k.startswith(f"{prefix}.")
        }
        layers = sum(1 for name in get if name.startswith("w"))
        centre, spread, bound = (float(v) for v in get["output"])
        return Mlp(
            get["mean"],
            get["scale"],
            get["low"],
            get["high"],
            tuple(get[f"w{layer}"] for layer in range(layers)),
            tuple(get[f"b{layer}"] for layer in range(layers)),
            centre,
            spread,
            bound,
        )
