"""Fenced blocks of the pages, and the output that `console` blocks show: `make docs` renews it.

A `console` block holds a command after ``$`` and what it prints; the fence says which part: from
the first line that starts with one text until the line that starts with another.

    ```console from="Prefill: Llama" until="Decode"
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: what stands behind the fence, the text, and where its first line is."""

    page: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for match in FENCED.finditer(text):
        line = text.count("\n", 0, match.start(2)) + 1
        yield Block(page, line, match[1].strip(), match[2])


def printed(block: Block) -> str:
    """What a `console` block has to hold today."""
    prompt = block.text.splitlines()[0]
    command = prompt.removeprefix("$ ")
    if command == "make report":
        command = f"hymell report {make_variable('MODEL')} {make_variable('ARGS')}"
    program, *arguments = shlex.split(command)
    assert program == "hymell", f"{block}: only output of hymell can be renewed"
    done = subprocess.run(
        [sys.executable, "-m", "hymell", *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    lines = [line.rstrip() for line in done.stdout.strip("\n").splitlines()]
    start, stop = _place(lines, _option(block, "from"), 0), len(lines)
    if _option(block, "until"):
        stop = _place(lines, _option(block, "until"), start + 1)
    shown = "\n".join(lines[start:stop]).rstrip("\n").splitlines()
    before, after = ["..."] * (start > 0), ["..."] * (stop < len(lines))
    return "\n".join([prompt, *before, *shown, *after, ""])


def make_variable(name: str) -> str:
    """The default of a variable of the Makefile."""
    found = re.search(rf"^{name} \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found, name
    return found[1]


def _option(block: Block, name: str) -> str:
    found = re.search(rf'{name}="([^"]*)"', block.kind)
    return found[1] if found else ""


def _place(lines: list[str], start: str, first: int) -> int:
    return next(i for i in range(first, len(lines)) if lines[i].startswith(start))


def renew() -> None:
    """Write today's output into every `console` block."""
    for page in PAGES:
        for block in blocks(page):
            if block.kind.startswith("console"):
                text = page.read_text(encoding="utf-8")
                page.write_text(text.replace(block.text, printed(block)), encoding="utf-8")


if __name__ == "__main__":
    renew()
