"""The divergence of a checkpoint with rounded weights from the checkpoint itself in float32.

    python -m models.demos.qwen25_7b.quantize.compare --model DIR --text FILE [QUANTIZED_DIR ...]

The comparison runs in torch with Hugging Face's arithmetic; only the weights have the values of block
floats. The table has a row for rounding alone, and one for each directory that `quantize` wrote. Use a
text that `quantize` was not calibrated on.

--recipes rounds all weights, of the checkpoint and of each directory, to each recipe's formats. The table has a row for each
recipe and directory. Standard errors are from the spread over tokens, and those of differences from the spread of
the tokens' differences.
"""

from typing import TYPE_CHECKING, Iterator, Sequence

from models.common.command import quiet_libraries, run, status_of

if TYPE_CHECKING:
    import torch
    from transformers import Qwen2ForCausalLM

    from models.demos.qwen25_7b.config import Recipe
    from models.demos.qwen25_7b.evaluation.divergence import Score
    from models.demos.qwen25_7b.weights import Checkpoint

GATE_UP = ("gate", "up")
RECIPE_HEADER = (
    "recipe", "weights", "KL, nats a token (std. error)", "change", "same first choice", "NLL"
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _compare(argv))


def _compare(argv: list[str] | None) -> None:
    quiet_libraries()
    from models.common.errors import UserError
    from models.common.markdown import markdown
    from models.common.options import Parser, path
    from models.common.terminal import Progress, complain, say
    from models.common.user_file import read_text
    from models.demos.qwen25_7b.config import recipe_named

    parser = Parser(
        prog="python -m models.demos.qwen25_7b.quantize.compare",
        description=__doc__.splitlines()[0],
        examples=(
            "python -m models.demos.qwen25_7b.quantize.compare --model DIR --text other.txt",
            "python -m models.demos.qwen25_7b.quantize.compare --model DIR --text other.txt DIR-4bit",
            "python -m models.demos.qwen25_7b.quantize.compare --model DIR --text other.txt --recipes bfp8 DIR-rotated",
        ),
    )
    parser.add_argument(
        "--model", required=True, help="directory or hub id of the checkpoint before rounding"
    )
    parser.add_argument(
        "--text", type=path("--text"), required=True, help="UTF-8 text to compare on"
    )
    parser.add_argument(
        "--tokens", type=int, default=4096, help="tokens of the text at most (default: %(default)s)"
    )
    parser.add_argument(
        "--recipes",
        metavar="NAMES",
        help="round every weight to the formats of these recipes, comma-separated names or JSON files",
    )
    parser.add_argument(
        "quantized", nargs="*", help="directories that `quantize` or `rotate` wrote"
    )
    args = parser.parse_args(argv)
    if args.tokens < 1:
        raise UserError(f"--tokens must be 1 or more, got {args.tokens}")
    names = [] if args.recipes is None else dict.fromkeys(args.recipes.split(","))
    recipes = [recipe_named(name, "--recipes") for name in names]
    with Progress("loading torch and transformers"):
        from models.demos.qwen25_7b.quantize.quantizer import TEXT_LIMIT, sequences
        from models.demos.qwen25_7b.weights import Checkpoint

    text = read_text(args.text, TEXT_LIMIT, "--text")
    original, *others = (Checkpoint.open(model) for model in (args.model, *args.quantized))
    for other in others:
        if not other.config.is_like(original.config):
            raise UserError(
                f"{other.directory}: its config.json is not that of {original.directory}; give a directory that `quantize` or `rotate` made of it"
            )
    ids = sequences(text, f"--text {args.text}", original, args.tokens)
    if recipes:
        for recipe in recipes:
            recipe.check_layers(original.config.num_hidden_layers)
        rows = list(_recipe_rows(original, others, recipes, ids))
        say(markdown(RECIPE_HEADER, rows))
        return say(f"\n{ids.numel()} tokens of {args.text}, arithmetic in float32")
    rows = []
    for name, model in _models(original, others):
        if not rows:
            reference = model
        complain(f"{name}: reading {ids.numel()} tokens")
        score = scored(reference, model, ids).summary()
        rows.append((name, f"{score.kl_mean:.4f}", f"{score.top1:.1%}", f"{score.nll:.4f}"))
    say(markdown(("weights", "KL, nats a token", "same first choice", "NLL, nats a token"), rows))
    say(f"\n{ids.numel()} tokens of {args.text}")


