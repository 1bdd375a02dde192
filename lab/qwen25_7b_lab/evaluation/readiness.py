"""The command `readiness`: top-1, top-5 and top-100 of teacher forcing, as tt-metal's readiness check counts them."""

import argparse
from pathlib import Path
from typing import NamedTuple, Sequence

import torch

from models.demos.qwen25_7b.cli.options import add_machine, number, path
from models.demos.qwen25_7b.cli.terminal import say
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.text.tokenizer import ChatTokenizer
from models.demos.qwen25_7b.tt.mesh import command_queues, open_replicas

from ..options import Command, add_recipes, markdown
from .model import TP_DEFAULT, EvaluatedModel, add_model, choose_backend, replicas_on, split_for
from .reference import HuggingFace
from .texts import ForcedText

VERSION = "readiness_v1"
STEPS, CHOICES = 100, 100
BAR = {5: 0.98, 100: 1.0}  # what the check asks for
PROMPTS = (  # the small checkpoint has learned to answer them
    "Tell a story about teacher Tom, doctor Anna and a fox.",
    "Name the planets.",
    "Name the months of the year.",
    "Count from 3 to 30.",
)


class Entry(NamedTuple):
    """A prompt with the reference's continuation, and the reference's best choices for each token of that."""

    text: ForcedText
    choices: torch.Tensor  # [tokens, at most 100], best first


def load_entries(file: Path, vocab_size: int) -> list[Entry]:
    """The entries of a .refpt file of models/common/readiness_check/generate.py. UserError: it is no such file."""
    try:
        contents = torch.load(file, weights_only=True)  # unpickling runs no code
        assert contents["format_version"] == VERSION, f"format_version {contents['format_version']}"
        entries = []
        for entry in contents["entries"]:
            prompt, answer, choices = (entry[f"{name}_tokens"] for name in ("prompt", "generated", "topk"))
            assert len(prompt) == len(answer) == 1 and len(choices) == answer.numel() > 0, "shapes do not fit"
            entries.append(
                Entry(ForcedText([*prompt[0].tolist(), *answer[0].tolist()], prompt.numel()), choices.long())
            )
        assert entries, "it has no entry"
    except Exception as error:  # torch raises many kinds for a file that is not its own
        raise UserError(f"--reference {file}: no .refpt file of {VERSION}: {error!r}") from error
    if not all(0 <= id < vocab_size for entry in entries for id in entry.text.ids):
        raise UserError(f"--reference {file}: has ids outside 0..{vocab_size - 1}: the file is of another model")
    return entries


@torch.no_grad()
def chat_entries(model, tokenizer: ChatTokenizer, prompts: Sequence[str] = PROMPTS) -> list[Entry]:
    """Greedy answers of up to 100 tokens. model: Hugging Face's."""
    entries = []
    for prompt in map(tokenizer.encode, prompts):
        ids = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=STEPS, do_sample=False,
            pad_token_id=0, repetition_penalty=1.0,
        )  # fmt: skip
        logits = model(ids).logits[0, len(prompt) - 1 : -1]
        entries.append(Entry(ForcedText(ids[0].tolist(), len(prompt)), logits.topk(CHOICES).indices))
    return entries


def agreement(replicas: Sequence, entries: Sequence[Entry]) -> tuple[int, dict[int, float]]:
    """(tokens, the share of them whose prediction is among the reference's first k, for each k)."""
    from .teacher_forcing import predict_with_decode

    ranks = []
    for prediction in predict_with_decode(replicas, [entry.text for entry in entries]):
        best = prediction.logits.float().argmax(-1)
        for text, position, token in zip(prediction.texts, prediction.positions, best):
            choices = entries[text].choices[position + 1 - entries[text].text.prompt_length]
            ranks.append(int((choices == token).nonzero()[0]) if token in choices else CHOICES)
    return len(ranks), {k: sum(rank < k for rank in ranks) / len(ranks) for k in (1, *BAR)}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_recipes(parser, default="bf16,bfp8")
    add_machine(parser)
    parser.add_argument("--tp", **number(), help=f"chips of a replica {TP_DEFAULT}")
    text = f"a .refpt file of {VERSION} (default: Hugging Face's greedy answers to {len(PROMPTS)} chat prompts)"
    parser.add_argument("--reference", type=path, metavar="FILE", help=text)


def check_readiness(args: argparse.Namespace) -> None:
    """Teacher forcing over 100 tokens of chat answers: how often a recipe's choice is in the reference's first k."""
    model = EvaluatedModel.open(args.model)
    split = split_for(model.config, args.mesh, args.tp)
    if args.reference is not None:
        entries = load_entries(args.reference, model.config.vocab_size)
    else:
        plain = ChatTokenizer(model.directory, instruct=False)
        plain.instruct = bool(plain.hf.chat_template)
        entries = chat_entries(HuggingFace(model.directory).model, plain)
    longest = max(len(entry.text.ids) for entry in entries)
    if longest > model.config.context:
        raise UserError(f"--reference {args.reference}: {longest} tokens exceed the context of {model.config.context}")
    backend = choose_backend(args.backend, split, model.config, args.recipes, texts=len(entries), max_seq_len=longest)
    rows = []
    with open_replicas(split, queues=command_queues()) as devices:
        for recipe in args.recipes:
            sizes = dict(texts=len(entries), max_seq_len=longest)
            with replicas_on(devices, model.checkpoint, recipe, **sizes) as replicas:
                tokens, shares = agreement(replicas, entries)
            passed = all(shares[k] >= least for k, least in BAR.items())
            cells = [f"{share:.2%}" for share in shares.values()]
            rows.append([recipe.name, f"{tokens}", *cells, "yes" if passed else "no"])
    source = args.reference or "Hugging Face's greedy answers to chat prompts"
    say(f"{model.name}, {split}, reference: {source}; below ttnn: {backend}")
    asked = ", ".join(f"top-{k} {least:.0%}" for k, least in BAR.items())
    say(markdown(["recipe", "tokens", "top-1", *(f"top-{k}" for k in BAR), f"{asked}"], rows, aligned=True))


READINESS = Command(
    check_readiness,
    add_options,
    (
        "--model Qwen/Qwen2.5-7B-Instruct --reference aime24.refpt",
        "--model DIR --reference aime24.refpt --mesh T3K --recipes bfp8",
    ),
)
