"""The tool on the small checkpoint: its output, its divergence, its logits on chips, and refused inputs."""

import filecmp
from dataclasses import replace

import pytest
import torch
from qwen25_7b_lab.evaluation.divergence import compare
from qwen25_7b_lab.quantize import calibration as calibration_module
from qwen25_7b_lab.quantize import output
from qwen25_7b_lab.quantize.__main__ import main
from qwen25_7b_lab.quantize.quantizer import quantize
from qwen25_7b_lab.quantize.rounding import rounded
from qwen25_7b_lab.rounded import round_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from models.demos.qwen25_7b.config import BF16, PERFORMANCE
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.text.tokenizer import ChatTokenizer
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint, tensor_shapes
from tests.families import save
from tests.generation import training_chats
from tests.pcc.reference import Reference
from tests.pcc.test_transformer import assert_hugging_faces_logits
from tests.quantize.conftest import TOKENS

FORMATS = {"gate_proj.weight": "bfloat4_b", "up_proj.weight": "bfloat4_b", "down_proj.weight": "bfloat8_b"}


def hugging_faces(directory):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def ids():
    """Of chats that are not the calibration's."""
    tokenizer = ChatTokenizer(SMALL_CHECKPOINT, instruct=False).hf
    return torch.tensor(tokenizer.encode(training_chats(1))[:TOKENS]).view(2, -1)


def test_quantized_values_fit_their_formats_and_other_tensors_are_unchanged(checkpoint, quantized):
    after = Checkpoint.open(quantized)
    for name in tensor_shapes(checkpoint.config):
        format = next((format for end, format in FORMATS.items() if name.endswith(end)), None)
        tensor = after.tensor(name)
        if format is None:
            assert tensor.equal(checkpoint.tensor(name)), name
        else:
            held = tensor.t().float().contiguous()
            assert rounded(held, format).equal(held) and not tensor.equal(checkpoint.tensor(name)), name


def test_config_and_tokenizer_are_copied(checkpoint, quantized):
    assert Checkpoint.open(quantized).config == checkpoint.config
    assert (quantized / "generation_config.json").read_text() == (
        SMALL_CHECKPOINT / "generation_config.json"
    ).read_text()
    texts = [ChatTokenizer(directory, instruct=True) for directory in (quantized, SMALL_CHECKPOINT)]
    assert texts[0].encode("What is 2 plus 3?") == texts[1].encode("What is 2 plus 3?")
    assert texts[0].stop_ids == texts[1].stop_ids


@pytest.mark.parametrize("name", ["gate_proj.bias", "down_proj.bias", "norm.weight"])
def test_a_tensor_of_the_mlp_that_is_not_read_is_refused(checkpoint, calibration, tmp_path, name):
    """Its columns would be the old order's."""
    other = replace(checkpoint, headers={**checkpoint.headers, f"model.layers.1.mlp.{name}": None})
    with pytest.raises(UserError, match=f"does not read model.layers.1.mlp.{name}"):
        quantize(other, calibration, tmp_path / "out", PERFORMANCE, TOKENS)
    assert not (tmp_path / "out").exists()


@torch.no_grad()
def divergence(model, original, ids) -> float:
    logits, reference = (m(ids).logits[:, :-1].flatten(0, 1) for m in (model, original))
    return compare(logits, reference, ids[:, 1:].flatten()).summary()["kl_mean"]


def assert_nearer(quantized, directory, ids, most: float) -> None:
    """On a new text, the tool's divergence is less than `most` of that of plain rounding."""
    by_tool, by_rounding, original = map(hugging_faces, (quantized, directory, directory))
    round_model(by_rounding, replace(BF16, mlp_in=PERFORMANCE.mlp_in, mlp_out=PERFORMANCE.mlp_out))
    ratio = divergence(by_tool, original, ids) / divergence(by_rounding, original, ids)
    assert ratio < most, f"{ratio:.2f} of it"


def test_quantized_predictions_are_nearer_than_rounded_ones(quantized, ids):
    assert_nearer(quantized, SMALL_CHECKPOINT, ids, most=0.5)


