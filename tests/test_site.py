"""The site builds from docs/ without a warning, and every page is in it; examples run."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("mkdocs") is None or find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed (pip install 'hymell[docs]')")
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target


def test_every_page_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    assert {str(page.with_suffix(".html")) for page in pages} <= {
        str(file.relative_to(site)) for file in site.rglob("*.html")
    }
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [str(page) for page in sorted(pages) if f": {page}\n" not in config] == []


def test_no_page_asks_another_server(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert "fonts.googleapis.com" not in text
    assert "cdn" not in text


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(script)])
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()
