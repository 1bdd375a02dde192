"""Checkpoints that think: the template begins the reasoning, and drops it from earlier answers.

The tokenizers here have the form of DeepSeek-R1-Distill-Qwen's and QwQ-32B's. Their vocabulary is the small checkpoint's.
"""

import json
import shutil

import pytest

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.generation_config import (
    default_sampling,
    read_generation_config,
    unsupported_fields,
)
from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer, Conversation

FIRST_ADDED = 1024  # the small checkpoint's tokenizer has 1024 tokens
DEEPSEEK = dict(
    bos="<｜begin▁of▁sentence｜>", eos="<｜end▁of▁sentence｜>", user="<｜User｜>", assistant="<｜Assistant｜>",
    template=(
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}"
        "{% else %}{{ '<｜Assistant｜>' + m['content'].split('</think>')[-1] + eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"
    ),
)  # fmt: skip
QWQ = dict(
    bos=None, eos="<|im_end|>", user="<|im_start|>", assistant="<|im_start|>",
    template=(
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'].split('</think>')[-1].lstrip('\\n')"
        " + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
    ),
)  # fmt: skip
CLASSES = {"DeepSeek": "LlamaTokenizerFast", "QwQ": "Qwen2Tokenizer"}


def token(content):
    return {
        "__type": "AddedToken",
        "content": content,
        "lstrip": False,
        "normalized": True,
        "rstrip": False,
        "single_word": False,
    }


@pytest.fixture(params=["DeepSeek", "QwQ"])
def checkpoint(tmp_path, request):
    """(directory, family): tokenizer files and a generation_config.json."""
    family = {"DeepSeek": DEEPSEEK, "QwQ": QWQ}[request.param]
    shutil.copy(SMALL_CHECKPOINT / "config.json", tmp_path)
    tokenizer = json.loads((SMALL_CHECKPOINT / "tokenizer.json").read_text())
    known = {added["content"] for added in tokenizer["added_tokens"]}
    special = [family[name] for name in ("bos", "eos", "user", "assistant")]
    added = [name for name in dict.fromkeys(special) if name and name not in known]
    tokenizer["added_tokens"] += [
        token(name) | {"id": FIRST_ADDED + i, "normalized": False, "special": name in special}
        for i, name in enumerate([*added, "<think>", "</think>"])
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    fields = dict(
        add_bos_token=family["bos"] is not None, add_eos_token=False, bos_token=family["bos"] and token(family["bos"]),
        eos_token=token(family["eos"]), pad_token=token(family["eos"]), unk_token=None, legacy=True, sp_model_kwargs={},
        model_max_length=16384, clean_up_tokenization_spaces=False, tokenizer_class=CLASSES[request.param],
        chat_template=family["template"],
    )  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields))
    sampling = dict(
        _from_model_config=True, do_sample=True, temperature=0.6, top_p=0.95, eos_token_id=1021
    )
    (tmp_path / "generation_config.json").write_text(json.dumps(sampling))
    return tmp_path, family


def test_a_prompt_has_one_begin_token_and_ends_with_the_opened_reasoning(checkpoint):
    directory, family = checkpoint
    tokenizer = ChatTokenizer(directory, instruct=True)
    ids = tokenizer.encode("What is 2 + 2?")
    assert ids == tokenizer.hf.apply_chat_template(
        [{"role": "user", "content": "What is 2 + 2?"}], add_generation_prompt=True
    )
    think = tokenizer.hf.convert_tokens_to_ids("<think>")
    assert tokenizer.hf.decode(ids).endswith("<think>\n") and ids.count(think) == 1
    plain = ChatTokenizer(directory, instruct=False).encode("What is 2 + 2?")
    if family["bos"]:
        begin = tokenizer.hf.bos_token_id
        assert ids[0] == plain[0] == begin and ids.count(begin) == plain.count(begin) == 1
    else:
        assert tokenizer.hf.decode(plain) == "What is 2 + 2?"


def test_reasoning_is_shown_and_left_out_of_the_next_turn(checkpoint):
    """<think> and </think> are no special tokens. The next prompt equals Hugging Face's."""
    directory, family = checkpoint
    tokenizer = ChatTokenizer(directory, instruct=True)
    end = tokenizer.hf.eos_token_id
    assert tokenizer.hf.convert_ids_to_tokens(end) == family["eos"]
    assert tokenizer.stop_ids == {end, 1021}
    conversation = Conversation(tokenizer, tokenizer.stop_ids)
    prompt = conversation.prompt("What is 2 + 2?")
    ids = [*tokenizer.encode_chat("Two and two.\n</think>\n\nIt is 4."), end]
    stream = tokenizer.detokenizer()
    shown = "".join(stream.add(id, last=id == end) for id in ids)
    assert shown == "Two and two.\n</think>\n\nIt is 4."
    conversation.add_answer(prompt, shown, ids)
    following = conversation.prompt("And 5?")
    assert "Two and two" not in following.chat and "It is 4." in following.chat
    turns = [*conversation.turns, {"role": "user", "content": "And 5?"}]
    assert following.ids == tokenizer.hf.apply_chat_template(turns, add_generation_prompt=True)


def test_a_sampling_without_top_k_has_hugging_faces_50_candidates(checkpoint):
    """The chips choose among 32, so the host samples."""
    directory, _ = checkpoint
    config = read_generation_config(directory)
    sampling = default_sampling(config)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.95, 50)
    assert not sampling.on_device and unsupported_fields(config) == []
