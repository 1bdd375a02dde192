"""A device that cannot be opened gives a one-line error, before ttnn is imported if possible."""

import os
import sys
from pathlib import Path

import pytest

from models.demos.qwen25_7b.plans.machines import MeshError, Split
from models.demos.qwen25_7b.tt import mesh
from models.demos.qwen25_7b.tt.mesh import select_backend
from tests.weights.support import logged


@pytest.fixture(autouse=True)
def no_card(monkeypatch):
    monkeypatch.delenv("TT_METAL_SIMULATOR", raising=False)
    if any(Path("/dev/tenstorrent").glob("*")):
        pytest.skip("this machine has a card")


@pytest.mark.parametrize(
    "environment, message",
    [
        ({}, "there is no card .*TT_METAL_SIMULATOR.*--backend golden"),
        ({"TT_METAL_SIMULATOR": ""}, "there is no card"),
        ({"TT_METAL_SIMULATOR": "/no/such.so"}, "TT_METAL_SIMULATOR is '/no/such.so'"),
        ({"TT_METAL_SIMULATOR": "/dev/null", "TMPDIR": "/no/such"}, "written to /no/such .*TMPDIR"),
        ({"TT_METAL_SIMULATOR": "/dev/null", "TMPDIR": "/proc"}, "written to /proc .*TMPDIR"),
    ],
)
def test_a_device_that_is_not_there_is_one_line(monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MeshError, match=message) as refused:
        select_backend("device", "N300")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("choice, simulator", [("golden", "/no/such/libttsim.so"), ("auto", "")])
def test_a_golden_mesh_never_opens_a_simulator(monkeypatch, choice, simulator):
    """ttnn opens the simulator that the variable names, even if the name is empty."""
    monkeypatch.setenv("TT_METAL_SIMULATOR", simulator)
    monkeypatch.setattr("golden_mesh.activate", lambda name: None)
    assert select_backend(choice, "N300") == "golden"
    assert "TT_METAL_SIMULATOR" not in os.environ


def test_an_existing_simulator_is_used(monkeypatch, tmp_path):
    (tmp_path / "libttsim.so").touch()
    monkeypatch.setenv("TT_METAL_SIMULATOR", f"{tmp_path / 'libttsim.so'}")
    assert select_backend("device", "N300") == select_backend("auto", "N300") == "device"


def test_a_file_that_is_no_simulator(monkeypatch):
    """ttnn fails when it looks for chips. The error has its reason without the C++ stack."""

    def fail():
        raise RuntimeError(
            "TT_FATAL @ /project/cluster.cpp:129: n > 0\ninfo:\nNo chips detected\nbacktrace:\n --- main"
        )

    monkeypatch.setattr("ttnn.GetNumAvailableDevices", fail)
    with pytest.raises(MeshError, match="(No chips detected).*tt-smi") as refused:
        with mesh.open_mesh(Split.of("N300")):
            pass
    assert "main" not in str(refused.value) and "project" not in str(refused.value)


def test_another_version_of_ttnn_is_a_warning(monkeypatch):
    monkeypatch.setattr(mesh, "ttnn_version", lambda: "0.99.0")
    monkeypatch.setattr("golden_mesh.activate", lambda name: None)
    with logged() as lines:
        assert select_backend("golden", "N300") == "golden"
    assert lines == ["ttnn 0.99.0 is installed, this port was tested with 0.81.1; it needs 0.81 or later"]


def test_no_ttnn_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ttnn", None)
    with pytest.raises(MeshError, match="^ttnn is not installed .* pip install ttnn==0.81.1"):
        select_backend("golden", "N300")
