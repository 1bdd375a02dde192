"""A calibration text by the model itself."""

import random
from pathlib import Path

import torch

from models.demos.qwen25_7b.reference.hf import hf_checkpoint
from models.demos.qwen25_7b.text.tokenizer_file import load_tokenizer

START = "<|endoftext|>"  # begins a text in the training data of SmolLM2 and of Qwen2.5
TEXTS, TOKENS = 64, 500  # tokens of each text


@torch.no_grad()
def calibration_text(directory: Path) -> str:
    """Texts that the model writes, each from one random word. They are of every kind that it was trained on."""
    tokenizer = load_tokenizer(directory)
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.eos_token
    words = sorted(w for w in tokenizer.get_vocab() if w.isascii() and w.isalpha() and w.istitle() and len(w) > 2)
    draw = random.Random(1)
    begins = [START + draw.choice(words) for _ in range(TEXTS)]
    asked = tokenizer(begins, return_tensors="pt", padding=True, add_special_tokens=False)
    torch.manual_seed(1)
    written = hf_checkpoint(directory).generate(
        asked["input_ids"], attention_mask=asked["attention_mask"], pad_token_id=tokenizer.pad_token_id,
        do_sample=True, max_new_tokens=TOKENS, temperature=1.0, top_p=0.95, top_k=0, eos_token_id=None,
    )  # fmt: skip
    return "\n\n".join(tokenizer.batch_decode(written, skip_special_tokens=True))
