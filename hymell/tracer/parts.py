"""What a model is made of: one causal decoder, or an encoder, a vision tower, a text tower ...

Each part says in which phases it runs and how to run it; `trace` runs a model's parts one after the
other and labels every op with the part it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from hymell.errors import TraceError
from hymell.graph import Phase, Range, Region, StateSpec
from hymell.tracer import cache_state
from hymell.tracer.inputs import (
    cache_keyword,
    cache_of,
    causal_inputs,
    explicit_cache,
    parameters_of,
)
from hymell.tracer.pixels import image_inputs, spectrogram_shape
from hymell.tracer.session import Session, run_session

#: Tokens of the short prompt that creates a cache before it is stretched to L tokens.
_SEED_TOKENS = 4

#: Views that hand out one tensor per image.
_CUTS = frozenset(
    {"aten.unbind.int", "aten.split.Tensor", "aten.split_with_sizes.default", "aten.squeeze.dim"}
)

State: TypeAlias = tuple[StateSpec, ...]
_NOTHING: State = ()
Body: TypeAlias = Callable[[Session, "Point"], State]


@dataclass(frozen=True, slots=True)
class Point:
    """One workload point: B sequences, S new tokens, L cached; logits of the last tokens kept."""

    phase: Phase
    B: int
    S: int
    L: int
    logits_to_keep: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a model: its name, the phases it runs in, and its forward under a session."""

    name: str
    phases: tuple[Phase, ...]
    body: Body
    model: nn.Module

    def __call__(
        self,
        phase: Phase,
        B: int,
        S: int,
        L: int,
        memo: bool = True,
        logits_to_keep: int = 1,
    ) -> Region:
        """Trace this part alone."""
        point = Point(phase, B, S, L, logits_to_keep)
        return trace(self.model, (self,), point, memo=memo, opaque_modules={})


def split(model: nn.Module) -> tuple[Part, ...]:
    """The parts of a Hugging Face model, in the order in which they run in prefill.

    A causal language model is the single part "model". Encoder-decoders are "encoder" and
    "decoder": prefill is the encoder over S tokens (its fixed number of frames for speech) and the
    first decoder step; in decode S is the source length, L the decoder tokens cached, and one new
    token is computed. Vision-language models are "vision" (the tower and projector on one image
    per sequence) and "language" (S counts the image tokens merged into the prompt). Encoders,
    vision and dual models (CLIP: "vision", "text") have no decode.
    """
    config = getattr(model, "config", None)
    both: tuple[Phase, ...] = ("prefill", "decode")
    if config is None:
        return (Part("model", both, _causal, model),)
    if getattr(config, "is_encoder_decoder", False) and hasattr(model, "get_encoder"):
        return (
            Part("encoder", ("prefill",), _encoder, model),
            Part("decoder", both, _decoder, model),
        )
    images = _image_features(model)
    if images is not None and hasattr(model, "get_text_features"):
        return (
            Part("vision", ("prefill",), _vision, model),
            Part("text", ("prefill",), _text, model),
        )
    if images is not None and getattr(config, "vision_config", None) is not None:
        return (
            Part("vision", ("prefill",), _vision, model),
            Part("language", both, _causal, model),
        )
    main_input = getattr(model, "main_input_name", "input_ids")
    if main_input == "pixel_values":
        return (Part("vision", ("prefill",), _pixels, model),)
    if main_input in ("input_features", "input_values"):
        return (Part("encoder", ("prefill",), _audio, model),)
    if not _generates(model):
        return (Part("encoder", ("prefill",), _ids_only, model),)
    return (Part("model", both, _causal, model),)


def trace(
    model: nn.Module,
    parts: tuple[Part, ...],
    point: Point,
    *,
    memo: bool,
    opaque_modules: Mapping[type, str],
    label: str | None = None,
    signatures: dict[int, Any] | None = None,
) -> Region:
    """Run the parts of a phase one after the other in one session and label their ops.

    ``label`` overrides the parts' names on the ops. Raises TraceError with one line.
    """
    name = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    chosen = [part for part in parts if point.phase in part.phases]
    if not chosen:
        raise TraceError(f"{name} has no {point.phase} phase")

    def body(session: Session) -> Region:
        state: State = ()
        labels: list[str] = []
        for part in chosen:
            state += part.body(session, point)
            done = len(session.capture.drafts)
            labels += [label or part.name] * (done - len(labels))
        ops, layers = session.recorded(labels)
        S = 1 if point.phase == "decode" and not _has_source(parts) else point.S
        ranges = (Range(point.B, point.B), Range(S, S), Range(point.L, point.L))
        return Region(point.phase, ops, layers, state, *ranges)

    return run_session(
        model,
        body,
        memo=memo,
        opaque_modules=opaque_modules,
        signatures=signatures,
        label=f"the {point.phase} of {name}",
    )


def _has_source(parts: tuple[Part, ...]) -> bool:
    return any(part.name == "decoder" for part in parts)


def _generates(model: nn.Module) -> bool:
    """True for a decoder: its class says so, or it takes a cache and is no encoder."""
    name = type(model).__name__
    if "CausalLM" in name or "LMHead" in name:
        return True
    if "MaskedLM" in name or "Classification" in name:
        return False
    parameters = parameters_of(model)
    return "use_cache" in parameters and bool(getattr(model.config, "is_decoder", True))


def _image_features(model: nn.Module) -> Callable[..., Any] | None:
    for holder in (model, getattr(model, "model", None)):
        method = getattr(holder, "get_image_features", None)
        if method is not None:
            return method  # type: ignore[no-any-return]
    return None


