"""`calibrate`, `accuracy`, `data`: measurements, what is fitted to them, and how well."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hymell.cli import options
from hymell.cli.output import Output, emit
from hymell.cli.progress import progress
from hymell.errors import HymellError


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        "calibrate",
        epilog=options.examples(
            "hymell calibrate --gpu h100-sxm --library vllm --from ../shared/data -o h100.json",
            "hymell report Qwen/Qwen3-8B --calibration h100.json",
        ),
    )(calibrate)
    app.command(
        "accuracy",
        epilog=options.examples("hymell accuracy", "hymell accuracy --gpu h100-sxm --csv"),
    )(accuracy)
    app.command(
        "data", epilog=options.examples("hymell data", "hymell data --from ../shared/data --csv")
    )(data)


_From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="DIR",
        help="Folder of measurements; default: HYMELL_DATA, else ../shared/data.",
        show_default=False,
    ),
]


def calibrate(
    gpu: Annotated[str, typer.Option("--gpu", help="GPU that was measured (see `hymell gpus`).")],
    file: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output-file",
            metavar="FILE",
            help="JSON file to write; weights go beside it as .safetensors.",
        ),
    ],
    library: Annotated[
        str, typer.Option("--library", help="Whose kernels: vllm, sglang, trtllm, ...")
    ] = "vllm",
    root: _From = None,
    op: Annotated[
        list[str] | None,
        typer.Option("--op", help="Fit this op alone and keep the rest of FILE; repeatable."),
    ] = None,
    judge: Annotated[
        bool,
        typer.Option("--judge/--no-judge", help="Also measure the errors on held-out rows."),
    ] = True,
) -> int:
    r"""Fit everything that the measurements of one GPU and library cover.

    Needs `pip install 'hymell\[calibrate]'`. The same measurements give the same file.
    """
    if file.suffix != ".json":
        raise HymellError(f"a calibration is a .json file, not {str(file)!r}")
    destination = Output.of(False, False, False, file)
    try:
        import scipy  # type: ignore[import-untyped]  # noqa: F401
    except ImportError:
        raise HymellError(
            "fitting needs scipy; install it with: pip install 'hymell[calibrate]'"
        ) from None
    from hymell.measure.calibrate import calibrate as fit_all
    from hymell.report.calibrations import accuracy_view

    with progress() as step:
        made = fit_all(
            gpu, library, root, destination.file, ops=op or (), judged=judge, progress=step
        )
    emit(accuracy_view([made]), Output.of(False, False, False, None))
    return 0


def accuracy(
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Only this GPU.", show_default=False)
    ] = None,
    library: Annotated[
        str | None, typer.Option("--library", help="Only this library.", show_default=False)
    ] = None,
    json: options.Json = False,
    md: options.Md = False,
    csv: options.Csv = False,
    file: options.OutputFile = None,
) -> int:
    """Errors of the shipped calibrations on measurements that they were not fitted on."""
    destination = Output.of(json, md, csv, file)
    from hymell.estimators.calibration import available, shipped
    from hymell.hardware import find_gpu
    from hymell.report.calibrations import accuracy_view

    wanted = None if gpu is None else find_gpu(gpu).name
    chosen = [
        (name, held)
        for name, held in available()
        if wanted in (None, name) and library in (None, held)
    ]
    if not chosen:
        there = ", ".join(f"{name} {held}" for name, held in available())
        if there:
            raise HymellError(f"no such calibration is shipped; there are: {there}")
        raise HymellError(
            "this version ships no calibration; fit one from measurements with `hymell calibrate`"
        )
    found = [shipped(name, held) for name, held in chosen]
    emit(accuracy_view([c for c in found if c is not None]), destination)
    return 0


def data(
    root: _From = None,
    json: options.Json = False,
    md: options.Md = False,
    csv: options.Csv = False,
    file: options.OutputFile = None,
) -> int:
    """The measurements on this machine: rows, what was left out and why."""
    destination = Output.of(json, md, csv, file)
    from hymell.measure.data import locate, summary
    from hymell.report.calibrations import data_view

    folder = locate() if root is None else root
    if not folder.is_dir():
        raise HymellError(f"no folder {str(folder)!r} of measurements (docs/data.md)")
    with progress() as step:
        if step is not None:
            step(f"reading {folder}")
        found = summary(folder)
    emit(data_view(found, str(folder)), destination)
    return 0
