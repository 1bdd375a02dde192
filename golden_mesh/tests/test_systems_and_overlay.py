"""Real ttnn opens the mock machines. It leaves the wheel unchanged and the user's folders empty."""

import importlib.util
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from golden_mesh.errors import GoldenMeshError
from golden_mesh.start.overlay import make_environment
from golden_mesh.start.systems import SYSTEMS, named

# Opens meshes one after another, with default and with worker dispatch, and prints the grid of each.
# Each mesh runs an op on all cores, and a collective if it has several chips.
OPEN_MESHES = """
import json, sys
import golden_mesh
golden_mesh.activate(sys.argv[1])
import torch, ttnn

workers = ttnn.DispatchCoreConfig(ttnn.DispatchCoreType.WORKER)
for rows, columns in json.loads(sys.argv[2]):
    for options in ({}, {"dispatch_core_config": workers}):
        if rows * columns > 1:
            ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(rows, columns), **options)
        grid = mesh.compute_with_storage_grid_size()
        print(f"{grid.x}x{grid.y}/{ttnn.get_memory_view(mesh, ttnn.BufferType.DRAM).num_banks}")
        cores, by_rows = ttnn.CoreGrid(x=grid.x, y=grid.y), ttnn.ShardStrategy.HEIGHT
        shards = ttnn.create_sharded_memory_config((32, 64), cores, by_rows, use_height_and_width_as_shard_shape=True)
        x = torch.ones(1, 1, 32 * grid.x * grid.y, 64)
        x = ttnn.from_torch(x, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, memory_config=shards)
        y = ttnn.relu(x)
        assert y.memory_config().shard_spec.grid.num_cores() == grid.x * grid.y
        if columns > 1:
            y = ttnn.all_gather(ttnn.to_memory_config(y, ttnn.DRAM_MEMORY_CONFIG), dim=3, cluster_axis=1)
            assert list(y.shape) == [1, 1, 32 * grid.x * grid.y, 64 * columns]
        assert "/dev/shm" not in open("/proc/self/maps").read(), "shared memory, which would be left behind"
        ttnn.close_mesh_device(mesh)
        ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
"""
# Shapes, and grid/DRAM banks with default and with worker dispatch. One harvested row of the N150 leaves nine: one for
# dispatch, eight for programs. Two leave eight: dispatch is on ethernet cores by default, and takes a row of the eight
# if it is asked to use worker cores. A Blackhole has 14 columns, two harvested (one in a Galaxy), and dispatches from
# one.
MESHES = {
    "N150": ([(1, 1)], "8x8/12", "8x8/12"),
    "N300": ([(1, 1), (1, 2)], "8x8/12", "8x7/12"),
    "N150x4": ([(1, 4), (2, 2), (1, 2), (1, 1)], "8x8/12", "8x8/12"),
    "T3K": ([(1, 8), (2, 4), (1, 4), (2, 2), (1, 2), (1, 1)], "8x8/12", "8x7/12"),
    "GALAXY": ([(4, 8)], "8x9/12", "8x9/12"),
    "P100": ([(1, 1)], "11x10/7", "11x10/7"),
    "P150": ([(1, 1)], "11x10/8", "11x10/8"),
    "P300": ([(1, 2), (1, 1)], "11x10/8", "11x10/8"),
    "P150x4": ([(1, 4), (2, 2)], "11x10/8", "11x10/8"),
    "P150x8": ([(2, 4), (1, 8)], "11x10/8", "11x10/8"),
    "BHGLX": ([(4, 8)], "12x10/8", "12x10/8"),
}


def files_of_the_wheel() -> dict[str, tuple[int, int]]:
    """The size and modification time of all files of ttnn, except Python's own caches."""
    package = Path(importlib.util.find_spec("ttnn").origin).parent
    files = [p for p in package.rglob("*") if "__pycache__" not in p.parts and not p.is_dir()]
    return {f"{path}": (path.lstat().st_size, path.lstat().st_mtime_ns) for path in files}


