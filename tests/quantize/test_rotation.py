"""A rotated checkpoint is the same model: exact in float64, and with the same texts on a mesh. Refused inputs leave nothing."""

import json
import os
import shutil
from dataclasses import replace

import pytest
import torch
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from models.common.errors import UserError
from models.common.mesh import traces_available
from models.demos.qwen25_7b.config import BF16, BFP8, QwenConfig
from models.demos.qwen25_7b.quantize import rotated_checkpoint
from models.demos.qwen25_7b.quantize.compare import float_model
from models.demos.qwen25_7b.quantize.rotate import main
from models.demos.qwen25_7b.quantize.rotated_checkpoint import rotated_config, write_rotated
from models.demos.qwen25_7b.quantize.rotation import Rotation, hadamard, mixed_channels
from models.demos.qwen25_7b.reference.hf import hf_model, random_weights
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer
from models.demos.qwen25_7b.weights import Checkpoint
from models.demos.qwen25_7b.weights.checkpoint import tensor_shapes

TINY = QwenConfig(
    vocab_size=80,
    hidden_size=96,  # three blocks of 32
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-2,  # large enough to be seen
    rope_theta=1e4,
    max_position_embeddings=64,
)
QUESTIONS = ("What is the capital of France?", "Spell the word banana.", "What is 7 + 5?")
NEW_TOKENS = 16


def logits(config, weights, ids):
    model = hf_model(config, weights).double()
    model.load_state_dict({name: tensor.double() for name, tensor in weights.items()})
    return model(ids).logits


