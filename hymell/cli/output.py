"""Where a rendering goes: stdout, or a file that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from hymell.cli.failures import OutputClosedError
from hymell.errors import HymellError
from hymell.report.document import View

TEXT, JSON, MARKDOWN, CSV = "text", "json", "md", "csv"
_BY_SUFFIX = {".json": JSON, ".md": MARKDOWN, ".csv": CSV}
#: Lines longer than this are hard to follow on a wide terminal.
_WIDEST = 160


@dataclass(frozen=True, slots=True)
class Output:
    """Which format a command prints, and the file it goes to (None: stdout)."""

    format: str
    file: Path | None = None

    @staticmethod
    def of(json: bool, md: bool, csv: bool, file: Path | None) -> Output:
        """From the command's flags; without one, the file's suffix decides, then plain text.

        Raises HymellError for two formats at once and for a file that cannot be made, before
        any work is done.
        """
        chosen = [name for name, flag in ((JSON, json), (MARKDOWN, md), (CSV, csv)) if flag]
        if len(chosen) > 1:
            raise HymellError(f"choose one of {' and '.join('--' + name for name in chosen)}")
        if file is not None:
            check_target(file)
        suffix = file.suffix.lower() if file else ""
        return Output(chosen[0] if chosen else _BY_SUFFIX.get(suffix, TEXT), file)


def emit(view: View, output: Output) -> None:
    """Render a view and write it. Raises HymellError when the file cannot be written."""
    text = render(view, output)
    if output.file is None:
        write_stdout(text)
    else:
        write_file(output.file, text)
        print(f"hymell: wrote {output.file}", file=sys.stderr)


def render(view: View, output: Output) -> str:
    """The view in the output's format, laid out for where it goes."""
    if output.format == JSON:
        from hymell.report.json_ import to_json

        return to_json(view.data)
    if output.format == CSV:
        from hymell.report.csv_ import to_csv

        return to_csv(view.records)
    if output.format == MARKDOWN:
        from hymell.report.markdown import to_markdown

        return to_markdown(view.document)
    from hymell.report.terminal import PIPE_WIDTH, to_text

    if output.file is not None or sys.stdout is None or not sys.stdout.isatty():
        plain = output.file is None and not _speaks_unicode()
        return to_text(view.document, width=PIPE_WIDTH, ascii_only=plain)
    width = min(shutil.get_terminal_size((PIPE_WIDTH, 24)).columns, _WIDEST)
    return to_text(view.document, width=width, color=True, ascii_only=not _speaks_unicode())


def write_stdout(text: str) -> None:
    """Write to stdout, odd characters escaped where its encoding lacks them.

    Raises OutputClosedError when nobody reads any more, HymellError when it cannot be written.
    """
    if sys.stdout is None:  # Python's word for a descriptor that was closed at the start
        raise HymellError("cannot write to stdout: it is closed; name a file with -o FILE")
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosedError from None
    except OSError as error:
        raise HymellError(f"cannot write to stdout: {error.strerror or error}") from None


def write_file(path: Path, content: str | bytes) -> None:
    """Replace the file in one step, so that a failure leaves what was there; text as UTF-8.

    A device or a pipe is written to as it is; a link keeps pointing where it does.
    """
    import tempfile

    target = Path(os.path.realpath(path))
    data = content.encode() if isinstance(content, str) else content
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask()
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, mode)
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise HymellError(
            f"cannot write {str(path)!r}: {error.strerror or error}; nothing was changed there"
        ) from None


def check_target(file: Path) -> None:
    """Raise HymellError for a file that cannot be made."""
    if file.is_dir():
        raise HymellError(f"cannot write {str(file)!r}: it is a folder; name a file in it")
    if not file.absolute().parent.is_dir():
        raise HymellError(f"cannot write {str(file)!r}: its folder does not exist; make it first")


def _speaks_unicode() -> bool:
    return (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
