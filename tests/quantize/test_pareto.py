"""The picture of KL over bytes: what is ranked, which recipes follow, and the command on the small checkpoint."""

import json
import re

import torch

from models.demos.qwen25_7b.config import BF16, BFP8, PERFORMANCE, QWEN25_7B, recipe_named
from models.demos.qwen25_7b.quantize import pareto
from models.demos.qwen25_7b.quantize.compare import float_model
from models.demos.qwen25_7b.quantize.pareto import (
    MATRICES,
    Cell,
    cell_costs,
    main,
    ranked,
    recipe_file_of,
    recipe_with,
    recipes_by_share,
    step_weight_bytes,
)
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.weights import Checkpoint


def test_a_cells_cost_is_the_kl_of_that_cell_alone():
    """The model is as before afterwards, and a layer that changes nothing costs nothing."""
    model = float_model(Checkpoint.open(SMALL_CHECKPOINT))
    model.model.layers[1].mlp.down_proj.weight.data.zero_()
    ids = torch.arange(40)[None]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    costs = cell_costs(model, ids, lambda done, total: None)
    assert set(costs) == {Cell(i, g) for i in range(len(model.model.layers)) for g in MATRICES}
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
    none = {Cell(1, "mlp_in"), Cell(1, "mlp_out")}
    assert all((cost > 1e-8) != (cell in none) for cell, cost in costs.items()), costs


def test_cells_are_ranked_by_kl_for_each_byte_saved():
    costs = {Cell(0, "mlp_in"): 3.0, Cell(0, "mlp_out"): 2.0, Cell(1, "mlp_out"): 1.0}
    assert ranked(costs) == [Cell(1, "mlp_out"), Cell(0, "mlp_in"), Cell(0, "mlp_out")]


def test_recipes_hold_their_share_of_the_mlp_in_4_bits(tmp_path):
    """Bytes fall with the share. A recipe file gives the recipe again."""
    order = [Cell(i, g) for g in MATRICES for i in range(QWEN25_7B.num_hidden_layers)]
    recipes = list(recipes_by_share(order, QWEN25_7B))
    assert [recipe.name for recipe in recipes] == ["mlp-33", "mlp-50", "mlp-67", "mlp-100"]
    sizes = [step_weight_bytes(QWEN25_7B, r) for r in (BF16, BFP8, *recipes)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[4] == step_weight_bytes(QWEN25_7B, PERFORMANCE)
    matrix = QWEN25_7B.hidden_size * QWEN25_7B.intermediate_size
    saved = sizes[1] - sizes[-1]
    assert saved == QWEN25_7B.num_hidden_layers * 3 * matrix // 2
    for recipe in recipes:
        file = tmp_path / f"{recipe.name}.json"
        file.write_text(json.dumps(recipe_file_of(recipe)))
        assert recipe_named(f"{file}") == recipe


def test_a_recipe_changes_only_its_cells():
    recipe = recipe_with([Cell(3, "mlp_out"), Cell(3, "mlp_in"), Cell(0, "mlp_out")], "some")
    formats = [
        (i, recipe.of_layer(i).mlp_in.format, recipe.of_layer(i).mlp_out.format) for i in (0, 1, 3)
    ]
    assert formats == [
        (0, "bfloat8_b", "bfloat4_b"),
        (1, "bfloat8_b", "bfloat8_b"),
        (3, "bfloat4_b", "bfloat4_b"),
    ]


def test_the_command_writes_recipes_checkpoints_and_a_picture(
    calibration, held_out, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(pareto, "SHARES", (1,))
    (tmp_path / "text.txt").write_text(held_out)
    out = tmp_path / "out"
    arguments = ["--model", SMALL_CHECKPOINT, "--calibration", calibration]
    arguments += ["--tokens", 512, "--steps", 4]
    arguments += ["--text", tmp_path / "text.txt", "--score-tokens", 512, "--out", out]
    assert main([f"{argument}" for argument in arguments]) == 0
    points = json.loads((out / "kl_by_bytes.json").read_text())["points"]
    kl = {(point["recipe"], point["weights"]): point["kl"] for point in points}
    for recipe in ("performance", "mlp-100"):
        assert kl[recipe, "by quantize"] < 0.7 * kl[recipe, "rounded"], kl
        assert recipe_named(f"{out / recipe}.json").mlp_in.format
        Checkpoint.open(out / recipe)
    assert kl["bf16", "rounded"] < kl["bfp8", "rounded"] < kl["mlp-100", "by quantize"]
    assert (out / "kl_by_bytes.png").stat().st_size > 10_000
    assert re.search(r"\| mlp-100 +\| by quantize +\|", capsys.readouterr().out)
