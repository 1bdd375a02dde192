"""A device that cannot be opened gives a one-line error, before ttnn is imported if possible."""

import os
import resource

import pytest

from models.common import mesh
from models.common.machines import MeshError
from models.common.mesh import select_backend


@pytest.fixture
def no_card(monkeypatch):
    monkeypatch.delenv("TT_METAL_SIMULATOR", raising=False)
    if any(mesh.Path("/dev/tenstorrent").glob("*")):
        pytest.skip("this machine has a card")


def refusal() -> str:
    with pytest.raises(MeshError) as refused:
        select_backend("device", "N300")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_no_card_and_no_simulator(no_card):
    message = refusal()
    assert (
        "/dev/tenstorrent" in message
        and "TT_METAL_SIMULATOR" in message
        and "--backend golden" in message
    )


@pytest.mark.parametrize("simulator", ["/no/such/libttsim.so", "n" * 5000])
def test_a_missing_simulator(no_card, monkeypatch, simulator):
    monkeypatch.setenv("TT_METAL_SIMULATOR", simulator)
    message = refusal()
    assert "TT_METAL_SIMULATOR" in message and repr(simulator)[:200] in message


@pytest.mark.parametrize("choice, simulator", [("golden", "/no/such/libttsim.so"), ("auto", "")])
def test_a_golden_mesh_never_opens_a_simulator(no_card, monkeypatch, choice, simulator):
    """ttnn opens the simulator that the variable names, even if the name is empty."""
    monkeypatch.setenv("TT_METAL_SIMULATOR", simulator)
    monkeypatch.setattr("golden_mesh.activate", lambda name: None)
    assert select_backend(choice, "N300") == "golden"
    assert "TT_METAL_SIMULATOR" not in os.environ


def test_an_empty_name_is_no_simulator(no_card, monkeypatch):
    monkeypatch.setenv("TT_METAL_SIMULATOR", "")
    assert "there is no card" in refusal()


def test_an_existing_simulator_is_used(no_card, monkeypatch, tmp_path):
    (tmp_path / "libttsim.so").touch()
    monkeypatch.setenv("TT_METAL_SIMULATOR", f"{tmp_path / 'libttsim.so'}")
    assert select_backend("device", "N300") == select_backend("auto", "N300") == "device"


def test_a_file_that_is_no_simulator(no_card, monkeypatch, tmp_path):
    """ttnn fails when it looks for chips. The error has its reason without the C++ stack."""
    monkeypatch.setattr(
        "ttnn.GetNumAvailableDevices",
        lambda: (_ for _ in ()).throw(
            RuntimeError(
                "TT_FATAL @ /project/cluster.cpp:129: n > 0\ninfo:\nNo chips detected\nbacktrace:\n --- main"
            )
        ),
    )
    with pytest.raises(MeshError) as refused, mesh.open_mesh("N300"):
        pass
    message = str(refused.value)
    assert (
        "(No chips detected)" in message
        and "tt-smi" in message
        and "main" not in message
        and "project" not in message
    )


@pytest.mark.parametrize("directory", ["/no/such/directory", "/dev/null", "/proc"])
def test_a_temporary_directory_that_takes_no_files(no_card, monkeypatch, tmp_path, directory):
    """Open MPI, started by ttnn, would crash."""
    (tmp_path / "libttsim.so").touch()
    monkeypatch.setenv("TT_METAL_SIMULATOR", f"{tmp_path / 'libttsim.so'}")
    monkeypatch.setenv("TMPDIR", directory)
    message = refusal()
    assert directory in message and "TMPDIR" in message


def test_a_temporary_directory_that_is_full(no_card, monkeypatch, tmp_path):
    (tmp_path / "libttsim.so").touch()
    monkeypatch.setenv("TT_METAL_SIMULATOR", f"{tmp_path / 'libttsim.so'}")
    monkeypatch.setenv("TMPDIR", f"{tmp_path}")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # stands for a full disk
    try:
        message = refusal()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert f"{tmp_path}" in message and "TMPDIR" in message


@pytest.mark.parametrize("directory", ["/no/such/directory", "/dev/null", "/proc"])
def test_a_golden_mesh_refuses_a_named_temporary_directory(monkeypatch, directory):
    """Python would write to /tmp instead, which the user did not name."""
    monkeypatch.setenv("TMPDIR", directory)
    monkeypatch.setattr("golden_mesh.activate", lambda name: pytest.fail("files were written"))
    with pytest.raises(MeshError, match=f"^no files can be written to {directory}, .*: set TMPDIR"):
        select_backend("golden", "N300")
