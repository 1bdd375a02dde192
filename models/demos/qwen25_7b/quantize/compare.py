"""What 4 bits cost a model: rounding alone, and checkpoints that the tool wrote, against the model itself in float32.

    python -m models.demos.qwen25_7b.quantize.compare --model DIR --text FILE [ROUNDED DIR ...]

Formats only, in torch: weights as block floats hold them, arithmetic as Hugging Face does it. The text should be none that the
tool was given.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Iterator, Sequence

from models.common.command import quiet_libraries, run, status_of

if TYPE_CHECKING:
    import torch
    from transformers import Qwen2ForCausalLM

    from models.demos.qwen25_7b.evaluation.score import Score

GATE_UP = ("gate", "up")


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _compare(argv))


def _compare(argv: list[str] | None) -> None:
    quiet_libraries()
    from models.common.options import Parser
    from models.common.terminal import say
    from models.demos.qwen25_7b.perf.table import markdown
    from models.demos.qwen25_7b.quantize.calibration import read_text, sequences
    from models.demos.qwen25_7b.weights import Checkpoint

    parser = Parser(prog="python -m models.demos.qwen25_7b.quantize.compare", description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="directory or hub id of the checkpoint as it was")
    parser.add_argument("--text", type=Path, required=True, help="what to judge by, UTF-8")
    parser.add_argument("--tokens", type=int, default=4096, help="of the text, at most (default: %(default)s)")
    parser.add_argument("rounded", nargs="*", type=Path, help="directories that the tool wrote")
    args = parser.parse_args(argv)
    checkpoints = [Checkpoint.open(model) for model in (args.model, *args.rounded)]
    original = checkpoints[0]
    ids = sequences(read_text(args.text), f"--text {args.text}", original.directory, original.config, args.tokens)
    rows = []
    for name, model in _models(checkpoints):
        if not rows:
            reference = model
        score = scored(reference, model, ids).summary()
        rows.append((name, f"{score.kl_mean:.4f}", f"{score.top1:.1%}", f"{score.nll:.4f}"))
    say(markdown(("weights", "KL, nats a token", "same first choice", "nats to the text"), rows))
    say(f"\n{ids.numel()} tokens of {args.text}")


def _models(checkpoints) -> "Iterator[tuple[str, Qwen2ForCausalLM]]":
    yield "as they were", float_model(checkpoints[0])
    for groups in (GATE_UP, (*GATE_UP, "down")):
        yield f"{', '.join(groups)} rounded", round_mlp(float_model(checkpoints[0]), groups)
    for checkpoint in checkpoints[1:]:
        yield f"{checkpoint.directory}", float_model(checkpoint)


def float_model(checkpoint) -> "Qwen2ForCausalLM":
    """Hugging Face's model in float32."""
    from models.demos.qwen25_7b.reference.hf import hf_model
    from models.demos.qwen25_7b.weights.checkpoint import LM_HEAD, tensor_shapes

    names = {*tensor_shapes(checkpoint.config), LM_HEAD}  # which a checkpoint with tied embeddings does not list
    weights = {name: checkpoint.tensor(name) for name in names}
    return hf_model(checkpoint.config, weights).requires_grad_(False)


def round_mlp(model: "Qwen2ForCausalLM", groups: Sequence[str] = GATE_UP) -> "Qwen2ForCausalLM":
    """The same with each layer's MLP as ttnn packs it: `groups` in bfloat4_b, the rest in bfloat8_b."""
    from models.demos.qwen25_7b.quantize.formats import rounded

    for layer in model.model.layers:
        for name in ("gate", "up", "down"):
            projection = layer.mlp.get_submodule(f"{name}_proj")
            format = "bfloat4_b" if name in groups else "bfloat8_b"
            projection.weight.data = rounded(projection.weight.t().contiguous(), format).t()
    return model


def scored(reference: "Qwen2ForCausalLM", model: "Qwen2ForCausalLM", ids: "torch.Tensor") -> "Score":
    """ids [sequences, tokens]; of every token but the last of each."""
    from models.demos.qwen25_7b.evaluation.score import Score, compare

    logits = ((m(sequence).logits[0, :-1] for m in (model, reference)) for sequence in ids.split(1))
    return Score.join([compare(*pair, sequence[1:]) for pair, sequence in zip(logits, ids)])


if __name__ == "__main__":
    run(main)
