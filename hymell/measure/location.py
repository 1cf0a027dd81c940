"""Where the measurements lie on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from hymell.errors import HymellError

VARIABLE = "HYMELL_DATA"

#: Beside the checkout, in the folder that it shares with others.
_DEFAULT = Path(__file__).resolve().parents[3] / "shared" / "data"


def locate() -> Path:
    """The folder of measurements: ``$HYMELL_DATA``, else ``../shared/data`` beside the checkout.

    Raises HymellError, with the remedy, where there is no such folder.
    """
    named = os.environ.get(VARIABLE)
    folder = Path(named).expanduser() if named else _DEFAULT
    if folder.is_dir():
        return folder
    what = f"{VARIABLE} is {named}, which is no folder" if named else f"no folder {folder}"
    raise HymellError(
        f"no measurements found: {what}; set {VARIABLE} to a folder with clones of aiconfigurator, "
        "vidur, NeuSight or LLMServingSim (docs/data.md)"
    )