@pytest.mark.parametrize("family", ["qwen3", "llama-bias"])
def test_other_families_have_nearer_predictions_than_rounded_ones(family, calibration, ids, tmp_path):
    """Layers with head norms, and with biases of q, k, v and o."""
    save(family, tmp_path / "model")
    before = Checkpoint.open(tmp_path / "model")
    quantize(before, calibration, tmp_path / "quantized", PERFORMANCE, TOKENS)
    after = Checkpoint.open(tmp_path / "quantized")
    assert after.config == before.config
    o = "model.layers.0.self_attn.o_proj.weight"
    assert after.tensor(o).equal(before.tensor(o))
    assert_nearer(tmp_path / "quantized", tmp_path / "model", ids, most=0.7)


def test_the_chips_logits_are_hugging_faces_of_the_quantized_weights(mesh_device, quantized):
    checkpoint = Checkpoint.open(quantized)
    weights = {name: checkpoint.tensor(name) for name in tensor_shapes(checkpoint.config)}
    reference = Reference.of(checkpoint.config, weights, range(checkpoint.config.num_hidden_layers))
    assert_hugging_faces_logits(mesh_device, reference, PERFORMANCE)
    mesh_device.clear_program_cache()  # see tests/pcc/conftest.py


class Killed(BaseException):
    pass


@pytest.mark.parametrize("files", (3, 4))
def test_a_killed_run_resumes_and_writes_the_same_bytes(
    checkpoint, quantized, calibration, tmp_path, monkeypatch, capsys, files
):
    """The run is killed after `files` files: between a layer and its output streams, and after both."""
    out = tmp_path / "model"
    written = []

    def save_until_killed(tensors, file, metadata):
        if len(written) == files:
            file.write_bytes(b"half")
            raise Killed
        written.append(file)
        save_file(tensors, file, metadata)

    monkeypatch.setattr(output, "save_file", save_until_killed)
    with pytest.raises(Killed):
        quantize(checkpoint, calibration, out, PERFORMANCE, TOKENS)
    monkeypatch.undo()
    with pytest.raises(UserError):
        Checkpoint.open(out)  # a loader refuses the unfinished model
    quantize(checkpoint, calibration, out, PERFORMANCE, TOKENS)
    said = f"{files // 2} of 4 layers are done" if files // 2 else ""
    assert said in capsys.readouterr().out, "what was done is done again"
    same, other, missing = filecmp.cmpfiles(
        quantized, out, {p.name for d in (quantized, out) for p in d.iterdir()}, False
    )
    assert not other and not missing and len(same) >= 9


def test_each_layer_has_its_own_formats(checkpoint, calibration, tmp_path):
    """Layer 2 has gate and up in 8 bits and down in 4. The other layers are the other way round."""
    four, eight = PERFORMANCE.mlp_in, PERFORMANCE.mlp_out
    other = replace(PERFORMANCE, mlp_in=eight, mlp_out=four)
    recipe = replace(PERFORMANCE, different=((2, other),))
    quantize(checkpoint, calibration, tmp_path / "model", recipe, 512)
    quantized = Checkpoint.open(tmp_path / "model")
    for layer in (1, 2):
        for name in ("gate", "up", "down"):
            weight = quantized.tensor(f"model.layers.{layer}.mlp.{name}_proj.weight")
            held = weight.t().float().contiguous()
            assert rounded(held, "bfloat8_b").equal(held)
            in_four_bits = (name == "down") == (layer == 2)
            assert rounded(held, "bfloat4_b").equal(held) == in_four_bits, (layer, name)


def test_without_a_calibration_text_the_model_writes_one(tmp_path, monkeypatch):
    """The text stands beside the output, and a second run takes it."""
    monkeypatch.setattr(calibration_module, "TOKENS", 12)
    common = "--model", SMALL_CHECKPOINT, "--steps", 0, "--tokens", 512, "--out", tmp_path / "out"
    main([f"{a}" for a in common])
    text = (tmp_path / "out.txt").read_text()
    assert len(text.split("\n\n")) >= 64 and (tmp_path / "out/config.json").is_file()
    with pytest.raises(UserError, match="exists"):
        main([f"{a}" for a in common])
    assert (tmp_path / "out.txt").read_text() == text
