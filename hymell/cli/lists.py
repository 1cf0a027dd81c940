"""`gpus`, `models`, `cache`: what hymell knows and keeps."""

from __future__ import annotations

from typing import Annotated

import typer

from hymell.cli import options
from hymell.cli.output import Output, emit


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("gpus", epilog=options.examples("hymell gpus", "hymell gpus --json"))(gpus)
    app.command("models", epilog=options.examples("hymell models", "hymell models qwen3"))(models)
    cache = typer.Typer(help="Traced graphs kept on disk.")
    cache.command("info", epilog=options.examples("hymell cache info"))(cache_info)
    cache.command("clear", epilog=options.examples("hymell cache clear"))(cache_clear)
    app.add_typer(cache, name="cache")


def gpus(
    json: options.Json = False,
    md: options.Md = False,
    csv: options.Csv = False,
    file: options.OutputFile = None,
) -> int:
    """The GPUs with a data sheet: dense peak rates, memory, power."""
    destination = Output.of(json, md, csv, file)
    from hymell.hardware import list_gpus
    from hymell.report.listings import gpus_view

    emit(gpus_view(list_gpus()), destination)
    return 0


def models(
    filter: Annotated[
        str, typer.Argument(help="Show only names that hold this text.", show_default=False)
    ] = "",
    json: options.Json = False,
    md: options.Md = False,
    csv: options.Csv = False,
    file: options.OutputFile = None,
) -> int:
    """The models that work offline; any other Hugging Face id is looked up on the hub."""
    destination = Output.of(json, md, csv, file)
    from hymell.report.listings import models_view
    from hymell.zoo import list_models

    emit(models_view(list_models(), filter), destination)
    return 0


def cache_info(
    json: options.Json = False,
    md: options.Md = False,
    csv: options.Csv = False,
    file: options.OutputFile = None,
) -> int:
    """Where traced graphs are kept, how many and how large (HYMELL_CACHE_DIR moves them)."""
    destination = Output.of(json, md, csv, file)
    from hymell import store
    from hymell.report.listings import cache_view

    emit(cache_view(store.info()), destination)
    return 0


def cache_clear(
    json: options.Json = False,
    md: options.Md = False,
    csv: options.Csv = False,
    file: options.OutputFile = None,
) -> int:
    """Remove every traced graph; the next report of a model traces it anew."""
    destination = Output.of(json, md, csv, file)
    from hymell import store
    from hymell.report.listings import cleared_view

    emit(cleared_view(store.cache_dir(), store.clear()), destination)
    return 0
