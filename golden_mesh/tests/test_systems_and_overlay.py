"""Real ttnn opens the mock machines. It leaves the wheel unchanged and the user's folders empty.

A process can be one machine only, so each test opens its meshes in a separate process. They compute nothing
here.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import golden_mesh
from golden_mesh import null_compiler
from golden_mesh.errors import GoldenMeshError
from golden_mesh.overlay import make_environment
from golden_mesh.systems import SYSTEMS

SOURCE = Path(__file__).resolve().parents[1] / "src"

# Opens meshes one after another, with default and with worker dispatch. Prints the grid of each in the last line.
# Each mesh runs an op on all cores, and a collective if it has several chips.
OPEN_MESHES = """
import json, os, sys
from pathlib import Path
from golden_mesh.overlay import expect_dispatch, make_environment
from golden_mesh.systems import SYSTEMS

system, directory, shapes = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
os.environ.update(make_environment(SYSTEMS[system], directory) | {"TMPDIR": f"{directory}"})
import torch, ttnn

grids = []
for rows, columns in shapes:
    worker_dispatch = ttnn.DispatchCoreConfig(ttnn.DispatchCoreType.WORKER)
    for options in ({}, {"dispatch_core_config": worker_dispatch}):
        expect_dispatch(Path(os.environ["TT_METAL_RUNTIME_ROOT"]), on_workers=bool(options))
        if rows * columns > 1:
            ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(rows, columns), **options)
        grid = mesh.compute_with_storage_grid_size()
        grids.append([grid.x, grid.y])
        cores, by_rows = ttnn.CoreGrid(x=grid.x, y=grid.y), ttnn.ShardStrategy.HEIGHT
        shards = ttnn.create_sharded_memory_config((32, 64), cores, by_rows, use_height_and_width_as_shard_shape=True)
        x = torch.ones(1, 1, 32 * grid.x * grid.y, 64)
        x = ttnn.from_torch(x, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, memory_config=shards)
        y = ttnn.silu(x)
        assert y.memory_config().shard_spec.grid.num_cores() == grid.x * grid.y
        if columns > 1:
            y = ttnn.all_gather(ttnn.to_memory_config(y, ttnn.DRAM_MEMORY_CONFIG), dim=3, cluster_axis=1)
            assert list(y.shape) == [1, 1, 32 * grid.x * grid.y, 64 * columns]
        ttnn.close_mesh_device(mesh)
        ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
