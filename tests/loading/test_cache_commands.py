"""python -m models.demos.qwen25_7b.loading lists, verifies and prunes a cache."""

import fcntl
import re
import shutil

import pytest

from models.demos.qwen25_7b.config import BF16
from models.demos.qwen25_7b.loading.__main__ import main
from tests.loading.support import assert_same, leftovers, load, made, tiles


@pytest.fixture
def command(cache, capsys):
    """command("list") -> (status, stdout, stderr)"""

    def run(*words: str) -> tuple[int, str, str]:
        status = main(["--cache", f"{cache}", *words])
        return status, *capsys.readouterr()

    return run


def size(cache) -> float:
    return sum(file.stat().st_size for file in tiles(cache)) / 1e6


def test_list_names_models_splits_recipes_and_sizes(model, cache, command):
    load(model, cache)
    load(model, cache, tp=1, recipe=BF16)
    status, out, _ = command("list")
    assert status == 0
    total = re.search(rf"^{cache}: ([\d.]+) MB in {len(tiles(cache))} files$", out, re.MULTILINE)
    assert float(total[1]) == pytest.approx(size(cache), abs=0.1)
    for split in ("tp 2, recipe bfp8", "tp 1, recipe bf16"):
        assert re.search(rf"^  {model}: {split}, [\d.]+ MB, ttnn [\d.]+$", out, re.MULTILINE), out
    for file in tiles(cache):
        file.unlink()
    count = len(made(model))
    assert f"{count} of {count} files missing" in command("list")[1]


def test_verify_removes_what_is_damaged(model, cache, command, right):
    load(model, cache)
    assert (
        command("verify")[1] == f"{cache}: {size(cache):.1f} MB in {len(right)} files, all whole\n"
    )
    tiles(cache)[4].write_bytes(b"\0" + tiles(cache)[4].read_bytes()[1:])
    status, _, error = command("verify")
    assert (
        status == 2 and error.count("\n") == 1 and f"1 of {len(right)} files were damaged" in error
    )
    assert len(tiles(cache)) == len(right) - 1
    assert_same(load(model, cache), right)


def test_prune_keeps_what_complete_loads_use(model, cache, command, right):
    load(model, cache)
    load(model, cache, tp=1)
    (manifest,) = [file for file in cache.glob("models/*/loads/*") if '"tp": 1' in file.read_text()]
    manifest.unlink()  # like a load that was killed
    (cache / "tmp" / ("a" * 32 + ".tensorbin")).write_bytes(b"half")
    manifest.with_name(f"{manifest.name}.{'b' * 32}.part").write_bytes(b"half")
    status, out, _ = command("prune")
    assert status == 0 and "MB removed" in out
    assert len(tiles(cache)) == len(right) and not leftovers(cache)
    assert_same(load(model, cache), right)


def test_prune_removes_what_another_version_packed(model, cache, command):
    load(model, cache)
    (manifest,) = cache.glob("models/*/loads/*")
    manifest.write_text(re.sub(r'"ttnn": "[^"]*"', '"ttnn": "0.80.0"', manifest.read_text()))
    assert command("prune")[0] == 0
    assert not tiles(cache)


def test_prune_removes_the_tiles_of_a_replaced_checkpoint(model, cache, command):
    from tests.loading.test_faults import change

    load(model, cache)
    change(model)
    load(model, cache)
    before = len(tiles(cache))
    command("prune")
    assert len(tiles(cache)) == len(made(model)) < before


def test_prune_forgets_a_model_and_no_other(model, cache, command, tmp_path, right):
    other = shutil.copytree(model, tmp_path / "other")
    load(model, cache)
    load(other, cache)
    assert command("prune", "--model", f"{other}")[0] == 0
    assert len(tiles(cache)) == len(right)
    assert command("prune", "--model", f"{model}")[0] == 0
    assert not tiles(cache)
    status, _, error = command("prune", "--model", f"{model}")
    assert status == 2 and f"knows nothing of {model}" in error


def test_prune_all_leaves_nothing(model, cache, command):
    load(model, cache)
    assert command("prune", "--all")[0] == 0
    assert not tiles(cache) and not list((cache / "models").glob("*"))


def test_prune_does_not_wait_for_a_load(model, cache, command, right):
    load(model, cache)
    with open(cache / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        status, _, error = command("prune", "--all")
    assert status == 2 and "a process is loading with it" in error
    assert len(tiles(cache)) == len(right)


@pytest.mark.parametrize("name", ["list", "verify", "prune"])
def test_a_directory_without_a_cache_is_one_line(cache, command, name):
    status, out, error = command(name)
    assert status == 2 and out == "" and error == f"error: {cache}: there is no cache\n"
    assert not cache.exists()
