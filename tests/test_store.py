"""Traced graphs on disk: found again, whole under parallel writers, never fatal."""

from __future__ import annotations

import gzip
import json
import logging
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hymell import store
from hymell.dims import dim
from hymell.errors import HymellError
from hymell.graph import ModelFacts, Op, Operand, OpGraph, Region, TensorSpec

KEY = "ab" * 32


def graph(parameters: int = 1, ops: int = 3) -> OpGraph:
    spec = TensorSpec((dim("B"), dim("S"), 64), "bfloat16")
    facts = ModelFacts("tiny", "llama", "Llama", "bfloat16", parameters, 1, 2.0, {"bfloat16": 2.0})
    rows = tuple(
        Op(i, "aten.add.Tensor", f"layers.{i}", "Linear", (Operand(spec, "op", i - 1),), (spec,))
        for i in range(ops)
    )
    return OpGraph(facts, (Region("prefill", rows),))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(store.CACHE_DIR_VARIABLE, str(folder))
    store._warn_unwritable.cache_clear()
    return folder


def entry(cache: Path) -> Path:
    (path,) = cache.iterdir()
    return path


def test_what_is_put_is_found(cache: Path) -> None:
    assert store.get(KEY) is None
    store.put(KEY, graph())
    assert store.get(KEY) == graph()
    assert store.get("cd" * 32) is None
    assert [path.name.startswith(KEY) for path in cache.iterdir()] == [True]


def test_put_replaces(cache: Path) -> None:
    store.put(KEY, graph(1))
    store.put(KEY, graph(2))
    assert store.get(KEY) == graph(2)
    assert store.info().entries == 1


def test_same_graph_same_bytes(cache: Path) -> None:
    store.put(KEY, graph())
    before = entry(cache).read_bytes()
    store.put(KEY, graph())
    assert entry(cache).read_bytes() == before


def test_info_and_clear(cache: Path) -> None:
    assert store.info() == store.CacheInfo(cache, 0, 0)
    assert store.clear() == 0
    for i in range(3):
        store.put(f"{i}" * 64, graph(i))
    (cache / "note.txt").write_text("not ours")
    (cache / "half-written.graph.tmp").write_text("left by a killed writer")
    info = store.info()
    assert (info.path, info.entries) == (cache, 3)
    assert info.bytes == sum(p.stat().st_size for p in cache.glob("*.gz"))
    assert store.clear() == 3
    assert [path.name for path in cache.iterdir()] == ["note.txt"]


def test_default_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(store.CACHE_DIR_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.cache_dir().name == "hymell"
    assert tmp_path in store.cache_dir().parents


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


def other_version(content: bytes) -> bytes:
    document = json.loads(gzip.decompress(content))
    return gzip.compress(json.dumps({**document, "version": 0}).encode())


@pytest.mark.parametrize(
    "damage",
    [
        truncated,
        flipped,
        other_version,
        lambda content: b"",
        lambda content: b"plain text",
        lambda content: gzip.decompress(content),
        lambda content: gzip.compress(b'{"format": "something else"}'),
        lambda content: gzip.compress(b"\xff\xfe"),
    ],
)
def test_a_damaged_entry_is_a_miss_and_is_rebuilt(cache: Path, damage: object) -> None:
    store.put(KEY, graph())
    path = entry(cache)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert store.get(KEY) is None
    assert not path.exists()
    store.put(KEY, graph())
    assert store.get(KEY) == graph()


def test_an_entry_that_is_a_folder_is_a_miss(cache: Path) -> None:
    store.put(KEY, graph())
    path = entry(cache)
    path.unlink()
    path.mkdir()
    assert store.get(KEY) is None


def test_unwritable_folder_costs_one_warning(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING, logger="hymell"):
        store.put(KEY, graph())
        store.put(KEY, graph())
    (record,) = caplog.records
    assert str(cache) in record.getMessage()
    assert store.CACHE_DIR_VARIABLE in record.getMessage()
    assert store.get(KEY) is None
    assert store.info().entries == 0


def test_full_disk_leaves_nothing_behind(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with caplog.at_level(logging.WARNING, logger="hymell"):
        store.put(KEY, graph())
    assert "No space left on device" in caplog.text
    assert list(cache.iterdir()) == []


def test_clear_names_what_it_cannot_remove(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(KEY, graph())

    def fail(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(HymellError, match=r"cannot remove .*Permission denied"):
        store.clear()


def write_often(folder: str, number: int) -> int:
    os.environ[store.CACHE_DIR_VARIABLE] = folder
    good = 0
    for _ in range(15):
        store.put(KEY, graph(number, ops=200))
        found = store.get(KEY)
        good += found is not None and found == graph(found.facts.parameters, ops=200)
    return good


def test_parallel_processes_always_see_whole_entries(cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        seen = pool.starmap(write_often, [(str(cache), i) for i in range(3)])
    assert seen == [15, 15, 15]
    assert len(list(cache.iterdir())) == 1


def test_parallel_threads_always_see_whole_entries(cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda i: write_often(str(cache), i), range(4)))
    assert seen == [15] * 4
    assert len(list(cache.iterdir())) == 1


# Keys


def test_key_depends_on_content_not_on_order() -> None:
    one = store.key_of({"a": 1, "b": {"c": [1, 2], "d": None}}, logits_to_keep=1)
    same = store.key_of({"b": {"d": None, "c": (1, 2)}, "a": 1}, logits_to_keep=1)
    assert one == same
    assert len(one) == 64
    assert set(one) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    ("config", "extras"),
    [
        ({"a": 2}, {}),
        ({"a": 1, "b": 0}, {}),
        ({"a": "1"}, {}),
        ({"a": 1.5}, {}),
        ({"a": True}, {}),
        ({"a": [1]}, {}),
        ({}, {"a": 1}),
        ({"a": 1}, {"memo": True}),
    ],
)
def test_key_changes_with_every_content(
    config: dict[str, object], extras: dict[str, object]
) -> None:
    assert store.key_of(config, **extras) != store.key_of({"a": 1})


def test_key_changes_with_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    before = store.key_of({"a": 1})
    monkeypatch.setattr(store, "package_version", lambda name: f"{name} of tomorrow")
    tomorrow = store.key_of({"a": 1})
    monkeypatch.setattr(store, "__version__", "99")
    newer = store.key_of({"a": 1})
    monkeypatch.setattr(store, "FORMAT_VERSION", 99)
    assert len({before, tomorrow, newer, store.key_of({"a": 1})}) == 4


def test_key_of_unusual_content() -> None:
    labels = {"id2label": {0: "x", "1": "y"}, "kinds": {"b", "a"}, "where": Path("x"), "n": 1e999}
    assert store.key_of(labels) == store.key_of({**labels, "kinds": {"a", "b"}})


def test_package_that_is_not_installed() -> None:
    assert store.package_version("no-such-package-as-this") == "none"
    assert store.package_version("pytest") == pytest.__version__


def test_reading_a_graph_imports_no_torch(cache: Path) -> None:
    key = store.key_of({"a": 1})
    store.put(key, graph())
    script = (
        "import sys; from hymell import store; "
        "found = store.get(store.key_of({'a': 1})); "
        "heavy = {'torch', 'transformers', 'pandas', 'numpy'} & set(sys.modules); "
        "print(found is not None and found.facts.name, sorted(heavy))"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert output.strip() == "tiny []"
