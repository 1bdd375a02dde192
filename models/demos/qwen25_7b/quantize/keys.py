"""What equalised keys buy an 8-bit cache, and whether keys that prefill and decode write of different size do harm.

    python -m models.demos.qwen25_7b.quantize.keys [--model DIR --text FILE]

In torch, on Hugging Face's model in float32; only what is written into the cache is as chips make it. Without --model the
small checkpoint, whose K bias is the 7B's, and random weights with that bias.
"""

from pathlib import Path

from models.common.command import quiet_libraries, run, status_of


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _tables(argv))


def _tables(argv: list[str] | None) -> None:
    quiet_libraries()
    from models.common.errors import UserError
    from models.common.options import Parser
    from models.common.terminal import say
    from models.demos.qwen25_7b.perf.table import markdown
    from models.demos.qwen25_7b.quantize.cached_keys import drift_rows, layer_rows, random_rows
    from models.demos.qwen25_7b.quantize.calibration import read_text, sequences
    from models.demos.qwen25_7b.quantize.compare import float_model
    from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
    from models.demos.qwen25_7b.weights import Checkpoint

    parser = Parser(prog="python -m models.demos.qwen25_7b.quantize.keys", description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="directory or hub id of a checkpoint (default: the small one)")
    parser.add_argument("--text", type=Path, help="what the model reads (default: chats that the small one knows)")
    parser.add_argument("--tokens", type=int, default=2048, help="of the text, at most (default: %(default)s)")
    args = parser.parse_args(argv)
    if (args.model is None) != (args.text is None):
        raise UserError("--model and --text belong together: give both or none")
    checkpoint = Checkpoint.open(args.model or SMALL_CHECKPOINT)
    text = read_text(args.text) if args.text else _chats(args.tokens)
    ids = sequences(text, f"--text {args.text}", checkpoint.directory, checkpoint.config, args.tokens)
    model = float_model(checkpoint)
    rows = layer_rows(model, ids)
    if args.model is None:
        rows.append(random_rows())
    header = ("layer", "longest K bias", "loud pairs", "bfloat16 cache", "8-bit, as it was", "8-bit, equalised")
    say("Error of attention's result, relative\n\n" + markdown(header, rows))
    say(
        "\nKL of the next token in the second half of each text\n\n"
        + markdown(("cache", "KL, nats"), drift_rows(model, ids))
    )


def _chats(tokens: int) -> str:
    import random

    from models.demos.qwen25_7b.reference.corpus import draw_chat, make_questions
    from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
    from models.demos.qwen25_7b.serving.text import Text

    tokenizer = Text(SMALL_CHECKPOINT, instruct=True).tokenizer
    questions, rng, text = make_questions(), random.Random(0), ""
    while len(tokenizer.encode(text)) < tokens:
        text += tokenizer.apply_chat_template(draw_chat(questions, rng), tokenize=False)
    return text


if __name__ == "__main__":
    run(main)
