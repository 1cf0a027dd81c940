"""Renderers: units, layout, escaping, and the JSON schema."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from synthetic_report import MODEL, synthetic_report, too_large, toy_graph, with_unknown

from hymell.cost_report import BlockCost, CostReport
from hymell.estimators.predict import predict_graph
from hymell.hardware import find_gpu
from hymell.op_registry.engines import get_engine
from hymell.report import units
from hymell.report.csv_ import to_csv
from hymell.report.document import Column, Document, Table
from hymell.report.json_ import error_to_json, to_json
from hymell.report.kernel_text import formats_text, sizes_text
from hymell.report.listings import blocks_view, kernels_view
from hymell.report.markdown import to_markdown
from hymell.report.notebook import to_html
from hymell.report.summary import TOP_KERNELS, report_view
from hymell.report.terminal import PIPE_WIDTH, to_text
from hymell.workload import Workload

SCHEMA = json.loads(
    (Path(__file__).parents[1] / "docs" / "report.schema.json").read_text(encoding="utf-8")
)
PRICE = {"per_request": 0.00056, "per_million_output_tokens": 4.34}
EVIL = "<script>alert(1)</script>|`*x*`"


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (units.number, 0, "0"),
        (units.number, 0.012345, "0.0123"),
        (units.number, 12.345, "12.3"),
        (units.number, 999.6, "1,000"),
        (units.number, 1234567.0, "1,234,567"),
        (units.seconds, 0.00612, "6.12 ms"),
        (units.seconds, 0.9996, "1.00 s"),
        (units.seconds, 0.0, "0 s"),
        (units.seconds, 3.2e-7, "320 ns"),
        (units.seconds, 7200.0, "2.00 h"),
        (units.data, 16.06e9, "16.1 GB"),
        (units.memory, 85899345920, "85.9 GB (80.0 GiB)"),
        (units.memory, 0, "0 B"),
        (units.gib, 85899345920, "80.0 GiB"),
        (units.flops, 1.59193e13, "15.9 TFLOP"),
        (units.joules, 0.0042, "4.20 mJ"),
        (units.grams, 1500, "1.50 kg"),
        (units.parameters, 8_030_261_248, "8.03 B"),
        (units.parameters, 124_439_808, "124 M"),
        (units.share, 1.0, "100%"),
        (units.share, 0.99999, ">99.9%"),
        (units.share, 0.00001, "<0.1%"),
        (units.share, 0.0, "0.0%"),
        (units.text, None, "-"),
        (units.text, True, "yes"),
        (units.text, {"a": 1, "b": [1.5, "c"]}, "a=1, b=1.50, c"),
    ],
)
def test_units(show: Any, value: Any, text: str) -> None:
    assert show(value) == text


@given(st.floats(min_value=1e-9, max_value=1e12))
def test_a_duration_reads_back_to_three_digits(value: float) -> None:
    amount, unit = units.seconds(value).split(" ")
    factor = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "h": 3600.0}[unit]
    assert float(amount.replace(",", "")) * factor == pytest.approx(value, rel=0.006)


def test_terminal_text_is_complete_and_narrow() -> None:
    carbon = {"per_request": 0.03, "per_million_output_tokens": 234.0}
    report = synthetic_report(cost=PRICE, gco2=carbon)
    text = to_text(report_view(report).document)
    lines = text.splitlines()
    assert lines[0] == MODEL
    assert max(map(len, lines)) <= PIPE_WIDTH
    assert all(line == line.rstrip() for line in lines)
    for expected in (
        "h100-sxm, vllm, bfloat16; batch 1, prompt 1024, output 128",
        "23.4 ms",
        "6.12 ms",
        "2.51 J",
        "uncalibrated",
        "fits, largest batch 404",
        "16.9 GB (15.7 GiB)",
        "m=B*S n=6144 k=4096",
        "routing: uniform",
        "outside kernels",
        "0.000560",
        "30.0 mg",
        "per request; 234 g per million output tokens",
    ):
        assert expected in text


def test_a_report_without_decode_has_no_tpot() -> None:
    report = synthetic_report()
    prefill_only = replace(
        report,
        tpot_s=None,
        blocks=tuple(b for b in report.blocks if b.phase == "prefill"),
        kernels=tuple(k for k in report.kernels if k.phase == "prefill"),
    )
    text = to_text(report_view(prefill_only).document)
    assert "TPOT" not in text
    assert "Decode" not in text


def test_an_encoder_has_no_figures_per_output_token() -> None:
    report = synthetic_report(tpot_s=None)
    encoder = replace(report, decode=replace(report.decode, steps=0))
    text = to_text(report_view(encoder).document)
    assert "tokens/s" not in text
    assert "Energy per token" not in text
    one_token = replace(encoder, workload={"batch": 1, "prompt": 1024, "output": 1})
    assert "tokens/s" in to_text(report_view(one_token).document)


def test_what_does_not_fit_and_what_is_unknown_is_said() -> None:
    text = to_text(report_view(with_unknown(too_large(synthetic_report()))).document)
    assert "DOES NOT FIT, no batch does" in text
    assert "12 GPUs of this size" in text
    assert "not understood: mylib.secret.default, 32 times, 4.0% of bytes" in text
    assert "understood: 90.0% of ops" in text


def test_only_the_slowest_kernels_are_shown_and_the_rest_counted() -> None:
    report = synthetic_report()
    first = report.kernels[0]
    many = tuple(replace(first, name=f"k{i}", time_s=float(i)) for i in range(20))
    text = to_text(report_view(replace(report, kernels=many)).document)
    assert "k19" in text
    assert "k3 " not in text
    assert f"{20 - TOP_KERNELS} more" in text


def test_colour_only_where_asked_and_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    document = report_view(synthetic_report()).document
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert "\x1b[" not in to_text(document)
    assert "\x1b[1;36m" in to_text(document, color=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "36m" not in to_text(document, color=True)


def test_ascii_only_text_is_ascii() -> None:
    document = report_view(synthetic_report()).document
    assert to_text(document, ascii_only=True).isascii()
    assert "###" in to_text(document, ascii_only=True)


def test_long_identifiers_are_never_shortened() -> None:
    name = "n" * 150
    table = Table("", (Column("a", "A", whole=True), Column("b", "B")), ({"a": name, "b": "x y"},))
    assert name in to_text(Document("t", (table,)))


def test_rich_markup_in_names_is_text() -> None:
    text = to_text(report_view(synthetic_report(model="[bold]x[/bold]")).document)
    assert text.startswith("[bold]x[/bold]\n")


def test_an_empty_table_says_so() -> None:
    document = Document("t", (Table("Empty", (Column("a", "A"),), ()),))
    assert "(none)" in to_text(document)
    assert "(none)" in to_markdown(document)


def test_markdown_escapes_text_and_keeps_tables_whole() -> None:
    document = Document(
        EVIL,
        (Table("T", (Column("a", "A"), Column("b", "B", code=True)), ({"a": EVIL, "b": "x|y"},)),),
    )
    lines = to_markdown(document).splitlines()
    assert lines[0] == r"# \<script\>alert(1)\</script\>\|\`\*x\*\`"
    row = lines[-1]
    assert row.endswith(r"| `x\|y` |")
    assert row.replace(r"\|", "").count("|") == 3


def test_markdown_report_has_every_section() -> None:
    text = to_markdown(report_view(synthetic_report(warnings=("mind this",))).document)
    for heading in ("Where the time goes", "Top kernels", "Memory", "Assumptions", "Warnings"):
        assert f"## {heading}\n" in text
    assert "`m=B*S n=6144 k=4096`" in text


def test_csv_of_kernels_reads_back() -> None:
    report = synthetic_report()
    rows = list(csv.DictReader(io.StringIO(to_csv(kernels_view(report).records))))
    assert len(rows) == len(report.kernels)
    assert [row["name"] for row in rows] == [kernel.name for kernel in report.kernels]
    assert float(rows[0]["time_s"]) == report.kernels[0].time_s
    assert rows[0]["sizes.m"] == "B*S"


def test_csv_of_a_report_is_one_flat_record() -> None:
    text = to_csv(report_view(synthetic_report(warnings=('say "a", b', "c"))).records)
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["model"] == MODEL
    assert float(row["prefill.time_s"]) == 0.0234
    assert row["workload.output"] == "128"
    assert row["memory.fits"] == "True"
    assert row["warnings"] == 'say "a", b; c'


def test_kernels_are_grouped_by_layer_in_launch_order() -> None:
    view = kernels_view(synthetic_report())
    titles = [section.title for section in view.document.sections]
    assert titles == [
        "Prefill: LlamaDecoderLayer (model.layers.0)",
        "Prefill: outside the layers",
        "Decode: LlamaDecoderLayer (model.layers.0)",
        "Decode: outside the layers",
        "",
    ]
    assert [kernel["name"] for kernel in view.data["kernels"]][:4] == [
        "qkv",
        "attention",
        "gate_up",
        "lm_head",
    ]


def test_blocks_show_every_block_of_every_part() -> None:
    report = synthetic_report()
    vision = BlockCost("prefill", "ffn", "vision", 1.0, 1.0, 1e-3, 0.1, 0.0, 0.0)
    view = blocks_view(replace(report, blocks=(vision, *report.blocks)))
    text = to_text(view.document)
    assert "vision" in text
    assert len(view.records) == 7


def test_sizes_and_formats_in_words() -> None:
    sizes = {
        "m": "B*S",
        "n": "8",
        "batch": "1",
        "a_dtype": "bfloat16",
        "b_dtype": "mxfp4",
        "bias": "False",
        "gated": "True",
        "window": "None",
        "bytes_read": "2*B*S + 16",
    }
    assert sizes_text(sizes) == "m=B*S n=8 gated"
    assert formats_text(sizes) == "bf16 x mxfp4"
    assert formats_text({"dtype": "float16", "kv_dtype": "float16"}) == "fp16"
    assert formats_text({"math": "fp32"}) == "-"


def test_notebook_html_is_escaped_and_self_contained() -> None:
    report = synthetic_report(model=EVIL, warnings=(EVIL,))
    html = report._repr_html_()
    assert html == to_html(report)
    assert "<script" not in html
    assert "http" not in html

    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            if tag != "br":
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    parser = Tags()
    parser.feed(html)
    assert parser.open == []


@pytest.mark.parametrize(
    "report",
    [
        synthetic_report(),
        synthetic_report(tpot_s=None, kernels=(), blocks=()),
        synthetic_report(warnings=("w",), cost=PRICE, gco2=PRICE),
        with_unknown(too_large(synthetic_report())),
    ],
    ids=["plain", "no decode", "warnings, cost", "too large, unknown ops"],
)
def test_json_follows_the_schema(report: CostReport) -> None:
    data = json.loads(to_json(report_view(report).data))
    Draft202012Validator(SCHEMA).validate(data)
    assert data["kernels"] == json.loads(json.dumps(report.to_dict()["kernels"]))


@pytest.mark.parametrize("engine", ["eager", "vllm"])
@pytest.mark.parametrize("output", [1, 5])
def test_a_priced_graph_follows_the_schema(engine: str, output: int) -> None:
    report = predict_graph(
        toy_graph(),
        Workload(2, 64, output),
        gpu=find_gpu("h100-sxm"),
        engine=get_engine(engine),
        price_per_hour=2.0,
        gco2_per_kwh=300.0,
    )
    data = json.loads(to_json(report_view(report).data))
    Draft202012Validator(SCHEMA).validate(data)
    text = to_text(report_view(report).document)
    assert "not understood: mylib.secret.default, 3 times" in text


@pytest.mark.parametrize("field", ["extra", "ttft_s", "memory", "schema_version"])
def test_the_schema_refuses_what_it_does_not_describe(field: str) -> None:
    data = synthetic_report().to_dict()
    if field in data:
        del data[field]
    else:
        data[field] = 1
    assert not Draft202012Validator(SCHEMA).is_valid(data)


def test_the_schema_describes_every_field() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    undescribed = [path for path, node in _properties(SCHEMA, "") if "description" not in node]
    assert undescribed == []
    open_objects = [
        path
        for path, node in _properties(SCHEMA, "")
        if node.get("type") == "object" and "additionalProperties" not in node
    ]
    assert open_objects == []


def _properties(schema: Any, path: str) -> list[tuple[str, Any]]:
    found = []
    for name, node in schema.get("properties", {}).items():
        found.append((f"{path}.{name}", node))
        found += _properties(node, f"{path}.{name}")
    if "items" in schema:
        found += _properties(schema["items"], f"{path}[]")
    return found


def test_json_has_no_nan_and_takes_numpy_scalars() -> None:
    import numpy as np

    assert json.loads(to_json({"a": np.float64(1.5), "b": np.int64(2), "c": np.bool_(True)})) == {
        "a": 1.5,
        "b": 2,
        "c": True,
    }
    with pytest.raises(ValueError, match="JSON"):
        to_json({"a": float("nan")})
    with pytest.raises(TypeError):
        to_json({"a": object()})


def test_an_error_as_json() -> None:
    data = json.loads(error_to_json("TraceError", "no", 2))
    assert data == {"error": {"type": "TraceError", "message": "no", "exit_code": 2}}
