"""A Llama is converted to a Qwen2 without QKV bias, and a GGUF file's vocabulary to a tokenizer.

The real file of 93 MB is not part of the tests.
"""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2ForCausalLM

from models.demos.qwen25_7b.evaluation.smollm2 import as_qwen2, make_tokenizer, save
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


def test_a_llama_as_a_qwen2_has_equal_logits_to_the_last_bit(llama, tokenizer, tmp_path):
    save(as_qwen2(llama), tokenizer, tmp_path / "made")
    ids = torch.tensor([tokenizer.encode("12 boats lay at the bridge.")])
    qwen2 = Qwen2ForCausalLM.from_pretrained(tmp_path / "made", dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(qwen2(ids).logits, llama(ids).logits)
    checkpoint = Checkpoint.open(tmp_path / "made")
    assert checkpoint.config.tie_word_embeddings and checkpoint.config.num_key_value_heads == 3
    assert checkpoint.config.rope_theta == 1e5 and checkpoint.config.rms_norm_eps == 1e-5
    assert not checkpoint.tensor("model.layers.1.self_attn.k_proj.bias").any()


def test_the_tokenizer_splits_digits_and_keeps_special_tokens_whole(tokenizer):
    def words(text):
        return tokenizer.convert_ids_to_tokens(tokenizer.encode(text))

    assert words("12 ab") == ["1", "2", "Ġ", "ab"] and words("a b") == ["a", "Ġ", "b"]
    assert words("a<|im_end|>\n") == ["a", "<|im_end|>", "Ċ"]
    text = "Größe 12 <|im_start|> é"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
    assert chat == "<|im_start|>ab<|im_end|>" and tokenizer.eos_token == "<|im_end|>"
