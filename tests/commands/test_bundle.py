"""A bundle for tt-model-manager has the files of a thin package, and starts scripts/serve.py."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import make_bundle
import pytest
from programs import run_python

from models.demos.qwen25_7b.config.decoder_config import FAMILIES
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.machines import MACHINES
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

MODEL = "Qwen/Qwen2.5-7B-Instruct"


@pytest.fixture
def bundle(tmp_path, request) -> Path:
    make_bundle.write_bundle(MACHINES[getattr(request, "param", "N300")], MODEL, tmp_path / "b")
    return tmp_path / "b"


@pytest.mark.parametrize(
    "bundle, chips, arch",
    [("N150", 1, "wormhole_b0"), ("T3K", 8, "wormhole_b0"), ("P150x4", 4, "blackhole")],
    indirect=["bundle"],
)
def test_the_manifest_is_a_thin_packages(bundle, chips, arch):
    manifest = json.loads((bundle / "tt_kernel_manifest.json").read_text())
    assert (manifest["schema_version"], manifest["arch"]) == ("6", arch)
    assert manifest["device_count"] == manifest["mesh"]["devices"] == chips
    assert manifest["weights"] == {"repo": MODEL}
    for name in (manifest["deps"]["requirements"], manifest["deps"]["vllm"]["overrides"]):
        assert (bundle / name).read_text()
    metadata = json.loads((bundle / "vllm_models/qwen25_7b/vllm_metadata.json").read_text())
    assert metadata["main_class"] == manifest["entrypoint"]["class"]
    module, _, name = metadata["main_class"].partition(":")
    assert f"{name} = " in (bundle / f"{module}.py").read_text()
    assert "ttnn==" in (bundle / "requirements.txt").read_text()
    assert not list(bundle.rglob("*.safetensors"))


def test_run_sh_starts_the_server_script(bundle):
    """The environment's Python is a stand-in that prints what it is given."""
    python = bundle / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$MESH_DEVICE" "$@"\n')
    python.chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if k not in ("MESH_DEVICE", "MODEL", "VENV", "HF_HOME")}

    def run(**changes) -> list[str]:
        command = ["bash", f"{bundle}/run.sh", "--port", "1"]
        done = subprocess.run(command, env=environment | changes, capture_output=True, text=True)
        return done.stdout.split()

    script = f"{bundle}/scripts/serve.py"
    manifest = json.loads((bundle / "tt_kernel_manifest.json").read_text())
    options = ["--port", "20000"]
    for key, value in manifest["resources"].items():
        options += [f"--{key.replace('_', '-')}", str(value)]
    options += ["--port", "1"]  # vLLM takes the last one
    assert run() == ["N300", script, MODEL, *options]
    line = subprocess.run(
        ["sh", f"{bundle}/run.sh", "--x", "it's a b"],
        env=environment | {"TT_MODEL_PRINT": "1", "HF_HOME": "/a b"},
        capture_output=True,
        text=True,
    ).stdout
    words = ["env", "MESH_DEVICE=N300", "HF_HOME=/a b", f"{python}", script, MODEL, *options[:-2], "--x", "it's a b"]
    assert shlex.split(line) == words, "a shell takes the line"
    assert run(MODEL="/m", MESH_DEVICE="T3K") == ["T3K", script, "/m", *options]
    python.write_text('#!/bin/sh\necho "$2" "${HF_HOME:-}"\n')
    (bundle / ".hf").mkdir()
    assert run() == [MODEL, f"{bundle}/.hf"], "the cache that tt-model pull --with-weights filled"
    (bundle / "weights").mkdir()
    (bundle / "weights/config.json").write_text("{}")
    assert run(HF_HOME="/h") == [f"{bundle}/weights", "/h"]
    named = ["--served-model-name", MODEL.partition("/")[2], MODEL, "--port", "1"]
    assert shlex.split(" ".join(run(TT_MODEL_PRINT="1")))[-5:] == named


def test_its_class_finds_the_bundles_package(bundle):
    program = (
        "import sys, runpy, golden_mesh; golden_mesh.activate('N150'); runpy.run_path(sys.argv[1]); print(sys.path[-2])"
    )
    done = run_python("-c", program, f"{bundle}/model.py", cwd="/")
    assert done.stdout.strip() == f"{bundle}", done.stderr


def test_the_servers_script_finds_its_modules_in_the_bundle(bundle):
    environment = os.environ | {"PYTHONPATH": ""}
    command = [sys.executable, f"{bundle}/scripts/serve.py"]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
    assert "OpenAI-compatible server" in done.stderr, done.stderr


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_a_bundle_of_another_family(tmp_path, monkeypatch, family):
    arch = FAMILIES[family].architecture
    config = json.loads((SMALL_CHECKPOINT / "config.json").read_text()) | dict(model_type=family, architectures=[arch])
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(make_bundle, "local_directory", lambda *_: tmp_path)
    make_bundle.write_bundle(MACHINES["N300"], "org/other", tmp_path / "b")
    assert json.loads((tmp_path / "b/tt_kernel_manifest.json").read_text())["entrypoint"]["arch_name"] == arch
    assert json.loads((tmp_path / "b/vllm_models/qwen25_7b/vllm_metadata.json").read_text())["arch"] == arch
    card = (tmp_path / "b/README.md").read_text()
    assert "org/other" in card and "Qwen" not in card and "license:" not in card


@pytest.mark.parametrize("model", ["x; touch F #", "/abs/path", "../up", "", "models", "a/b/c"])
def test_a_model_that_is_no_hub_id_is_one_line(tmp_path, model):
    """A directory, too: its path means nothing where the bundle is unpacked."""
    with pytest.raises(UserError, match="hub id"):
        make_bundle.write_bundle(MACHINES["N300"], model, tmp_path / "b")
    assert not list(tmp_path.iterdir())
