"""The small checkpoint's tokenizer, a byte-level BPE in Qwen2's style, and training documents as token ids.

As in Qwen2's tokenizer:
- pre-tokenization and ChatML;
- the whole byte alphabet, so any UTF-8 text round-trips;
- special tokens after the BPE vocabulary.

Other than in Qwen2's tokenizer:
- A number of two digits may be one token. Counting and sums are then easier to learn.
- There is no NFC normalization and no default system prompt.
"""

from __future__ import annotations

import random

from corpus import draw_chat
from qwen25_7b_lab.evaluation.small_questions import END, IGNORE, START, Turn
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
TOKENS = 1024  # with special tokens; the embedding has more rows (1056), as in the 7B

# Contractions, words with their leading space, one or two digits, punctuation, white space. Only
# the numbers differ from Qwen2's pattern.
WORD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(questions: dict[str, list[Turn]], seed: int = 0) -> PreTrainedTokenizerFast:
    """Train the tokenizer on 20,000 chats sampled as in training, and on the raw texts."""
    rng = random.Random(seed)
    texts = [m["content"] for _ in range(20_000) for m in draw_chat(questions, rng)]
    texts += [turn.user + turn.answer for turn in questions["raw"]] + ["user\n", "assistant\n", "system\n"] * 1000

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    special = [END_OF_TEXT, START, END]
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS - len(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[START, END],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )


def encode_raw(tokenizer: PreTrainedTokenizerFast, turn: Turn) -> tuple[list[int], list[int]]:
    """Plain text that ends in <|endoftext|>, with labels for its second part."""
    prefix, rest = tokenizer.encode(turn.user), tokenizer.encode(turn.answer + END_OF_TEXT)
    return prefix + rest, [IGNORE] * len(prefix) + rest
