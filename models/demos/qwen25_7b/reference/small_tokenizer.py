"""A byte-level BPE in the style of Qwen2's, trained on the little world of corpus.py.

Like Qwen2: the same pre-tokenisation, the whole byte alphabet (so any UTF-8 text round-trips), special
tokens after the BPE vocabulary, ChatML. Unlike Qwen2: numbers of two digits may be one token (which makes
counting and sums easier to learn), no NFC normalisation and no default system prompt.
"""

from __future__ import annotations

import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from models.demos.qwen25_7b.reference.corpus import Turn, draw_chat

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TOKENS = 1024  # with the special ones; the embedding has 1056 rows, as the real matrix is larger than its tokenizer

# Qwen2's pattern but for the numbers: contractions, words with their leading space, one or two digits, punctuation,
# white space
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
    """The merges come from 20,000 chats drawn as in training, and from the raw texts."""
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
