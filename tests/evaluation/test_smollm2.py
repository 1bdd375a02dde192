"""A Llama is saved for this port, and a GGUF file's vocabulary becomes a tokenizer.

The real file of 93 MB is not part of the tests.
"""

import pytest
import torch
from qwen25_7b_lab.evaluation.smollm2 import make_tokenizer, save
from transformers import LlamaConfig, LlamaForCausalLM

from models.demos.qwen25_7b.reference.hf import hf_checkpoint
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    """A Llama with three KV heads and a tied LM head, like SmolLM2."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=600, hidden_size=160, intermediate_size=96, num_hidden_layers=2, num_attention_heads=9,
        num_key_value_heads=3, head_dim=16, rms_norm_eps=1e-5, rope_theta=1e5, tie_word_embeddings=True,
        max_position_embeddings=512, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers.pre_tokenizers import ByteLevel

    words = [*SPECIAL, *sorted(ByteLevel.alphabet()), "12", "Ġ1", "ab", "Ġa"]
    return make_tokenizer(words, ["1 2", "Ġ 1", "a b", "Ġ a"], SPECIAL, TEMPLATE)


def test_the_checkpoint_is_the_llama_to_the_last_bit(llama, tokenizer, tmp_path):
    save(llama, tokenizer, tmp_path / "made")
    ids = torch.tensor([tokenizer.encode("12 boats lay at the bridge.")])
    with torch.no_grad():
        assert torch.equal(hf_checkpoint(tmp_path / "made")(ids).logits, llama(ids).logits)
    config = Checkpoint.open(tmp_path / "made").config
    assert config.tie_word_embeddings and config.num_key_value_heads == 3 and not config.qkv_bias
    assert config.rope_theta == 1e5 and config.rms_norm_eps == 1e-5


def test_the_tokenizer_splits_digits_and_keeps_special_tokens_whole(tokenizer):
    def words(text):
        return tokenizer.convert_ids_to_tokens(tokenizer.encode(text))

    assert words("12 ab") == ["1", "2", "Ġ", "ab"] and words("a b") == ["a", "Ġ", "b"]
    assert words("a<|im_end|>\n") == ["a", "<|im_end|>", "Ċ"]
    text = "Größe 12 <|im_start|> é"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
    assert chat == "<|im_start|>ab<|im_end|>" and tokenizer.eos_token == "<|im_end|>"
