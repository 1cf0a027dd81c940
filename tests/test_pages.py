"""HTML pages and timelines: self-contained, escaped, whole; and as a browser shows them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import browser
import pytest

import hymell
from hymell.analysis.context_curve import prompts_of
from hymell.cli import main
from hymell.errors import HymellError
from hymell.hardware import find_gpu
from hymell.report import figures, html
from hymell.report import sweep as sweep_report
from hymell.report.chrome_trace import launches, to_chrome_trace
from hymell.report.html_report import compare_page, report_page, sweep_page
from hymell.workload import Workload

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

    from hymell.analysis.sweep.result import SweepResult

MODEL = "llama-3-8b"
WORKLOAD = Workload(2, 512, 16)


class Page(HTMLParser):
    """Tags that are open, ids, texts by tag, and whatever a browser would fetch."""

    VOID = frozenset({"meta", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.fetched: list[str] = []
        self.tags: Counter[str] = Counter()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags[tag] += 1
        if tag not in self.VOID:
            self.open.append(tag)
        if (name := found.get("id")) is not None:
            self.ids[name] += 1
        places = [found.get(name) for name in ("src", "href", "xlink:href", "action")]
        self.fetched += [p for p in places if p and not p.startswith(("#", "data:"))]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    report = hymell.predict(MODEL, WORKLOAD)
    graph = hymell.trace(MODEL)
    from hymell import api

    curve = api.over_context(graph, WORKLOAD)
    spot = hymell.sweet_spot(graph, batch=2)
    return report_page(report, find_gpu("h100-sxm"), curve, spot, "hymell report llama-3-8b")


def test_a_page_is_well_formed_and_needs_nothing_else(page: str) -> None:
    found = Page(page)
    assert found.open == []
    assert found.fetched == []
    assert [name for name, times in found.ids.items() if times > 1] == []
    assert found.tags["svg"] == 4
    assert "url(http" not in page
    assert "@import" not in page
    assert "hymell report llama-3-8b" in page
    # Every reference of a drawing is to something of the page.
    for name in re.findall(r'(?:href="#|url\(#)([^")]+)', page):
        assert name in found.ids, name


def test_every_number_of_the_report_is_on_the_page(page: str) -> None:
    report = hymell.predict(MODEL, WORKLOAD)
    for kernel in report.kernels:
        assert kernel.name in page
        assert f'data-value="{kernel.time_s}"' in page
    for line in report.assumptions:
        assert line.replace("_", " ") in page


def test_text_is_escaped() -> None:
    evil = "<script>alert(1)</script>\"'&"
    report = replace(hymell.predict(MODEL, WORKLOAD), model=evil, warnings=(evil,))
    text = report_page(report, find_gpu("h100-sxm"), command=evil)
    assert "<script>alert" not in text
    assert Page(text).tags["script"] == 1


def test_a_model_that_does_not_generate_has_a_page() -> None:
    report = hymell.predict("bert-base-uncased", Workload(2, 128, 1))
    assert Page(report_page(report, find_gpu("h100-sxm"))).tags["svg"] == 2


def test_shares_of_the_bars_are_those_of_the_phase() -> None:
    report = hymell.predict(MODEL, WORKLOAD)
    blocks = [*dict.fromkeys(b.block for b in report.blocks), "outside kernels"]
    for phase in ("prefill", "decode"):
        whole = sum(figures.share_of(report, block, phase, "time_s") for block in blocks)
        assert whole == pytest.approx(1.0)


def test_roofs_are_those_of_the_formats_in_use() -> None:
    gpu = find_gpu("h100-sxm")
    report = hymell.predict(MODEL, WORKLOAD)
    assert figures.roofs(report, gpu) == [("bf16", gpu.peak_flops["bf16"])]
    names = [name for name, _ in figures.roofs(replace(report, dtype="fp8"), gpu)]
    assert names == ["bf16", "fp8"]


def test_prompts_stay_within_the_model() -> None:
    graph = hymell.trace(MODEL)
    assert prompts_of(graph, 128)[-1] == 4096
    assert prompts_of(graph, 8100) == (128,)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "find_spec", lambda name: None)
    with pytest.raises(HymellError, match=r"hymell\[html\]"):
        html.check_html()


# --- the timeline -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["llama-3-8b", "gpt-oss-20b", "deepseek-v3", "t5-base"])
def test_a_timeline_has_every_launch_once_and_lasts_as_predicted(model: str) -> None:
    report = hymell.predict(model, Workload(1, 256, 2))
    for phase in ("prefill", "decode"):
        kernels = [k for k in report.kernels if k.phase == phase]
        times = Counter(id(kernel) for kernel, _ in launches(kernels))
        assert [times[id(k)] for k in kernels] == [k.repeat for k in kernels]
    events = [e for e in json.loads(to_chrome_trace(report))["traceEvents"] if e["ph"] == "X"]
    phases = {e["name"]: e for e in events if e["cat"] == "phase"}
    assert phases["prefill"]["dur"] == pytest.approx(1e6 * report.ttft_s)
    assert phases["one decode step"]["dur"] == pytest.approx(1e6 * report.decode.time_s)
    at = 0.0
    for event in (e for e in events if e["cat"] != "phase"):
        assert event["ts"] >= at - 1e-6
        at = event["ts"] + event["dur"]


def test_the_first_layer_has_the_norm_without_a_residual() -> None:
    report = hymell.predict("llama-3-8b", Workload(1, 256, 2))
    kernels = [k for k in report.kernels if k.phase == "decode" and k.layer]
    order = [(kernel.name, layer) for kernel, layer in launches(kernels)]
    assert order[0] == ("rms_norm", 0)
    assert [layer for _, layer in order] == sorted(layer for _, layer in order if layer is not None)


def test_a_timeline_of_many_steps_is_refused() -> None:
    with pytest.raises(HymellError, match="one decode step"):
        to_chrome_trace(hymell.predict(MODEL, WORKLOAD))


# --- the commands -----------------------------------------------------------------------------


def test_report_and_compare_write_their_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("r.html", "t.json", "c.html")]
    asked = ["report", MODEL, "--html", str(files[0]), "--chrome-trace", str(files[1])]
    assert main(asked) == 0
    assert main(["compare", MODEL, "qwen3-8b", "--html", str(files[2])]) == 0
    printed = capsys.readouterr()
    assert printed.err.count("hymell: wrote") == 3
    assert "TTFT" in printed.out
    assert Page(files[0].read_text()).tags["svg"] == 4
    assert Page(files[2].read_text()).tags["svg"] == 1
    assert len(json.loads(files[1].read_text())["traceEvents"]) > 300


@pytest.mark.parametrize("option", ["--html", "--chrome-trace"])
def test_a_page_that_cannot_be_written_ends_in_one_sentence(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (tmp_path, tmp_path / "nowhere" / "file"):
        assert main(["report", MODEL, option, str(place)]) == 2
        printed = capsys.readouterr()
        assert len(printed.err.strip().splitlines()) == 1
        assert printed.out == ""


# --- in a browser -----------------------------------------------------------------------------

no_browser = browser.missing()
in_browser = pytest.mark.skipif(bool(no_browser), reason=no_browser)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with browser.chromium(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture
def shown(driver: Chrome, page: str, tmp_path: Path) -> Chrome:
    file = tmp_path / "report.html"
    file.write_text(page)
    browser.resize(driver, 1200, 900)
    driver.get(file.as_uri())
    return driver


def find(driver: Chrome, css: str) -> list[WebElement]:
    return driver.find_elements("css selector", css)


def column(driver: Chrome, table: str, place: int) -> list[float]:
    cells = find(driver, f"{table} tbody td:nth-child({place})")
    return [float(cell.get_attribute("data-value")) for cell in cells]


@in_browser
def test_the_page_has_no_errors_and_fetches_nothing(shown: Chrome) -> None:
    assert shown.get_log("browser") == []
    fetched = shown.execute_script("return performance.getEntriesByType('resource').length")
    assert fetched == 0


@in_browser
@pytest.mark.parametrize("width", [360, 800, 1400])
@pytest.mark.parametrize("dark", [False, True])
def test_pictures_are_seen_at_every_width(shown: Chrome, width: int, dark: bool) -> None:
    browser.resize(shown, width, 900, dark=dark)
    pictures = find(shown, "figure svg")
    assert len(pictures) == 4
    for picture in pictures:
        box = picture.rect
        # On a phone a picture keeps its letters readable and is scrolled.
        assert min(0.6 * width, 544) <= box["width"] <= max(width, 544)
        assert box["height"] > 50
    # Nothing but wide tables scrolls sideways.
    over = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert shown.execute_script(over) <= 0
    assert contrast(shown, "body") > 7
    assert contrast(shown, "figcaption") > 4.5
    # Text of drawings has the page's ink.
    same = "const c = e => getComputedStyle(e); return [c(document.body).color,"
    ink, drawn = shown.execute_script(f"{same} c(document.querySelector('figure svg text')).fill]")
    assert ink == drawn


def contrast(driver: Chrome, css: str) -> float:
    """Contrast ratio of a text and the page, after WCAG 2.2."""
    script = (
        "const e = document.querySelector(arguments[0]), c = getComputedStyle;"
        "const numbers = text => text.match(/\\d+/g).map(Number);"
        "return [numbers(c(e).color), numbers(c(document.body).backgroundColor)]"
    )
    light = sorted(_luminance(colour) for colour in driver.execute_script(script, css))
    return (light[1] + 0.05) / (light[0] + 0.05)


def _luminance(colour: list[Any]) -> float:
    parts = [value / 255 for value in colour[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@in_browser
def test_tables_sort_both_ways_with_mouse_and_keyboard(shown: Chrome) -> None:
    from selenium.webdriver.common.keys import Keys

    heads = find(shown, "section:last-of-type th")
    table = f"#{find(shown, 'section:last-of-type table')[0].get_attribute('id')}"
    place = 1 + [head.text.split()[0] for head in heads].index("Time")
    before = column(shown, table, place)
    button = heads[place - 1].find_element("css selector", "button")
    button.click()
    assert column(shown, table, place) == sorted(before, reverse=True)
    assert heads[place - 1].get_attribute("aria-sort") == "descending"
    button.send_keys(Keys.ENTER)
    assert column(shown, table, place) == sorted(before)
    assert heads[place - 1].get_attribute("aria-sort") == "ascending"


@in_browser
def test_kernels_are_narrowed_by_what_is_typed(shown: Chrome) -> None:
    (field,) = find(shown, "input[type=search]")
    rows = len(find(shown, "section:last-of-type tbody tr"))
    field.send_keys("lm_head")
    left = [row for row in find(shown, "section:last-of-type tbody tr") if row.is_displayed()]
    assert len(left) == 2
    assert find(shown, "output")[0].text == f"2 of {rows} rows"


@in_browser
def test_everything_is_reached_by_keyboard(shown: Chrome) -> None:
    from selenium.webdriver.common.keys import Keys

    script = "return document.activeElement.outerHTML.slice(0, 60)"
    seen = set()
    for _ in range(80):
        shown.switch_to.active_element.send_keys(Keys.TAB)
        seen.add(shown.execute_script(script))
    wanted = len(find(shown, "th button")) and ("<a class", "<button", "<input", "<div class")
    assert all(any(each.startswith(tag) for each in seen) for tag in wanted)


@in_browser
def test_a_comparison_is_shown_without_errors(driver: Chrome, tmp_path: Path) -> None:
    found = hymell.compare(MODEL, WORKLOAD, gpus=["h100-sxm", "l40s", "a100-sxm-80gb"])
    file = tmp_path / "compare.html"
    file.write_text(compare_page(found, "hymell compare"))
    driver.get(file.as_uri())
    assert driver.get_log("browser") == []
    assert len(find(driver, "figure svg")) == 2


# --- sweeps -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept() -> SweepResult:
    return hymell.sweep(
        MODEL, {"num_key_value_heads": [1, 8, "hq"]}, gpu=["h100-sxm", "l40s"], batch=[1, 8]
    )


def test_a_sweep_has_a_page_with_its_points_and_intervals(swept: SweepResult) -> None:
    text = sweep_page(swept, "hymell sweep llama-3-8b")
    found = Page(text)
    assert found.open == []
    assert found.fetched == []
    assert [name for name, times in found.ids.items() if times > 1] == []
    assert found.tags["svg"] == 1
    for row in swept.rows():
        for name in ("tpot_s", "tpot_s_low", "energy_j_high"):
            assert f'data-value="{row[name]}"' in text
    assert "hymell sweep llama-3-8b" in text


@pytest.mark.parametrize("nothing", [{"pareto": ["tpot"]}, {"constraints": ["tpot_ms < 0.001"]}])
def test_a_sweep_without_a_front_to_draw_has_a_page(nothing: dict[str, list[str]]) -> None:
    found = hymell.sweep(MODEL, {"num_key_value_heads": [8]}, **nothing)
    page = Page(sweep_page(found))
    assert page.open == []
    assert page.tags["svg"] == 0


def test_many_points_are_cut_and_counted(
    swept: SweepResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_report, "MOST_POINTS", 5)
    table = sweep_report.points_table(swept)
    assert len(table.rows) == 5
    assert f"{swept.points - 5} more are in --csv and --out" in table.note
    assert table.rows[0] == swept.row(swept.front[0])


def test_the_command_writes_the_page_of_a_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.html"
    asked = ["sweep", MODEL, "--set", "num_key_value_heads=1,8", "--html", str(file)]
    assert main(asked) == 0
    printed = capsys.readouterr()
    assert f"hymell: wrote {file}" in printed.err
    assert "Pareto front" in printed.out
    assert Page(file.read_text()).tags["svg"] == 1


@in_browser
def test_a_sweep_is_shown_and_sorted_with_empty_cells_last(
    driver: Chrome, swept: SweepResult, tmp_path: Path
) -> None:
    columns = {name: values.copy() for name, values in swept.columns.items()}
    columns["ttft_s_low"][2] = float("nan")
    file = tmp_path / "sweep.html"
    file.write_text(sweep_page(replace(swept, columns=columns)))
    driver.get(file.as_uri())
    assert driver.get_log("browser") == []
    heads = find(driver, "section:last-of-type th")
    table = f"#{find(driver, 'section:last-of-type table')[0].get_attribute('id')}"
    titles = [head.find_element("css selector", "button").text for head in heads]
    place = 1 + titles.index("TTFT low")
    for direction in (-1, 1):
        heads[place - 1].find_element("css selector", "button").click()
        cells = find(driver, f"{table} tbody td:nth-child({place})")
        shown = [cell.get_attribute("data-value") for cell in cells]
        assert shown[-1] == ""
        values = [direction * float(value) for value in shown[:-1]]
        assert values == sorted(values)
