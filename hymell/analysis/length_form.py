"""Cost per output token as a formula of the lengths: three coefficients per model and GPU.

With a KV cache a sequence of ``i`` prompt and ``o`` output tokens costs

    o * (per_output + per_input * i / o + per_context * (i + o / 2))

reading the weights and launching kernels once per output token, computing each prompt token once,
and reading the cache once per output token, ``i + o / 2`` tokens long on average. The terms are
those of SweetSpot (arXiv 2602.05695) without the attention among prompt tokens, which grows with
``i ** 2`` and is small beside the rest up to some thousand tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hymell.errors import HymellError
from hymell.estimators.nonnegative import nonnegative_least_squares

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LengthForm:
    """A fitted form; coefficients are J or s per token, whatever the fitted costs were in.

    ``per_output`` per output token, ``per_input`` per prompt token, ``per_context`` per output
    token and token in the cache. ``mape`` and ``max_error`` (% of the cost) are over the ``points``
    that it was fitted to.
    """

    per_output: float
    per_input: float
    per_context: float
    mape: float
    max_error: float
    points: int

    def cost(self, inputs: ArrayLike, outputs: ArrayLike) -> Array:
        """Cost per output token of sequences of these lengths; arrays broadcast."""
        i, o = np.broadcast_arrays(np.asarray(inputs, float), np.asarray(outputs, float))
        held = np.array([self.per_output, self.per_input, self.per_context])
        return np.asarray(cache_terms(i.reshape(-1), o.reshape(-1)) @ held).reshape(i.shape)

    def best_output(self, inputs: ArrayLike) -> Array:
        """The output length of least cost per output token for each prompt length.

        Infinite where the cost does not grow with the cache: the longer, the cheaper.
        """
        i = np.asarray(inputs, dtype=np.float64)
        if self.per_context == 0:
            return np.full(i.shape, np.inf)
        return np.asarray(np.sqrt(2 * self.per_input * i / self.per_context))


def fit_length_form(inputs: Array, outputs: Array, costs: Array) -> LengthForm:
    """The form of least squared relative error; ``costs`` are per output token.

    Raises HymellError for fewer than three points: nothing would be left to judge the form by.
    """
    if len(costs) < 3:
        raise HymellError(
            f"only {len(costs)} of the pairs of lengths can run, too few for the length form; "
            "give at least 3 that fit the GPU and the model"
        )
    terms = cache_terms(inputs, outputs)
    held = fit_relative(terms, costs)
    errors = 100 * np.abs(terms @ held / costs - 1)
    return LengthForm(
        per_output=float(held[0]),
        per_input=float(held[1]),
        per_context=float(held[2]),
        mape=float(errors.mean()),
        max_error=float(errors.max()),
        points=len(costs),
    )


def fit_relative(terms: Array, costs: Array) -> Array:
    """Coefficients, none negative, of least squared relative error of ``terms @ coefficients``.

    All sets of non-zero ones are tried (`nonnegative_least_squares`).
    """
    return nonnegative_least_squares(terms / costs[:, None], np.ones(len(costs)))


def cache_terms(i: Array, o: Array) -> Array:
    """What the three coefficients are multiplied with, one row per pair of lengths."""
    return np.stack((np.ones(len(i)), i / o, i + o / 2), axis=1)
