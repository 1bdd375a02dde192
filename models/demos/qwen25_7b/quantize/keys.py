"""The error that a KV cache adds, with equalized keys, with centered keys, and without both.

    python -m models.demos.qwen25_7b.quantize.keys [--model DIR --text FILE]

Torch runs Hugging Face's model in float32 on the host. Only the cache rows have the values that chips
write. Without --model there are two models. One is the small checkpoint, which has the 7B's K bias. The other
has random weights and that bias.
"""

from models.common.command import quiet_libraries, run, status_of


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _print_tables(argv))


def _print_tables(argv: list[str] | None) -> None:
    quiet_libraries()
    from models.common.errors import UserError
    from models.common.markdown import markdown
    from models.common.options import Parser, path
    from models.common.terminal import Progress, say
    from models.common.user_file import read_text

    parser = Parser(
        prog="python -m models.demos.qwen25_7b.quantize.keys",
        description=__doc__.splitlines()[0],
        examples=(
            "python -m models.demos.qwen25_7b.quantize.keys",
            "python -m models.demos.qwen25_7b.quantize.keys --model DIR --text text.txt",
        ),
    )
    parser.add_argument(
        "--model", help="directory or hub id of a checkpoint (default: the small one)"
    )
    parser.add_argument(
        "--text",
        type=path("--text"),
        help="text that the model reads (default: the small one's chats)",
    )
    parser.add_argument(
        "--tokens", type=int, default=2048, help="tokens of the text at most (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    if (args.model is None) != (args.text is None):
        raise UserError("--model and --text belong together: give both or none")
    if args.tokens < 1:
        raise UserError(f"--tokens must be 1 or more, got {args.tokens}")
    with Progress("loading torch and transformers"):
        from models.demos.qwen25_7b.quantize.cached_keys import drift_rows, layer_rows, random_row
        from models.demos.qwen25_7b.quantize.compare import float_model
        from models.demos.qwen25_7b.quantize.quantizer import TEXT_LIMIT, sequences
        from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
        from models.demos.qwen25_7b.weights import Checkpoint

    text = read_text(args.text, TEXT_LIMIT, "--text") if args.text else _chats(args.tokens)
    checkpoint = Checkpoint.open(args.model or SMALL_CHECKPOINT)
    ids = sequences(text, f"--text {args.text}", checkpoint, args.tokens)
    with Progress("comparing caches"):
        model = float_model(checkpoint)
        rows = layer_rows(model, ids)
        if args.model is None:
            rows.append(random_row())
        drift = drift_rows(model, ids)
    header = (
        "layer",
        "longest K bias",
        "outlier pairs",
        "bfloat16 cache",
        "bfloat16, centered",
        "8-bit",
        "8-bit, equalized",
        "8-bit, centered",
    )
    say("Relative error of attention's output\n\n" + markdown(header, rows))
    say(
        "\nKL over the second half of each text\n\n"
        + markdown(("cache", "KL, nats a token"), drift)
    )


def _chats(tokens: int) -> str:
    import random

    from models.demos.qwen25_7b.reference.corpus import draw_chat, make_questions
    from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
    from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer

    tokenizer = ChatTokenizer(SMALL_CHECKPOINT, instruct=True).hf
    questions, rng, text = make_questions(), random.Random(0), ""
    while len(tokenizer.encode(text)) < tokens:
        text += tokenizer.apply_chat_template(draw_chat(questions, rng), tokenize=False)
    return text


if __name__ == "__main__":
    run(main)
