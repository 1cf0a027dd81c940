"""The lines of a user's CSV file, or one sentence on why it cannot be read."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from hymell.errors import HymellError


def csv_lines(path: str | os.PathLike[str], what: str) -> list[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not empty; a byte order mark is dropped.

    Raises HymellError, calling the file ``what``, for one that is missing or no CSV in UTF-8.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            return [(reader.line_num, cells) for cells in reader if any(map(str.strip, cells))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "it is no CSV file in UTF-8"
        raise HymellError(f"cannot read the {what} {os.fspath(path)!r}: {reason}") from None
