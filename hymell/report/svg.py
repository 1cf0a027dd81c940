"""A matplotlib figure as SVG for a page: transparent, its ink the page's own text colour."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Figure

#: Stands for the text colour while matplotlib draws; no palette has it.
INK = "#010203"

#: Okabe and Ito's colours, which colour-blind people tell apart, in an order of strong contrast.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#b8a800")


@contextmanager
def page_style() -> Iterator[None]:
    """Within it, figures are made for `to_svg`: ink instead of black, no ground, plain text."""
    import matplotlib

    settings: Any = {
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "axes.titlecolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "legend.frameon": False,
        "svg.fonttype": "none",
        # The same figure gives the same file.
        "svg.hashsalt": "hymell",
        "font.family": "sans-serif",
    }
    with matplotlib.rc_context(settings):
        yield


def to_svg(figure: Figure, name: str) -> str:
    """The figure as an element for an HTML page.

    ``name``, unique in the page, goes before its ids, since those of two drawings may be equal.
    """
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    # The size comes from the page; viewBox keeps the proportions.
    opening, rest = text.split(">", 1)
    return re.sub(r'\s(width|height)="[^"]*"', "", opening) + ">" + rest
