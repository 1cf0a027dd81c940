"""README and docs are true: their code runs, their commands work, their output is real."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from doc_blocks import FENCED, PAGES, ROOT, Block, blocks, printed

from hymell.cli import main
from hymell.op_registry import (
    engines,
    lower,  # noqa: F401  (importing registers what hymell knows, which must outlive a snippet)
    registry,
)
from hymell.op_registry.opaque import OPAQUE_MODULES

BLOCKS = [block for page in PAGES for block in blocks(page)]
SNIPPETS = [block for block in BLOCKS if block.kind == "python test"]
COMMANDS = [
    line
    for block in BLOCKS
    if block.kind == "sh"
    for line in block.text.splitlines()
    if line.startswith("hymell ")
]
OUTPUTS = [block for block in BLOCKS if block.kind.startswith("console")]

_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.fixture
def _registries() -> Iterator[None]:
    """What a snippet registers is gone after it."""
    tables: tuple[dict[object, object], ...] = (
        registry.LOWERINGS,  # type: ignore[assignment]
        OPAQUE_MODULES,  # type: ignore[assignment]
        engines._ENGINES,  # type: ignore[assignment]
    )
    kept = [dict(table) for table in tables]
    yield
    for table, before in zip(tables, kept, strict=True):
        table.clear()
        table.update(before)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=str)
@pytest.mark.usefixtures("_registries")
def test_snippet_runs(snippet: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Blank lines put the snippet where it stands in its page, so that a failure names the line.
    source = "\n" * (snippet.line - 1) + snippet.text
    exec(compile(source, str(snippet.page), "exec"), {"__name__": "snippet"})


@pytest.mark.parametrize("line", COMMANDS)
def test_command_works(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Commands name the examples as they lie beside the page's own project.
    Path("examples").symlink_to(ROOT / "examples")
    assert main(shlex.split(line, comments=True)[1:]) == 0


@pytest.mark.parametrize("block", OUTPUTS, ids=str)
def test_output_is_what_is_printed(block: Block) -> None:
    assert block.text == printed(block), "`make docs` renews it"


def test_readme_opens_with_the_two_commands_and_output() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40])
    assert "$ make report\n" in first_screen
    assert "make test" in first_screen
    assert "TTFT" in first_screen


def test_documented_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name
        for page in PAGES
        for name in re.findall(r"(?:^|`|\$ )make ([a-z]+)", page.read_text(), re.MULTILINE)
    }
    assert {"report", "test"} <= named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    missing = [
        link
        for link in _LINK.findall(text)
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert not missing


def test_report_page_names_every_field_of_the_schema() -> None:
    schema = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)`", page, re.MULTILINE) == list(schema["properties"])


def test_engines_page_states_the_overheads_of_the_code() -> None:
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    for engine in engines.ENGINES.values():
        costs = engine.overheads
        row = (
            f"| `{engine.name}` | {costs.host_s_per_launch * 1e6:g} | {costs.gap_s * 1e6:g} "
            f"| {costs.step_s * 1e6:g} | {'yes' if costs.cuda_graphs_in_decode else 'no'} "
            f"| {engine.memory_fraction:g} |"
        )
        assert row in page, row


def test_readme_states_the_error_of_whole_models_that_the_benchmark_wrote() -> None:
    words = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    records = json.loads((ROOT / "docs" / "accuracy_end_to_end.json").read_text(encoding="utf-8"))
    errors = {
        record["estimator"]: record["mape"]
        for record in records
        if record["set"] == "argonne: latency, 1 GPU"
        and (record["gpu"], record["library"]) == ("h100-sxm", "vllm")
    }
    assert (
        f"latency was {errors['fitted system']:.1f}% off for vLLM on one H100 (Argonne's runs of "
        f"2024; kernels with typical overheads {errors['level-1 composition']:.1f}%, the data "
        f"sheet {errors['data sheet']:.1f}%)"
    ) in words


def test_engines_page_names_every_fusion_rule() -> None:
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\|[^|\n]+\| `(\w+)`", page, re.MULTILINE)) | {"launch_experts"}
    assert named == {_rule_name(rule) for e in engines.ENGINES.values() for rule in e.rules}


def _rule_name(rule: Callable[..., object]) -> str:
    """The name of a rule, of what a partial calls, or of the function that made a closure."""
    function = rule.func if isinstance(rule, functools.partial) else rule
    return function.__qualname__.split(".")[0]
