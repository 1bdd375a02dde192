"""The tool on the small checkpoint: its output, its divergence, and refused inputs."""

import filecmp
import json
import shutil
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from models.common.errors import UserError
from models.demos.qwen25_7b.config import PERFORMANCE
from models.demos.qwen25_7b.quantize.__main__ import main
from models.demos.qwen25_7b.quantize.compare import float_model, round_mlp, scored
from models.demos.qwen25_7b.quantize.compare import main as compare_main
from models.demos.qwen25_7b.quantize.output import Output
from models.demos.qwen25_7b.quantize.quantizer import check_blocks, quantize
from models.demos.qwen25_7b.quantize.rounding import rounded
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer
from models.demos.qwen25_7b.weights import Checkpoint
from models.demos.qwen25_7b.weights.checkpoint import tensor_shapes
from tests.quantize.conftest import TOKENS

FORMATS = {
    "gate_proj.weight": "bfloat4_b",
    "up_proj.weight": "bfloat4_b",
    "down_proj.weight": "bfloat8_b",
}


def hugging_faces(directory):
    return (
        AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        .eval()
        .requires_grad_(False)
    )


@pytest.fixture(scope="module")
def original():
    return hugging_faces(SMALL_CHECKPOINT)


@pytest.fixture(scope="module")
def ids(held_out):
    return torch.tensor(
        ChatTokenizer(SMALL_CHECKPOINT, instruct=False).hf.encode(held_out)[:TOKENS]
    ).view(2, -1)


def test_quantized_values_fit_their_formats_and_other_tensors_are_unchanged(quantized):
    before, after = Checkpoint.open(SMALL_CHECKPOINT), Checkpoint.open(quantized)
    for name in tensor_shapes(before.config):
        format = next((format for end, format in FORMATS.items() if name.endswith(end)), None)
        tensor = after.tensor(name)
        if format is None:
            assert tensor.equal(before.tensor(name)), name
        else:
            held = tensor.t().float().contiguous()
            assert rounded(held, format).equal(held) and not tensor.equal(before.tensor(name)), name


def test_config_and_tokenizer_are_copied(quantized):
    assert Checkpoint.open(quantized).config == Checkpoint.open(SMALL_CHECKPOINT).config
    assert (quantized / "generation_config.json").read_text() == (
        SMALL_CHECKPOINT / "generation_config.json"
    ).read_text()
    texts = [ChatTokenizer(directory, instruct=True) for directory in (quantized, SMALL_CHECKPOINT)]
    assert texts[0].encode("What is 2 plus 3?") == texts[1].encode("What is 2 plus 3?")
    assert texts[0].stop_ids == texts[1].stop_ids


def test_quantized_predictions_are_nearer_than_rounded_ones(quantized, original, ids):
    """On a new text, the divergence is less than half of that of plain rounding."""
    alone = round_mlp(float_model(Checkpoint.open(SMALL_CHECKPOINT)))
    by_tool, by_rounding = (
        scored(original, m, ids).summary().kl_mean for m in (hugging_faces(quantized), alone)
    )
    assert by_tool < 0.5 * by_rounding, f"{by_tool:.2e}, by rounding {by_rounding:.2e}"


class Killed(BaseException):
    pass


@pytest.mark.parametrize("files", (0, 3, 4))
def test_a_killed_run_resumes_and_writes_the_same_bytes(
    quantized, calibration, tmp_path, monkeypatch, files
):
    """The run is killed after `files` files.

    - 0: Before the first layer.
    - 3: Between a layer and its output streams.
    - 4: After both.
    """
    out = tmp_path / "model"
    save, written = Output._save, []

    def save_until_killed(output, file, tensors):
        if len(written) == files:
            file.with_name(f"{file.name}.part").write_bytes(b"half")
            raise Killed
        written.append(file)
        save(output, file, tensors)

    monkeypatch.setattr(Output, "_save", save_until_killed)
    with pytest.raises(Killed):
        quantize(SMALL_CHECKPOINT, calibration, out, PERFORMANCE, TOKENS)
    monkeypatch.undo()
    with pytest.raises(UserError):
        Checkpoint.open(out)  # a loader refuses the unfinished model
    layers = []
    quantize(
        SMALL_CHECKPOINT,
        calibration,
        out,
        PERFORMANCE,
        TOKENS,
        lambda done, total: layers.append(done),
    )
    assert layers[0] == files // 2, "what was done is done again"
    same, other, missing = filecmp.cmpfiles(
        quantized, out, {p.name for d in (quantized, out) for p in d.iterdir()}, False
    )
    assert not other and not missing and len(same) >= 9


