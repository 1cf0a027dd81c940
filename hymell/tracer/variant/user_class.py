"""From ``FILE.py:Class`` to something that makes one layer's attention from a config."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from hymell.errors import HymellError
from hymell.tracer.build import one_line

_CONFIG = ("config", "cfg", "model_config")
_LAYER = ("layer_idx", "layer_id", "layer_index")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def load_class(target: str) -> type[nn.Module]:
    """The class that ``FILE.py:Class`` names; the file is run, with its folder on the path.

    Raises HymellError for a target of another form, a file that cannot be read or fails when it
    is imported, and a name that is no ``nn.Module`` class in it.
    """
    path, separator, name = target.rpartition(":")
    if not separator or not path.endswith(".py") or not name.isidentifier():
        raise HymellError(f"{target!r} is not FILE.py:Class; write it as my_attention.py:MyClass")
    file = Path(path).expanduser()
    if not file.is_file():
        raise HymellError(f"{path} does not exist; give the Python file that holds {name}")
    module = _run(file)
    found = getattr(module, name, None)
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found
    if found is not None:
        raise HymellError(f"{name} in {path} is no class of torch.nn.Module; name one that is")
    classes = [
        key
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, nn.Module)
    ]
    has = f"it has {', '.join(classes)}" if classes else "it has no torch.nn.Module class at all"
    raise HymellError(f"{path} has no class {name}; {has}")


def _run(file: Path) -> ModuleType:
    # The name holds the whole path: two files of one name in one process stay apart.
    name = f"hymell_attention_of_{file.resolve()}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise HymellError(f"{file} cannot be imported as Python; give a .py file")
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    # Where the tracer looks up the namespace of a class.
    sys.modules[name] = module
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise HymellError(f"{file} could not be imported: {said(error, file)}") from error
    finally:
        sys.path.remove(folder)
    return module


def said(error: BaseException, file: Path | None) -> str:
    """An exception in one line, with the last line of ``file`` that it came through."""
    if isinstance(error, HymellError):
        return str(error)
    text = f"{type(error).__name__}: {one_line(error)}".rstrip(": ")
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{text.split(' (')[0]} (line {error.lineno})"
    if file is None:
        return text
    own = str(file.resolve())
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if str(Path(frame.filename).resolve()) == own
    ]
    return f"{text} ({file.name}, line {lines[-1]})" if lines else text


def file_of(cls: type) -> Path | None:
    """The file that a class is written in; None for one without."""
    try:
        return Path(inspect.getfile(cls))
    except (OSError, TypeError):
        return None


def factory_of(cls: type[nn.Module], options: Mapping[str, Any]) -> Callable[[Any, int], nn.Module]:
    """Makes one layer's attention: ``cls`` called with what its constructor asks for.

    A parameter gets, in this order: the option of its name, the config (``config``), the layer's
    index (``layer_idx``), its default, the config's field of the same name. Raises HymellError for
    options that the constructor does not take; the factory raises it for parameters without a
    value and for whatever the constructor raises.
    """
    parameters = inspect.signature(cls).parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    known = [name for name, p in parameters.items() if p.kind in _NAMED]
    strange = [name for name in options if name not in known]
    if strange and not open_ended:
        takes = ", ".join(known) or "no arguments"
        raise HymellError(f"{cls.__name__} has no argument {strange[0]!r}; it takes {takes}")

    def make(config: Any, layer_idx: int) -> nn.Module:
        values = dict(options)
        for name in known:
            if name in values:
                continue
            if name in _CONFIG:
                values[name] = config
            elif name in _LAYER:
                values[name] = layer_idx
            elif parameters[name].default is inspect.Parameter.empty:
                if getattr(config, name, None) is None:
                    raise HymellError(
                        f"{cls.__name__} needs {name!r} to be made, which the config of the model "
                        f"does not have; give it with --arg {name}=VALUE"
                    )
                values[name] = getattr(config, name)
        try:
            return cls(**values)
        except HymellError:
            raise
        except Exception as error:
            raise HymellError(
                f"{cls.__name__} could not be made for layer {layer_idx}: "
                f"{said(error, file_of(cls))}"
            ) from error

    return make
