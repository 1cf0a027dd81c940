"""docs/page.png: a report as Chromium shows it; part of `make docs` where Chromium is installed."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import browser

from hymell.cli import main

TARGET = Path(__file__).parents[1] / "docs" / "page.png"


def shoot() -> None:
    """Make the report of the README and take its picture, as wide as a laptop's window."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        main(["report", "meta-llama/Meta-Llama-3-8B", "--html", str(page), "-o", f"{folder}/r.txt"])
        with browser.chromium(Path(folder) / "profile") as driver:
            browser.resize(driver, 1100, 1500)
            driver.get(page.as_uri())
            driver.save_screenshot(str(TARGET))


if __name__ == "__main__":
    if why := browser.missing():
        sys.exit(f"no picture of a page: {why}")
    shoot()
