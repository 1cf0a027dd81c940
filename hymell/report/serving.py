"""A `Serving` as the page, the JSON and the CSV that `hymell serve` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hymell.report import units
from hymell.report.document import Column, Document, Fact, Facts, Notes, Section, Table, View
from hymell.report.summary import assumptions, setting_of

if TYPE_CHECKING:
    from hymell.analysis.serving import Serving, Spread

_NAMES = {
    "ttft": ("TTFT", "arrival to first token, waiting included"),
    "tpot": ("TPOT", "mean per further token of a request"),
    "latency": ("Latency", "arrival to last token"),
}


def serving_view(found: Serving) -> View:
    """Latencies over requests, throughput, the server's state; CSV has the requests."""
    data = found.to_dict()
    return View(_document(found), data, data["requests"])


def _document(found: Serving) -> Document:
    sections: list[Section] = [_headline(found)]
    if found.warnings:
        sections.append(Notes("Warnings", found.warnings))
    sections += [_latencies(found), _server(found)]
    sections.append(Notes("Assumptions", assumptions(found.assumptions)))
    where = setting_of(found.gpu, found.engine, found.dtype, found.parallel)
    return Document(f"Serving {found.model}", tuple(sections), f"{where}; {_load(found)}")


def _load(found: Serving) -> str:
    count = f"{len(found.requests):,} requests"
    if found.offered_per_s is None:
        return f"{count} at once"
    return f"{count}, {units.number(found.offered_per_s)} per second"


def _headline(found: Serving) -> Facts:
    facts = [
        Fact("TTFT", units.seconds(found.ttft.mean_s), f"mean; {_NAMES['ttft'][1]}"),
        Fact(
            "Throughput",
            f"{units.number(found.output_tokens_per_s)} tokens/s",
            f"output tokens; {units.number(found.requests_per_s)} requests per second served",
        ),
    ]
    if found.tpot is not None:
        tpot = Fact("TPOT", units.seconds(found.tpot.mean_s), f"mean; {_NAMES['tpot'][1]}")
        facts.insert(1, tpot)
    return Facts("", tuple(facts))


def _latencies(found: Serving) -> Table:
    columns = (
        Column("what", "Over requests"),
        *(
            Column(key, title, units.seconds, right=True)
            for key, title in (
                ("mean_s", "Mean"),
                ("p50_s", "P50"),
                ("p99_s", "P99"),
                ("max_s", "Largest"),
            )
        ),
    )
    spreads: dict[str, Spread | None] = {
        "ttft": found.ttft,
        "tpot": found.tpot,
        "latency": found.latency,
    }
    rows: list[dict[str, Any]] = [
        {
            "what": _NAMES[name][0],
            "mean_s": spread.mean_s,
            "p50_s": spread.p50_s,
            "p99_s": spread.p99_s,
            "max_s": spread.max_s,
        }
        for name, spread in spreads.items()
        if spread is not None
    ]
    return Table("Latencies", columns, tuple(rows))


def _server(found: Serving) -> Facts:
    return Facts(
        "Server",
        (
            Fact("Duration", units.seconds(found.duration_s), "first arrival to last token"),
            Fact(
                "Running",
                units.number(found.mean_running),
                f"requests in a step on average, {found.max_num_seqs} at most per replica",
            ),
            Fact(
                "Steps",
                units.count(found.steps),
                f"{units.seconds(found.mean_step_s)} on average, "
                f"{found.max_num_batched_tokens} tokens at most",
            ),
            Fact(
                "KV pool",
                units.memory(found.kv_pool_bytes),
                f"per GPU, about {found.kv_pool_tokens:,} tokens; at most "
                f"{units.share(found.peak_kv_share)} of it used",
            ),
            Fact("Preemptions", units.count(found.preemptions), "caches given back and redone"),
        ),
    )