@pytest.mark.parametrize("system", MESHES)
def test_every_mesh_opens_with_its_grid_and_nothing_is_left_behind(system, python, tmp_path):
    shapes, *grids = MESHES[system]
    folders = [tmp_path / name for name in ("work", "home", "a temporary folder; 'quoted'")]
    for folder in folders:
        folder.mkdir()
    work, home, temporary = folders
    before = files_of_the_wheel()
    how = dict(HOME=f"{home}", TMPDIR=f"{temporary}", PYTHONDONTWRITEBYTECODE="1")
    done = python("-c", OPEN_MESHES, system, json.dumps(shapes), cwd=work, **how)
    assert (done.stderr, done.stdout.split()) == ("", grids * len(shapes))
    assert files_of_the_wheel() == before, "the wheel was changed"
    assert [list(folder.iterdir()) for folder in folders] == [[], [], []]


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


@pytest.mark.parametrize(
    "folders, message",
    [
        (None, "looked for the Python package ttnn.*install ttnn"),
        ("tt_metal/hw", "looked for runtime/hw in .*install ttnn"),
        ("tt_metal/hw runtime/hw tt_metal/soc_descriptors", "looked for the 8x7 grid.*install ttnn"),
    ],
)
def test_no_ttnn_or_one_with_other_folders_or_chip_descriptions(tmp_path, monkeypatch, folders, message):
    package, spec = tmp_path / "ttnn", None
    if folders is not None:
        spec = SimpleNamespace(origin=f"{package / '__init__.py'}")
        for folder in (*folders.split(), "tt_metal/core_descriptors"):
            (package / folder).mkdir(parents=True)
        (package / "tt_metal/core_descriptors/wormhole_b0_80_arch.yaml").write_text("nebula_x1:\n")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(GoldenMeshError, match=message):
        make_environment(SYSTEMS["N300"], tmp_path / "mock")


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_systems_are_consistent(system):
    """Each chip is described once, and two links join each pair of neighbors in the mesh, and no other pair."""
    chips = list(range(system.chips))
    descriptor = yaml.safe_load(system.descriptor())
    placed = bool(system.coordinates)  # else ttnn finds the places of the chips
    for part in ("arch", "chips" if placed else "chip_unique_ids", "harvesting"):
        assert list(descriptor[part]) == chips
    assert sorted(chip for board in system.boards for chip in board.chips) == chips
    assert len({board[0]["board_id"] for board in descriptor["boards"]}) == len(system.boards)
    ports = [port for link in system.links for port in link]
    assert len(set(ports)) == len(ports), "an ethernet channel is used twice"
    assert all(channel < 16 for _, channel in ports), "a Wormhole has 16 ethernet channels"
    if placed:
        places = dict(enumerate(system.coordinates))
        beside = lambda a, b: sum(abs(i - j) for i, j in zip(places[a], places[b])) == 1
        neighbors = {(a, b) for a in places for b in places if a < b and beside(a, b)}
        joined = Counter(tuple(sorted((a, b))) for (a, _), (b, _) in system.links)
        assert joined == dict.fromkeys(neighbors, 2)


def test_four_links_join_each_chip_of_a_galaxy_to_each_of_four_others():
    galaxy = SYSTEMS[named("TG")]  # tt-metal's tests name it so
    cables = Counter(tuple(sorted((a, b))) for (a, _), (b, _) in galaxy.links)
    assert set(cables.values()) == {4} and len(cables) == 2 * 32
    assert Counter(chip for pair in cables for chip in pair) == {chip: 4 for chip in range(32)}
    assert yaml.safe_load(galaxy.descriptor())["chips_with_mmio"] == [{chip: chip} for chip in range(32)]


@pytest.mark.parametrize("said", [{}, {"OMP_WAIT_POLICY": "active", "TT_LOGGER_LEVEL": "off"}])
def test_libraries_get_settings_that_the_user_has_not_set(python, said):
    """Waiting threads sleep. Spinning threads make decode ten times slower beside a busy process."""
    code = "import golden_mesh, os, json; golden_mesh.activate('N150'); print(json.dumps({**os.environ}))"
    made = json.loads(python("-c", code, HOME="", **said).stdout)
    usual = {"OMP_WAIT_POLICY": "passive", "OMPI_MCA_btl": "self", "TT_LOGGER_LEVEL": "error"}
    assert {name: made[name] for name in usual} == usual | said
    directory = Path(made["TT_METAL_RUNTIME_ROOT"]).parent
    for name in ("TT_METAL_CACHE", "TORCHINDUCTOR_CACHE_DIR", "HOME"):
        assert Path(made[name]).is_relative_to(directory)
