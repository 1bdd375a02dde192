"""A device that cannot be opened is one line, and before ttnn is imported where that can be known."""

import resource

import pytest

from models.common import mesh
from models.common.mesh import MeshError, select_backend


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
    said = refusal()
    assert "/dev/tenstorrent" in said and "TT_METAL_SIMULATOR" in said and "--backend golden" in said


@pytest.mark.parametrize("simulator", ["/no/such/libttsim.so", "", "n" * 5000])
def test_a_simulator_that_is_not_there(no_card, monkeypatch, simulator):
    monkeypatch.setenv("TT_METAL_SIMULATOR", simulator)
    said = refusal()
    assert "TT_METAL_SIMULATOR" in said and repr(simulator) in said


def test_a_simulator_that_is_there_is_taken(no_card, monkeypatch, tmp_path):
    (tmp_path / "libttsim.so").touch()
    monkeypatch.setenv("TT_METAL_SIMULATOR", f"{tmp_path / 'libttsim.so'}")
    assert select_backend("device", "N300") == select_backend("auto", "N300") == "device"


def test_a_simulator_that_is_none(no_card, monkeypatch, tmp_path):
    """ttnn finds out when it looks for chips; its reason is told, and not its stack of C++ functions."""
    monkeypatch.setattr(
        "ttnn.GetNumAvailableDevices",
        lambda: (_ for _ in ()).throw(
            RuntimeError("TT_FATAL @ /project/cluster.cpp:129: n > 0\ninfo:\nNo chips detected\nbacktrace:\n --- main")
        ),
    )
    with pytest.raises(MeshError) as refused, mesh.open_mesh("N300"):
        pass
    said = str(refused.value)
    assert "(No chips detected)" in said and "tt-smi" in said and "main" not in said and "project" not in said


@pytest.mark.parametrize("directory", ["/no/such/directory", "/dev/null", "/proc"])
def test_a_temporary_directory_that_takes_no_files(no_card, monkeypatch, tmp_path, directory):
    """Open MPI, which ttnn starts, would crash."""
    (tmp_path / "libttsim.so").touch()
    monkeypatch.setenv("TT_METAL_SIMULATOR", f"{tmp_path / 'libttsim.so'}")
    monkeypatch.setenv("TMPDIR", directory)
    said = refusal()
    assert directory in said and "TMPDIR" in said


def test_a_temporary_directory_that_is_full(no_card, monkeypatch, tmp_path):
    (tmp_path / "libttsim.so").touch()
    monkeypatch.setenv("TT_METAL_SIMULATOR", f"{tmp_path / 'libttsim.so'}")
    monkeypatch.setenv("TMPDIR", f"{tmp_path}")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # as near to a full disk as a test can come
    try:
        said = refusal()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert f"{tmp_path}" in said and "TMPDIR" in said