def test_each_layer_has_its_own_formats(calibration, tmp_path):
    """Layer 2 has gate and up in 8 bits and down in 4. The other layers are the other way round."""
    four, eight = PERFORMANCE.mlp_in, PERFORMANCE.mlp_out
    other = replace(PERFORMANCE, mlp_in=eight, mlp_out=four)
    quantize(
        SMALL_CHECKPOINT,
        calibration,
        tmp_path / "model",
        replace(PERFORMANCE, different=((2, other),)),
        512,
    )
    checkpoint = Checkpoint.open(tmp_path / "model")
    for layer in (1, 2):
        for name in ("gate", "up", "down"):
            weight = checkpoint.tensor(f"model.layers.{layer}.mlp.{name}_proj.weight")
            held = weight.t().float().contiguous()
            assert rounded(held, "bfloat8_b").equal(held)
            in_four_bits = (name == "down") == (layer == 2)
            assert rounded(held, "bfloat4_b").equal(held) == in_four_bits, (layer, name)


def refused(capsys, *arguments) -> str:
    """Run the command, and return its error line."""
    assert main([str(argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


@pytest.mark.parametrize(
    "content, says",
    (
        (b"Too short. " * 20, "1 are needed"),
        (b"", "gives 0 sequences"),
        (b"ab\xff", "not UTF-8 (byte 2"),
        (b"a" * (5 << 20), "longer than 4 MiB"),
        (None, "not found"),
    ),
    ids=("short", "empty", "not text", "huge", "missing"),
)
def test_a_bad_calibration_text_is_refused(capsys, tmp_path, content, says):
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    out = tmp_path / "out"
    error = refused(capsys, "--model", SMALL_CHECKPOINT, "--calibration", file, "--out", out)
    assert says in error and "text.txt" in error
    assert not out.exists()


def test_too_few_tokens_requested(capsys, calibration, tmp_path):
    common = "--model", SMALL_CHECKPOINT, "--calibration", calibration, "--out", tmp_path / "out"
    assert "256 inputs" in refused(capsys, *common, "--tokens", 100)
    assert "--tokens must be" in refused(capsys, *common, "--tokens", 0)


def test_an_existing_output_is_refused(capsys, quantized, calibration, tmp_path):
    common = "--model", SMALL_CHECKPOINT, "--calibration", calibration, "--out"
    assert "exists" in refused(capsys, *common, quantized)
    file = tmp_path / "file"
    file.write_text("x")
    assert "exists" in refused(capsys, *common, file)


def test_an_unfinished_run_with_other_settings_is_refused(
    capsys, calibration, tmp_path, monkeypatch
):
    common = "--model", SMALL_CHECKPOINT, "--calibration", calibration, "--out", tmp_path / "out"
    (tmp_path / "out" / "unfinished").mkdir(parents=True)
    settings = tmp_path / "out" / "unfinished" / "settings.json"
    settings.write_text(json.dumps({"formats": ["gate"]}))
    error = refused(capsys, *common)
    assert "another" in error and "formats" in error
    settings.write_text("{")
    assert "cannot be used" in refused(capsys, *common)
    shutil.rmtree(tmp_path / "out")


def test_a_model_whose_dims_are_no_whole_blocks():
    config = Checkpoint.open(SMALL_CHECKPOINT).config
    check_blocks(config)
    with pytest.raises(UserError, match="intermediate_size must be a multiple of 16"):
        check_blocks(replace(config, intermediate_size=1180))


def test_compare_rounds_every_weight_to_a_recipe(capsys, held_out, tmp_path):
    """The second row has the first row's weights, so the change is zero."""
    text = tmp_path / "held_out.txt"
    text.write_text(held_out)
    common = "--model", SMALL_CHECKPOINT, "--text", text, "--tokens", 512, SMALL_CHECKPOINT
    assert compare_main([f"{a}" for a in (*common, "--recipes", "bf16,bfp8")]) == 0
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("| bf")
    ]
    assert [row[0] for row in rows] == ["bf16", "bf16", "bfp8", "bfp8"]
    kl = [float(row[2].split()[0]) for row in rows]
    assert kl[0] == kl[1] < 1e-5 < kl[2] == kl[3] < 1e-3
    assert [row[3] for row in rows] == ["", "+0.00000 (0.00000)"] * 2
    for wrong in ("bfp9", "", "bfp8,"):
        assert compare_main([f"{a}" for a in (*common, "--recipes", wrong)]) == 2
        assert "--recipes" in capsys.readouterr().err
