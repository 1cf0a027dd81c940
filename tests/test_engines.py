"""Engines by name: the ones that hymell has, and a user's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from hymell.errors import HymellError
from hymell.op_registry import engines
from hymell.op_registry.engines import ENGINES, get_engine, register_engine


@pytest.fixture(autouse=True)
def _only_built_in() -> Iterator[None]:
    before = dict(ENGINES)
    yield
    engines._ENGINES.clear()
    engines._ENGINES.update(before)


def test_names_are_forgiving() -> None:
    assert get_engine(" TensorRT-LLM ").name == "trtllm"
    assert get_engine("VLLM") is get_engine("vllm")


def test_unknown_name_names_the_choices() -> None:
    with pytest.raises(HymellError, match=r"choose one of eager, .*did you mean 'vllm'"):
        get_engine("vlm")


def test_own_engine_is_found_listed_and_replaced() -> None:
    first = replace(get_engine("vllm"), name="mine")
    register_engine(first)
    assert get_engine("Mine") is first
    with pytest.raises(HymellError, match="mine"):
        get_engine("nonesuch")
    second = replace(first, rules=())
    register_engine(second)
    assert get_engine("mine") is second


@pytest.mark.parametrize("name", ["vllm", "tensorrt-llm"])
def test_engines_of_hymell_stay_what_they_are(name: str) -> None:
    with pytest.raises(HymellError, match="choose another name"):
        register_engine(replace(get_engine("eager"), name=name))
    assert get_engine("vllm").title == "vLLM"


@pytest.mark.parametrize("name", ["", "My Engine", "two words", " mine"])
def test_engine_name_must_be_typable(name: str) -> None:
    with pytest.raises(HymellError, match="not a name for an engine"):
        register_engine(replace(get_engine("eager"), name=name))
