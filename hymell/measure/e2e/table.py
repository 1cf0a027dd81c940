"""The tidy table of whole-model runs: one row per configuration that somebody measured."""

from __future__ import annotations

from typing import Final

#: The ``op`` of a `Table` of runs and of their tallies.
WHOLE_MODEL: Final = "whole_model"

#: Strings. ``set`` is the table that the row stands in and ``source`` who measured. ``engine`` is
#: hymell's name of what ran, "" where hymell has none. ``model`` is upstream's name of the model
#: and ``zoo`` the known model of the same shape, "" where the zoo has none. ``task`` is the kind of
#: requests, ``run`` what groups the requests of one server, both "" where there is no such thing.
LABELS: Final = (
    "set",
    "source",
    "gpu",
    "library",
    "version",
    "engine",
    "model",
    "zoo",
    "dtype",
    "task",
    "run",
)

#: float64. ``n_gpus`` is `tp` x `pp` x `dp`: ``tp`` GPUs share the attention of a layer, ``pp`` the
#: layers, ``dp`` the sequences; whole experts are spread over ``ep`` of them (1: not at all).
#: ``batch`` counts the sequences in flight on all of them (NaN where a server took what came),
#: ``prompt`` and ``output`` the tokens of one, ``context`` how many
#: it has in the cache on average over its decode (prompt + output / 2 unless upstream says more);
#: NaN where not stated.
SIZES: Final = ("n_gpus", "tp", "pp", "ep", "dp", "batch", "prompt", "output", "context")

#: float64, NaN where not measured. ``latency_s`` is that of a whole run, prompt and output;
#: ``tpot_s`` is per output token of a sequence. ``throughput`` is output tokens per second of the
#: whole batch. ``energy_j`` is of a whole run of the whole batch, ``energy_per_token_j`` per output
#: token, ``power_w`` the sum over the GPUs.
MEASURED: Final = (
    "ttft_s",
    "tpot_s",
    "latency_s",
    "throughput",
    "energy_j",
    "energy_per_token_j",
    "power_w",
)

ENERGY: Final = ("energy_j", "energy_per_token_j", "power_w")

#: float64, what peers predict of the row (NeuSight's paper), NaN elsewhere.
PEERS: Final = ("p_neusight_s", "p_roofline_s", "p_habitat_s", "p_micro_s")

#: bool. ``kv_cache`` False: every token recomputes the whole prefix. ``queued``: under load, so
#: ``ttft_s`` holds waiting. ``prompt_stated`` False: ``prompt`` is a typical length of the task.
FLAGS: Final = ("kv_cache", "queued", "prompt_stated")

#: ``arrival_s`` is when the request came, counted from the first of its run, NaN elsewhere.
#: ``repeats`` counts the measurements of the row, ``spread`` is their (max - min) / mean, or
#: upstream's coefficient of variation; 0 for one.
RUN_COLUMNS: Final = (
    *LABELS,
    *SIZES,
    *MEASURED,
    *PEERS,
    *FLAGS,
    "arrival_s",
    "repeats",
    "spread",
    "file",
)