@pytest.fixture
def norms_in_float64(monkeypatch):
    """Hugging Face's norm computes in float32."""

    def forward(norm, x):
        return norm.weight * x * (x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()

    monkeypatch.setattr(Qwen2RMSNorm, "forward", forward)


@torch.no_grad()
@pytest.mark.parametrize("tied", (False, True), ids=("untied", "tied"))
def test_the_rotated_model_is_the_same_in_float64(norms_in_float64, tied):
    config = replace(TINY, tie_word_embeddings=tied)
    weights = random_weights(config)
    generator = torch.Generator().manual_seed(1)
    for name in weights:
        if "norm" in name:  # of both signs, and one is 0
            weights[name] = torch.randn(TINY.hidden_size, generator=generator).bfloat16()
            weights[name][5] = 0
    if tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    rotation = Rotation.sorting(config, weights.__getitem__)
    rotated = {}
    for i in range(config.num_hidden_layers):
        prefix = f"model.layers.{i}."
        layer = {n.removeprefix(prefix): t for n, t in weights.items() if n.startswith(prefix)}
        rotated |= {prefix + n: t for n, t in rotation.turned_layer(layer).items()}
    for ends in (rotation.turned_embedding, rotation.turned_head):
        rotated |= ends(weights.__getitem__, torch.float64)
    assert all((t == 1).all() for name, t in rotated.items() if "norm" in name)
    moved = (
        rotated["model.layers.0.mlp.down_proj.weight"]
        - weights["model.layers.0.mlp.down_proj.weight"].double()
    )
    assert moved.norm() > 1, "nothing is rotated"

    ids = torch.randint(0, TINY.vocab_size, (2, 20), generator=generator)
    expected = logits(config, weights, ids)
    found = logits(replace(config, tie_word_embeddings=False), rotated, ids)
    assert (found - expected).abs().max() < 1e-11 * expected.abs().max()


def test_blocks_of_channels():
    assert [mixed_channels(size) for size in (3584, 576, 896, 256, 96, 80)] == [
        64,
        64,
        64,
        64,
        32,
        16,
    ]
    for size in (16, 64):
        assert (hadamard(size) @ hadamard(size) - torch.eye(size)).abs().max() < 1e-15
    with pytest.raises(UserError, match="hidden_size must be a multiple of 16.*got 72"):
        mixed_channels(72)


@pytest.fixture(scope="module")
def rotated(tmp_path_factory):
    """The directory of the rotated small checkpoint."""
    out = tmp_path_factory.mktemp("rotated") / "new" / "model"
    write_rotated(f"{SMALL_CHECKPOINT}", out)
    return out


def test_the_directory_is_a_checkpoint_with_its_own_lm_head(rotated):
    before, after = Checkpoint.open(SMALL_CHECKPOINT), Checkpoint.open(rotated)
    assert after.config == before.config and len(after.files) == 6
    assert {header.dtype for header in after.headers.values()} == {"F32"}
    names = {path.name for path in SMALL_CHECKPOINT.iterdir()} - {"model.safetensors"}
    assert names <= {path.name for path in rotated.iterdir()}
    assert [path.name for path in rotated.parent.iterdir()] == ["model"]
    index = json.loads((rotated / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(
        after.tensor(name).nbytes for name in tensor_shapes(after.config)
    )
    fields = {"tie_word_embeddings": True, "dtype": "bfloat16", "vocab_size": 80}
    assert rotated_config(fields) == {
        "tie_word_embeddings": False, "dtype": "float32", "vocab_size": 80
    }  # fmt: skip


@pytest.mark.parametrize("recipe", (BF16, BFP8), ids=("bf16", "bfp8"))
def test_a_mesh_writes_the_texts_of_the_original(mesh_device, rotated, recipe):
    from models.demos.qwen25_7b.serving.generator import Generator
    from models.demos.qwen25_7b.serving.replica import Replica

    checkpoint, tokenizer = Checkpoint.open(rotated), ChatTokenizer(rotated, instruct=True)
    prompts = [tokenizer.encode(question) for question in QUESTIONS]
    replica = Replica.load(
        mesh_device, checkpoint, checkpoint.config, recipe, users=len(prompts), max_seq_len=128,
        traced=traces_available(), queues=1,
    )  # fmt: skip
    new = [[] for _ in prompts]
    for token in Generator([replica]).generate(prompts, NEW_TOKENS, stop_ids=tokenizer.stop_ids):
        new[token.user].append(token.id)
    replica.close()
    original = float_model(Checkpoint.open(SMALL_CHECKPOINT))
    assert new == [greedy(original, prompt, tokenizer.stop_ids) for prompt in prompts]


def greedy(model, prompt, stop_ids) -> list[int]:
    ids = torch.tensor([prompt])
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False,
        eos_token_id=sorted(stop_ids),
    )  # fmt: skip
    return found[0, len(prompt) :].tolist()


def refused(capsys, model, out) -> str:
    """Run the command, and return its error line."""
    assert main(["--model", f"{model}", "--out", f"{out}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


def test_bad_inputs_are_refused_in_one_line(capsys, rotated, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "letter.txt").write_text("mine")
    for out in (full, full / "letter.txt", SMALL_CHECKPOINT):
        assert "exists; give a new directory" in refused(capsys, SMALL_CHECKPOINT, out)
    assert "norm weights are 1: the checkpoint is rotated already" in refused(
        capsys, rotated, tmp_path / "twice"
    )
    assert "holds neither" in refused(capsys, broken(tmp_path), tmp_path / "none")
    assert "cannot be written" in refused(capsys, SMALL_CHECKPOINT, full / "letter.txt" / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "full"]
    assert [path.name for path in full.iterdir()] == ["letter.txt"]


def broken(tmp_path):
    """A checkpoint without weights."""
    directory = tmp_path / "broken"
    directory.mkdir()
    shutil.copy(SMALL_CHECKPOINT / "config.json", directory)
    return directory


@pytest.mark.parametrize("stop", (KeyboardInterrupt, OSError(28, "No space left on device")))
def test_a_stopped_run_leaves_nothing(capsys, tmp_path, monkeypatch, stop):
    """The third file fails. An empty directory is taken, and is still there."""
    out, saved = tmp_path / "out", []
    out.mkdir()
    save_file = rotated_checkpoint.save_file

    def save(tensors, file, metadata):
        if len(saved) == 2:
            raise stop
        saved.append(file)
        save_file(tensors, file, metadata)

    monkeypatch.setattr(rotated_checkpoint, "save_file", save)
    for place in (out, tmp_path / "new" / "out"):
        saved.clear()
        status = main(["--model", f"{SMALL_CHECKPOINT}", "--out", f"{place}"])
        assert status == (2 if isinstance(stop, OSError) else 130)
        assert saved and not os.path.exists(saved[0])
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and not any(out.iterdir())
