"""Make the small checkpoint: a Qwen2 of 6.3 million parameters, trained on corpus.py on two CPU cores.

    python lab/small_checkpoint/train.py --out DIR --minutes 30
    python lab/small_checkpoint/train.py --out DIR --minutes 15 --start-from DIR --seed 1

The checkpoint in small/ took six such runs: one from scratch, and five that continued from it.

The small checkpoint has the property that makes the 7B hard to quantize. In the first and the last layer the K bias of
a few slow rotary pairs is some hundred times larger than elsewhere. Training starts from such a bias. Afterwards a
power of two moves from Q to K inside those pairs, which changes no attention score.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from corpus import LATER_WEIGHTS, WEIGHTS, draw_chat, make_questions
from qwen25_7b_lab.evaluation.small_questions import END, Turn, encode_chat
from small_tokenizer import END_OF_TEXT, encode_raw, train_tokenizer
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

FIRST_LR, LATER_LR = 2e-3, 1e-3  # peak learning rates: from scratch, and from a checkpoint
WARMUP, TOKENS_A_STEP = 0.03, 1024
ROW_LENGTHS, ROW_ODDS = (96, 192, 512), (5, 3, 2)

# Pair j of a head is channels j and j + head_dim/2. At theta 1e6 the last three of 16 pairs turn by less than
# 1.4e-5 a position. A constant there adds nearly one value to every score, which softmax cancels.
OUTLIER_PAIRS = ((13, 15), (14, 15), (13, 14), (14, 15))  # of each KV head
OUTLIER_RANGE = (60.0, 170.0)
FOLD = 8  # moved from Q to K after training


def small_config(tokenizer: PreTrainedTokenizerFast) -> Qwen2Config:
    """The 7B's shape in small: 28 Q heads on 4 KV heads, an MLP of 37 tiles, an untied head of 33 tiles."""
    return Qwen2Config(
        vocab_size=1056,
        hidden_size=256,
        intermediate_size=1184,
        num_hidden_layers=4,
        num_attention_heads=28,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        tie_word_embeddings=False,
        use_sliding_window=False,
        bos_token_id=tokenizer.convert_tokens_to_ids(END_OF_TEXT),
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
    )


def outlier_channels(config: Qwen2Config) -> list[list[int]]:
    """For each KV head the channels, within the head, that carry the large K bias."""
    half = config.head_dim // 2
    return [[c for pair in pairs for c in (pair, pair + half)] for pairs in OUTLIER_PAIRS]


@torch.no_grad()
def plant_outliers(model: Qwen2ForCausalLM, seed: int) -> None:
    """Start the K bias of the outlier channels at 1/FOLD of its final size, and Q there small."""
    config, rng = model.config, random.Random(seed)
    group = config.num_attention_heads // config.num_key_value_heads
    for layer in (model.model.layers[0], model.model.layers[-1]):
        attention = layer.self_attn
        q = attention.q_proj.weight.view(config.num_key_value_heads, group, config.head_dim, -1)
        k = attention.k_proj.bias.view(config.num_key_value_heads, config.head_dim)
        for head, channels in enumerate(outlier_channels(config)):
            for channel in channels:
                k[head, channel] = rng.uniform(*OUTLIER_RANGE) * rng.choice((-1, 1)) / FOLD
                q[head, :, channel] /= FOLD


@torch.no_grad()
def fold_outliers(model: Qwen2ForCausalLM, factor: float = FOLD) -> None:
    """Scale the outlier pairs of K by a power of two and those of Q by its inverse: exact, also in bfloat16.

    Rotation acts inside a pair, and both channels of a pair get one factor, so no score changes.
    """
    config = model.config
    group = config.num_attention_heads // config.num_key_value_heads
    for layer in (model.model.layers[0], model.model.layers[-1]):
        for name in ("weight", "bias"):
            q = getattr(layer.self_attn.q_proj, name).view(config.num_key_value_heads, group, config.head_dim, -1)
            k = getattr(layer.self_attn.k_proj, name).view(config.num_key_value_heads, config.head_dim, -1)
            for head, channels in enumerate(outlier_channels(config)):
                q[head, :, channels] /= factor
                k[head, channels] *= factor