def language_model(model: nn.Module) -> nn.Module:
    """The module that turns token ids into logits: a causal model inside (Llama 4), or itself."""
    inner = getattr(model, "language_model", None)
    if isinstance(inner, nn.Module) and "CausalLM" in type(inner).__name__:
        return inner
    return model


def _causal(session: Session, point: Point) -> State:
    if point.phase == "prefill":
        cache = _step(session, point.B, point.S, None, point.logits_to_keep)
        return cache_state.state_specs(cache, language_model(session.model))
    try:
        return _decode(session, point, 1)
    except RuntimeError:
        # Some older forwards (CPM-Ant, XLM) take the whole text and cut the new token off it.
        session.rewind(0)
        return _decode(session, point, point.L + 1)


def _decode(session: Session, point: Point, ids: int) -> State:
    model, cache, state = language_model(session.model), None, _NOTHING
    if point.L > 0:
        cache = _step(session, point.B, _SEED_TOKENS, None, point.logits_to_keep)
        cache_state.stretch(cache, point.L)
        session.rewind(0)
        cache_state.bind_state(session.capture, cache, model)
        state = cache_state.state_specs(cache, model)
    _step(session, point.B, ids, cache, point.logits_to_keep)
    return state


def _step(session: Session, B: int, S: int, cache: Any, logits_to_keep: int) -> Any:
    """One forward of a causal model; returns the state it leaves."""
    model, mark = language_model(session.model), session.mark()
    ids = session.input("input_ids", B, S)
    try:
        after = cache_of(model(**causal_inputs(model, ids, cache, logits_to_keep)))
    except IndexError:
        # Some configs name another number of layers than the decoder has (Blenderbot).
        if cache is not None:
            raise
        after = None
    if after is None and cache is None:
        after = explicit_cache(model)
        if after is not None:
            session.rewind(mark)
            model(**causal_inputs(model, ids, after, logits_to_keep))
    return cache if after is None else after


def _encoder(session: Session, point: Point) -> State:
    session.results["encoder"] = _encode(session, point)
    return ()


def _encode(session: Session, point: Point) -> Tensor:
    model: Any = session.model
    encoder = model.get_encoder()
    main_input = getattr(model, "main_input_name", "input_ids")
    if main_input in ("input_features", "input_values"):
        shape = spectrogram_shape(model.config, main_input, point.B)
        output = encoder(session.input(main_input, *shape, dtype=model.dtype))
    elif main_input == "pixel_values":
        inputs = image_inputs(session, model.config, parameters_of(encoder), point.B, model.dtype)
        output = encoder(**inputs)
    else:
        output = encoder(input_ids=session.input("input_ids", point.B, point.S))
    hidden: Tensor = output[0]
    return hidden


def _decoder(session: Session, point: Point) -> State:
    hidden = session.results.get("encoder")
    if hidden is None:
        hidden = _encode(session, point)
        session.rewind(0)
        session.named(hidden, "encoder_hidden_states")
    if point.phase == "prefill":
        cache = cache_of(_decoder_step(session, point.B, hidden, None))
        return cache_state.state_specs(cache, session.model)
    cache, state = None, _NOTHING
    if point.L > 0:
        cache = cache_of(_decoder_step(session, point.B, hidden, None))
        cache_state.stretch(cache, point.L)
        session.rewind(0)
        session.named(hidden, "encoder_hidden_states")
        cache_state.bind_state(session.capture, cache, session.model)
        state = cache_state.state_specs(cache, session.model)
    _decoder_step(session, point.B, hidden, cache)
    return state


def _decoder_step(session: Session, B: int, hidden: Tensor, cache: Any) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    model = session.model
    arguments: dict[str, Any] = {
        "encoder_outputs": BaseModelOutput(last_hidden_state=hidden),
        "decoder_input_ids": session.input("decoder_input_ids", B, 1),
        "use_cache": True,
    }
    if cache is not None:
        arguments[cache_keyword(model)] = cache
    return model(**arguments)


def _vision(session: Session, point: Point) -> State:
    model: Any = session.model
    features = _image_features(model)
    if features is None:
        raise TraceError(f"{type(model).__name__} has no image features")
    parameters = parameters_of_function(features)
    config = model.config.vision_config
    features(**image_inputs(session, config, parameters, point.B, model.dtype, model.config))
    # Cutting the result into a tensor per image costs nothing, and would grow with the batch.
    session.drop_tail(_CUTS)
    return ()


def parameters_of_function(function: Callable[..., Any]) -> Mapping[str, Any]:
    """A callable's parameters, decorators looked through."""
    import inspect

    return inspect.signature(function).parameters


def _text(session: Session, point: Point) -> State:
    model: Any = session.model
    limit = getattr(model.config.text_config, "max_position_embeddings", point.S)
    model.get_text_features(input_ids=session.input("input_ids", point.B, min(point.S, limit)))
    return ()


def _pixels(session: Session, point: Point) -> State:
    model: Any = session.model
    dtype = model.dtype
    model(**image_inputs(session, model.config, parameters_of(model), point.B, dtype))
    return ()


def _audio(session: Session, point: Point) -> State:
    model: Any = session.model
    name = model.main_input_name
    shape = spectrogram_shape(model.config, name, point.B)
    model(session.input(name, *shape, dtype=model.dtype))
    return ()


def _ids_only(session: Session, point: Point) -> State:
    session.model(input_ids=session.input("input_ids", point.B, point.S))
    return ()
