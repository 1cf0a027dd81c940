"""`hymell doctor` and shell completion: what is on this machine, what a shell offers."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hymell.analysis import machine
from hymell.cli import complete, main
from hymell.errors import HymellError
from hymell.estimators import calibration as calibrations


def smi(folder: Path, body: str) -> None:
    """An nvidia-smi that prints or fails as ``body`` says."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH but for the shell's own programs."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin{os.pathsep}/usr/bin")
    monkeypatch.setenv("HYMELL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("HYMELL_DATA", raising=False)
    return tmp_path


def test_a_board_is_named_with_its_data_sheet_and_calibrations(path: Path) -> None:
    smi(path, "echo 'NVIDIA H100 80GB HBM3, 81559, 570.1'; echo 'NVIDIA Foo 9, 100, 570.1'")
    found = machine.inspect()
    known, unknown = found.boards
    assert (known.sheet, known.memory_mib, known.driver) == ("h100-sxm", 81559, "570.1")
    assert "vllm" in known.libraries
    assert (unknown.sheet, unknown.libraries) == ("", ())
    assert found.problems == ()


def test_without_nvidia_smi_there_is_no_board_and_no_problem(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.shutil, "which", lambda program: None)
    assert (machine.inspect().boards, machine.inspect().problems) == ((), ())


@pytest.mark.parametrize("body", ["echo boo; exit 9", "echo 'one, two'"])
def test_an_nvidia_smi_that_fails_is_a_problem(path: Path, body: str) -> None:
    smi(path, body)
    (problem,) = machine.inspect().problems
    assert "check the driver" in problem


def test_what_is_damaged_missing_or_unwritable_is_said_with_the_remedy(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shipped(gpu: str, library: str) -> None:
        if (gpu, library) == ("l40s", "vllm"):
            raise HymellError("no JSON")

    (path / "file").write_text("")
    smi(path, "exit 0")
    monkeypatch.setenv("HYMELL_CACHE_DIR", str(path / "file" / "below"))
    monkeypatch.setenv("HYMELL_DATA", str(path / "nowhere"))
    monkeypatch.setattr(calibrations, "shipped", shipped)
    monkeypatch.setattr(
        machine, "package_version", lambda name: "none" if name == "rich" else "1.0"
    )
    assert main(["doctor", "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert len(problems) == 4
    for part in (
        "pip install rich",
        "vllm on l40s is damaged: no JSON",
        "HYMELL_CACHE_DIR",
        "nowhere",
    ):
        assert any(part in problem for problem in problems), part


def test_the_page_names_missing_extras_and_ends_well(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    smi(path, "echo 'NVIDIA H100 80GB HBM3, 81559, 570.1'")
    monkeypatch.setattr(
        machine, "package_version", lambda name: "none" if name == "scipy" else "1.0"
    )
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "pip install 'hymell[calibrate]'" in text
    assert "h100-sxm" in text
    assert main(["doctor", "--csv"]) == 0
    assert "scipy,none" in capsys.readouterr().out


def test_names_are_offered_by_their_beginning() -> None:
    assert "h100-sxm" in complete.gpus("H1")
    assert complete.gpus("nothing") == []
    assert complete.engines("v") == ["vllm"]
    assert "meta-llama/Meta-Llama-3-8B" in complete.models("meta-llama/meta-llama-3")


def test_a_shell_is_offered_names_and_heavy_packages_stay_away() -> None:
    asked = {
        "_HYMELL_COMPLETE": "complete_bash",
        "COMP_WORDS": "hymell report --gpu h20",
        "COMP_CWORD": "3",
    }
    code = (
        "import sys; sys.argv = ['hymell']; import atexit; "
        "atexit.register(lambda: sys.stderr.write(str('torch' in sys.modules))); "
        "from hymell.cli import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["h200-sxm"]
    assert done.stderr.endswith("False")


def test_the_page_names_what_was_fitted_on_each_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    out = capsys.readouterr().out
    for gpu, engine, version in machine.inspect().systems:
        (line,) = (row for row in out.splitlines() if row.startswith(f"{gpu} "))
        assert f"{engine} {version}" in line