def batches(
    tokenizer: PreTrainedTokenizerFast, questions: dict[str, list[Turn]], weights: dict[str, float], seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless batches of rows. A row is documents end to end, cut at its length, so contexts are long."""
    rng = random.Random(seed)
    trained = {kind: [turn for turn in turns if not turn.held_out] for kind, turns in questions.items()}
    while True:
        length = rng.choices(ROW_LENGTHS, ROW_ODDS)[0]
        rows = []
        for _ in range(TOKENS_A_STEP // length):
            ids, labels = [], []
            while len(ids) < length:
                if rng.random() < 0.2:
                    more = encode_raw(tokenizer, rng.choice(trained["raw"]))
                else:
                    more = encode_chat(tokenizer, draw_chat(trained, rng, weights))
                ids, labels = ids + more[0], labels + more[1]
            rows.append((ids[:length], labels[:length]))
        ids, labels = torch.tensor(rows).unbind(1)
        yield ids, labels


def make_optimizer(model: Qwen2ForCausalLM) -> torch.optim.AdamW:
    """AdamW, with weight decay on the matrices of the layers only."""
    decayed, others = [], []
    for name, parameter in model.named_parameters():
        (decayed if ".layers." in name and parameter.ndim == 2 else others).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)


def learning_rate(peak: float, progress: float) -> float:
    """Linear warm-up, then a cosine down to a hundredth of the peak."""
    if progress < WARMUP:
        return peak * max(progress, 1e-3) / WARMUP
    decay = 0.5 * (1 + math.cos(math.pi * (progress - WARMUP) / (1 - WARMUP)))
    return peak * max(decay, 0.01)


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write a Hugging Face checkpoint: folded, in bfloat16."""
    saved = Qwen2ForCausalLM(model.config)
    saved.load_state_dict(model.state_dict())
    fold_outliers(saved)
    saved.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out, save_jinja_files=False)
    stop = tokenizer.convert_tokens_to_ids([END, END_OF_TEXT])
    generation = {"do_sample": False, "eos_token_id": stop, "pad_token_id": tokenizer.pad_token_id}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def load_unfolded(directory: Path) -> Qwen2ForCausalLM:
    """A saved checkpoint in its form during training."""
    model = Qwen2ForCausalLM.from_pretrained(directory, dtype=torch.float32).train()
    fold_outliers(model, 1 / FOLD)
    return model


def train(out: Path, minutes: float, seed: int = 0, start_from: Path | None = None) -> None:
    """Train for `minutes`. Save every five minutes and at the end."""
    torch.manual_seed(seed)
    torch.set_num_threads(2)
    questions = make_questions()
    if start_from:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(start_from)
        model, weights, peak = load_unfolded(start_from), LATER_WEIGHTS, LATER_LR
    else:
        tokenizer = train_tokenizer(questions)
        model, weights, peak = Qwen2ForCausalLM(small_config(tokenizer)), WEIGHTS, FIRST_LR
        plant_outliers(model, seed)
    optimizer = make_optimizer(model)

    start, saved, average = time.time(), 0, None
    for step, (ids, labels) in enumerate(batches(tokenizer, questions, weights, seed)):
        elapsed = (time.time() - start) / 60
        if elapsed >= minutes:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(peak, elapsed / minutes)
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average = loss.item() if average is None else 0.98 * average + 0.02 * loss.item()
        if step % 25 == 0:
            print(f"{elapsed:5.1f} min  step {step:5d}  loss {average:.4f}")
        if elapsed // 5 > saved:
            saved = elapsed // 5
            save(model, tokenizer, out)
    save(model, tokenizer, out)
    print(f"{step} steps, loss {average:.4f}, saved")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the small checkpoint on the CPU.")
    parser.add_argument("--out", type=Path, required=True, help="directory of the checkpoint")
    parser.add_argument("--minutes", type=float, default=30, help="training time")
    parser.add_argument("--start-from", type=Path, help="a checkpoint; give another --seed")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.out != args.start_from and args.out.exists():
        parser.error(f"--out {args.out} exists: give a new directory, or that of --start-from")
    train(args.out, args.minutes, args.seed, args.start_from)


if __name__ == "__main__":
    main()