print()
print(json.dumps(grids))
"""

MESHES = {
    "N150": [(1, 1)],
    "N300": [(1, 1), (1, 2)],
    "N150x4": [(1, 4), (2, 2), (1, 2), (1, 1)],
    "T3K": [(1, 8), (2, 4), (1, 4), (2, 2), (1, 2), (1, 1)],
    "P100": [(1, 1)],
    "P300": [(1, 2), (1, 1)],
    "P150x4": [(1, 4), (2, 2)],
    "P150x8": [(2, 4), (1, 8)],
    "BHGLX": [(4, 8)],
}


def start(system: str, shapes, place: Path) -> subprocess.Popen:
    """Start OPEN_MESHES with an empty working directory and an empty home in `place`."""
    for folder in ("work", "home"):
        (place / folder).mkdir(parents=True)
    quiet = {"TT_LOGGER_LEVEL": "error", "LOGURU_LEVEL": "ERROR"}
    mine = {
        "PYTHONPATH": f"{SOURCE}",
        "HOME": f"{place / 'home'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("TT_METAL_")
    }
    return subprocess.Popen(
        [sys.executable, "-c", OPEN_MESHES, system, f"{place / 'mock'}", json.dumps(shapes)],
        cwd=place / "work",
        env=inherited | quiet | mine,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def grids_of(process: subprocess.Popen) -> list[list[int]]:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output[-3000:]
    return json.loads(output.splitlines()[-1])


def files_of_the_wheel() -> dict[str, tuple[int, int]]:
    """Return the size and modification time of all files of ttnn, except Python's own caches."""
    package = Path(importlib.util.find_spec("ttnn").origin).parent
    files = (path for path in package.rglob("*") if "__pycache__" not in path.parts)
    return {
        f"{path}": (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in files
        if not path.is_dir()
    }


@pytest.mark.parametrize("system", MESHES)
def test_every_mesh_opens_with_its_grid_and_nothing_is_left_behind(system, tmp_path):
    before = files_of_the_wheel()
    grids = grids_of(start(system, MESHES[system], tmp_path))
    # One harvested row of the N150 leaves nine: one for dispatch, eight for programs. Two leave eight: dispatch is on
    # ethernet cores by default, and takes a row of the eight if it is asked to use worker cores.
    # A Blackhole has 14 columns, some harvested, and dispatches from one of them.
    one_harvested_row, two = [[8, 8], [8, 8]], [[8, 8], [8, 7]]
    expected = {
        "N150": one_harvested_row, "N300": two, "N150x4": one_harvested_row, "T3K": two,
        "P100": 2 * [[11, 10]], "P300": 2 * [[11, 10]],
        "P150x4": 2 * [[13, 10]], "P150x8": 2 * [[13, 10]], "BHGLX": 2 * [[12, 10]],
    }  # fmt: skip
    assert grids == expected[system] * len(MESHES[system])
    assert files_of_the_wheel() == before, "the wheel was changed"
    assert sorted(os.listdir(tmp_path)) == ["home", "mock", "work"]
    assert not os.listdir(tmp_path / "work"), "something was written into the working directory"
    assert not os.listdir(tmp_path / "home"), "something was written into the home directory"


def test_a_mesh_that_dispatches_from_a_column_of_cores_has_programs_on_all_others(run_as):
    program = """
import ttnn
columns = ttnn.DispatchCoreConfig(ttnn.DispatchCoreType.WORKER, ttnn.DispatchCoreAxis.COL)
device = ttnn.open_mesh_device(ttnn.MeshShape(1, 1), dispatch_core_config=columns)
shards = ttnn.create_sharded_memory_config(
    (32, 32), ttnn.CoreGrid(x=7, y=9), ttnn.ShardStrategy.HEIGHT, use_height_and_width_as_shard_shape=True)
x = ttnn.full((1, 1, 32 * 63, 32), 1.0, layout=ttnn.TILE_LAYOUT, device=device, memory_config=shards)
print(device.compute_with_storage_grid_size(), ttnn.silu(x).memory_config().shard_spec.grid.num_cores())
"""
    assert run_as("N150", program) == "7-9 63\n"


def test_two_processes_at_once(tmp_path):
    processes = [start("N300", [(1, 2)], tmp_path / name) for name in ("one", "two")]
    assert [grids_of(process) for process in processes] == [[[8, 8], [8, 7]]] * 2


def test_the_environment_names_only_what_is_in_the_directory(tmp_path):
    environment = make_environment(SYSTEMS["N300"], tmp_path / "mock")
    assert set(environment) == {
        "TT_METAL_RUNTIME_ROOT",
        "TT_METAL_CACHE",
        "TT_METAL_LOGS_PATH",
        "TT_METAL_MOCK_CLUSTER_DESC_PATH",
    }
    for name, path in environment.items():
        assert Path(path).is_relative_to(tmp_path / "mock") and Path(path).exists(), name
    assert (
        Path(environment["TT_METAL_MOCK_CLUSTER_DESC_PATH"]).read_text()
        == SYSTEMS["N300"].descriptor()
    )


def test_a_directory_serves_one_process(tmp_path):
    make_environment(SYSTEMS["N300"], tmp_path)
    with pytest.raises(FileExistsError):
        make_environment(SYSTEMS["N300"], tmp_path)


def test_no_ttnn(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(GoldenMeshError, match="looked for the Python package ttnn.*install ttnn"):
        make_environment(SYSTEMS["N300"], tmp_path)


@pytest.mark.parametrize(
    "missing, message",
    [
        ("runtime/hw", "looked for runtime/hw in .*install ttnn"),
        ("", "looked for the 8x7 grid.*install ttnn"),
    ],
)
def test_another_ttnn(tmp_path, monkeypatch, missing, message):
    """A ttnn with other folders or chip descriptions is refused."""
    package = tmp_path / "ttnn"
    for folder in (
        "runtime/hw",
        "tt_metal/hw",
        "tt_metal/soc_descriptors",
        "tt_metal/core_descriptors",
    ):
        if folder != missing:
            (package / folder).mkdir(parents=True)
    (package / "tt_metal/core_descriptors/wormhole_b0_80_arch.yaml").write_text("nebula_x1:\n")
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: SimpleNamespace(origin=f"{package / '__init__.py'}"),
    )
    with pytest.raises(GoldenMeshError, match=message):
        make_environment(SYSTEMS["N300"], tmp_path / "mock")


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_systems_are_consistent(system):
    chips = {"N150": 1, "N300": 2, "N150x4": 4, "T3K": 8, "GALAXY": 32}
    chips |= {"P100": 1, "P150": 1, "P300": 2, "P150x4": 4, "P150x8": 8, "BHGLX": 32}
    assert system.chips == chips[system.name]
    assert len(system.coordinates) == len(system.harvested_rows) == system.chips
    assert sorted(chip for board in system.boards for chip in board.chips) == list(
        range(system.chips)
    )
    ports = [port for link in system.links for port in link]
    assert len(set(ports)) == len(ports), "an ethernet channel is used twice"
    assert all(channel < 16 for _, channel in ports), "a Wormhole has 16 ethernet channels"
    if system.coordinates[0] is None:
        return  # ttnn finds the places of the chips
    assert len(set(system.coordinates)) == system.chips
    # Two links join each pair of neighbors in the mesh, and no other pair.
    joined = sorted(sorted((a, b)) for (a, _), (b, _) in system.links)
    place = dict(enumerate(system.coordinates))
    neighbors = [
        [a, b]
        for a in place
        for b in place
        if a < b and abs(place[a][0] - place[b][0]) + abs(place[a][1] - place[b][1]) == 1
    ]
    assert joined == sorted(2 * neighbors)


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_descriptor_is_yaml_of_every_chip(system):
    descriptor = yaml.safe_load(system.descriptor())
    identity = "chip_unique_ids" if system.coordinates[0] is None else "chips"
    for part in ("arch", identity, "harvesting"):
        assert list(descriptor[part]) == list(range(system.chips))
    assert len({board[0]["board_id"] for board in descriptor["boards"]}) == len(system.boards)


def test_null_compiler(tmp_path):
    """The null compiler answers the three calls that ttnn makes: version, compile, link."""
    compiler, source, made, listed = (
        tmp_path / name for name in ("bin/g++", "kernel.cc", "a.o", "a.d")
    )
    null_compiler.write_null_compiler(compiler)

    def call(*arguments):
        return subprocess.run(
            [compiler, *arguments], check=True, capture_output=True, text=True, env={}
        ).stdout

    assert call("--version") == null_compiler.VERSION + "\n"
    call("-O2", '-DX="a b"', "-c", "-o", made, source, "-MF", listed)
    assert made.read_bytes() == b"" and listed.read_text() == f"{made}: {source}\n"
    call("-O2", made, "-o", tmp_path / "a.elf")
    assert (tmp_path / "a.elf").read_bytes() == null_compiler.stub_elf()


def test_the_null_compiler_is_never_mistaken_for_the_real_one():
    """The version that the compiler prints keys ttnn's cache of kernels."""
    assert "sfpi" not in null_compiler.VERSION and "15.1" not in null_compiler.VERSION


@pytest.mark.parametrize(
    "said", [{}, {"OMP_WAIT_POLICY": "active", "TT_LOGGER_LEVEL": "off", "HOME": "/home/x"}]
)
def test_libraries_get_settings_that_the_user_has_not_set(monkeypatch, said):
    """Waiting threads sleep. Spinning threads make decode ten times slower beside a busy process."""
    monkeypatch.setattr(os, "environ", dict(said))
    directory = golden_mesh._prepare("N150")
    usual = {
        "OMP_WAIT_POLICY": "passive",
        "OMPI_MCA_btl": "self",
        "TT_LOGGER_LEVEL": "error",
        "HOME": f"{directory}",
    }
    assert {name: os.environ[name] for name in usual} == usual | said
    assert all(
        Path(os.environ[name]).is_relative_to(directory)
        for name in ("TT_METAL_CACHE", "TORCHINDUCTOR_CACHE_DIR")
    )
