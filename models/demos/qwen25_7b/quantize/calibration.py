"""A calibration text by the model itself: its answers and free texts, and some of Python's documentation."""

import random
from pathlib import Path
from pydoc_data.topics import topics
from typing import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..reference.hf import hf_checkpoint
from ..text.tokenizer import load_tokenizer

CHARACTERS = 12288  # of the answers, and of the documentation; a token has about four
START = "<|endoftext|>"  # begins a text in the training data of SmolLM2 and of Qwen2.5
FREE_TEXTS = 64
FREE_TOKENS = 500  # of each free text
PROMPTS = (  # for the model's answers
    "Explain how a sailing boat can move against the wind.",
    "Write a short story about a lighthouse keeper and a storm.",
    "How do I bake a simple loaf of bread?",
    "What were the causes of the First World War?",
    "Describe the life cycle of a butterfly for a child.",
    "Give me advice for a job interview.",
    "What is photosynthesis and why does it matter?",
    "Explain supply and demand with an example.",
    "Write a Python function that counts the words in a file and explain it.",
    "Tell me about the history of the bicycle.",
    "What should I see in Rome in three days?",
    "How does a vaccine work?",
    "How can I sleep better at night?",
    "Explain the difference between weather and climate.",
    "What is a black hole?",
    "How do computers store numbers?",
    "Write a dialogue between a teacher and a student about fractions.",
    "What makes a good team?",
    "Summarise how a river shapes its valley.",
    "Which questions should I ask before I buy a used car?",
    "Write a letter to a friend who has moved to another city.",
    "How is glass made?",
    "Why do leaves change their colour in autumn?",
    "Plan a week of simple dinners for two.",
)


def calibration_text(directory: Path) -> str:
    """Answers, documentation, and free texts, of 37,000 tokens in all. The free texts are most of it."""
    tokenizer = load_tokenizer(directory)
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.eos_token
    model = hf_checkpoint(directory)
    pages = "\n\n".join(topics[name] for name in sorted(topics))
    parts = answers(model, tokenizer)[:CHARACTERS], pages[:CHARACTERS], free_texts(model, tokenizer)
    return "\n\n".join(parts)


def answers(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """The model's answers to all prompts. Greedy answers of a small model repeat themselves."""
    chats = [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True)
        for p in PROMPTS
    ]
    settings = dict(max_new_tokens=192, temperature=0.7, top_p=0.9)
    return _joined(PROMPTS, _sampled(model, tokenizer, chats, seed=0, **settings), "\n\n")


def free_texts(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Texts that the model writes from one random word. They are of every kind that it was trained on."""
    words = sorted(w for w in tokenizer.get_vocab() if w.isascii() and w.isalpha() and w.istitle() and len(w) > 2)
    draw = random.Random(1)
    begins = [draw.choice(words) for _ in range(FREE_TEXTS)]
    settings = dict(max_new_tokens=FREE_TOKENS, temperature=1.0, top_p=0.95, top_k=0, eos_token_id=None)
    texts = _sampled(model, tokenizer, [START + word for word in begins], seed=1, **settings)
    return _joined(begins, texts, "")


def _joined(begins: Sequence[str], texts: Sequence[str], between: str) -> str:
    return "\n\n".join(f"{b}{between}{text}" for b, text in zip(begins, texts, strict=True))


@torch.no_grad()
def _sampled(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], seed: int, **settings
) -> list[str]:
    """The prompts' continuations. settings: of Hugging Face's generate."""
    asked = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    ids = asked["input_ids"]
    torch.manual_seed(seed)
    written = model.generate(
        ids, attention_mask=asked["attention_mask"], do_sample=True, pad_token_id=tokenizer.pad_token_id, **settings
    )
    return tokenizer.batch_decode(written[:, ids.shape[1] :], skip_special_tokens=True)