def _models(
    original: "Checkpoint", others: "Sequence[Checkpoint]"
) -> "Iterator[tuple[str, Qwen2ForCausalLM]]":
    yield "original", float_model(original)
    for groups in (GATE_UP, (*GATE_UP, "down")):
        yield f"{', '.join(groups)} rounded", round_mlp(float_model(original), groups)
    for checkpoint in others:
        yield f"{checkpoint.directory}", float_model(checkpoint)


def _recipe_rows(
    original: "Checkpoint",
    others: "Sequence[Checkpoint]",
    recipes: "Sequence[Recipe]",
    ids: "torch.Tensor",
) -> Iterator[tuple[str, ...]]:
    from models.common.terminal import complain
    from models.demos.qwen25_7b.reference.rounded import round_model

    reference = float_model(original)
    for recipe in recipes:
        first = None
        for checkpoint in (original, *others):
            complain(f"{recipe.name}, {checkpoint.directory}: reading {ids.numel()} tokens")
            model = float_model(checkpoint)
            round_model(model, recipe)
            score = scored(reference, model, ids)
            change = "" if first is None else _with_error(score.kl - first.kl, "+")
            first = first or score
            numbers = f"{score.summary().top1:.1%}", f"{score.summary().nll:.4f}"
            name = checkpoint.directory.name
            yield recipe.name, name, _with_error(score.kl), change, *numbers


def _with_error(kl: "torch.Tensor", sign: str = "") -> str:
    """The mean over tokens and its standard error."""
    return f"{float(kl.mean()):{sign}.5f} ({float(kl.std()) / len(kl) ** 0.5:.5f})"


def float_model(checkpoint: "Checkpoint") -> "Qwen2ForCausalLM":
    """Hugging Face's model in float32."""
    from models.demos.qwen25_7b.reference.hf import hf_model
    from models.demos.qwen25_7b.weights.checkpoint import LM_HEAD, tensor_shapes

    # A checkpoint with tied embeddings does not list the LM head.
    names = {*tensor_shapes(checkpoint.config), LM_HEAD}
    weights = {name: checkpoint.tensor(name) for name in names}
    return hf_model(checkpoint.config, weights).requires_grad_(False)


def round_mlp(model: "Qwen2ForCausalLM", groups: Sequence[str] = GATE_UP) -> "Qwen2ForCausalLM":
    """Round each layer's MLP in place, as ttnn packs it: `groups` to bfloat4_b, the rest to bfloat8_b."""
    from models.demos.qwen25_7b.quantize.rounding import rounded

    for layer in model.model.layers:
        for name in ("gate", "up", "down"):
            projection = layer.mlp.get_submodule(f"{name}_proj")
            format = "bfloat4_b" if name in groups else "bfloat8_b"
            projection.weight.data = rounded(projection.weight.t().contiguous(), format).t()
    return model


def scored(
    reference: "Qwen2ForCausalLM", model: "Qwen2ForCausalLM", ids: "torch.Tensor"
) -> "Score":
    """ids [sequences, tokens]. Every token but the last of a sequence is scored."""
    from models.demos.qwen25_7b.evaluation.divergence import Score, compare

    logits = ((m(sequence).logits[0, :-1] for m in (model, reference)) for sequence in ids.split(1))
    return Score.join([compare(*pair, sequence[1:]) for pair, sequence in zip(logits, ids)])


if __name__ == "__main__":
    run(main)
