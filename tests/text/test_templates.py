"""A chat's next prompt is what Hugging Face makes of the whole conversation, for each kind of template.

Templates that think leave the reasoning of earlier turns out.
"""

import json

import pytest
from tokenizers import Tokenizer

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.text.tokenizer import ChatTokenizer, Conversation
from tests.text.conftest import VOCABULARIES, edit

# How a template writes a user's turn and an answer.
TEMPLATES = {
    "Alpaca": ("### Instruction:\n%s\n\n### Response:\n", "%s\n\n"),
    "Vicuna": ("USER: %s ASSISTANT:", " %s{{ eos_token }}"),
    "Zephyr": ("<|user|>\n%s{{ eos_token }}\n<|assistant|>\n", "%s{{ eos_token }}\n"),
    "Llama 2": ("{{ bos_token }}[INST] %s [/INST]", " %s {{ eos_token }}"),
    "Mistral": ("[INST] %s[/INST]", " %s{{ eos_token }}"),
}


@pytest.mark.parametrize("end", ["whole", "cut", "at a stop string"])
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", [name for name in VOCABULARIES if name != "tekken"])  # as byte level
def test_a_conversation_is_tokenized_as_by_hugging_face(vocabulary, name, template, end):
    user, answer = (part.replace("%s", "{{ m['content'] }}") for part in TEMPLATES[template])
    tokenizer = vocabulary(name)
    tokenizer.hf.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'user' %}" + user + "{% else %}" + answer + "{% endif %}{% endfor %}"
    )
    conversation = Conversation(tokenizer, tokenizer.stop_ids)
    turns = []
    for question, answer in (("Hi.", "print( 'start' )\n"), ("More?", "Yes , 3"), ("And?", "你好"), ("Bye.", "")):
        prompt = conversation.prompt(question)
        turns.append({"role": "user", "content": question})
        assert prompt == tokenizer.hf.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        whole = tokenizer.encode_chat(
            tokenizer.apply_chat_template(turns) + answer + "stop" * (end == "at a stop string")
        )
        ids = whole[len(prompt) :] + [tokenizer.hf.eos_token_id] * (end == "whole")
        stream = tokenizer.detokenizer(["stop"])
        shown = "".join(stream.add(id, last=n == len(ids)) for n, id in enumerate(ids, 1))
        conversation.add_answer(shown, ids)
        turns.append({"role": "assistant", "content": shown})


FIRST_ADDED = 1024  # the small checkpoint's tokenizer has 1024 tokens
BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SPECIAL = BEGIN, END, "<｜User｜>", "<｜Assistant｜>"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}"
    "{% else %}{{ '<｜Assistant｜>' + m['content'].split('</think>')[-1] + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"
)


@pytest.fixture
def checkpoint(tmp_path):
    """The directory of tokenizer files and a generation_config.json."""
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    tokenizer = json.loads((SMALL_CHECKPOINT / "tokenizer.json").read_text())
    for id, content in enumerate([*SPECIAL, "<think>", "</think>"], FIRST_ADDED):
        added = dict(id=id, content=content, special=content in SPECIAL)
        tokenizer["added_tokens"].append(flags | added)
    config = dict(bos_token=BEGIN, eos_token=END, pad_token=END, chat_template=TEMPLATE)
    for name, fields in {
        "config": json.loads((SMALL_CHECKPOINT / "config.json").read_text()),
        "tokenizer": tokenizer,
        "tokenizer_config": config | dict(tokenizer_class="LlamaTokenizerFast", legacy=True, add_bos_token=True),
        "generation_config": dict(eos_token_id=1021),
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(fields))
    return tmp_path


def test_a_prompt_has_one_begin_token_and_ends_with_the_opened_reasoning(checkpoint):
    tokenizer = ChatTokenizer(checkpoint, instruct=True)
    ids = tokenizer.encode("What is 2 + 2?")
    assert ids == tokenizer.hf.apply_chat_template(
        [{"role": "user", "content": "What is 2 + 2?"}], add_generation_prompt=True, return_dict=False
    )
    think = tokenizer.hf.convert_tokens_to_ids("<think>")
    assert tokenizer.hf.decode(ids).endswith("<think>\n") and ids.count(think) == 1
    plain = ChatTokenizer(checkpoint, instruct=False).encode("What is 2 + 2?")
    begin = tokenizer.hf.bos_token_id
    assert ids[0] == begin and ids.count(begin) == 1
    assert plain[1:] == Tokenizer.from_file(f"{checkpoint / 'tokenizer.json'}").encode("What is 2 + 2?").ids


# The form of Qwen3's: it thinks unless the program says enable_thinking=False, and drops the reasoning of earlier
# turns.
QWEN3 = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{{ m['content'].split('</think>')[-1].lstrip('\n') }}{% else %}{{ m['content'] "
    "}}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% "
    "endif %}"
)


@pytest.mark.parametrize(
    "template, answer, end",
    [
        (TEMPLATE, "Two and two.\n</think>\n\nIt is 4.", "<think>\n"),
        (QWEN3, "<think>\nTwo and two.\n</think>\n\nIt is 4.", "<|im_start|>assistant\n"),  # it thinks by default
    ],
    ids=["R1", "Qwen3"],
)
def test_reasoning_is_shown_and_left_out_of_the_next_turn(checkpoint, template, answer, end):
    """<think> and </think> are no special tokens. The next prompt equals Hugging Face's. end: of a prompt."""
    edit(checkpoint, chat_template=template)
    tokenizer = ChatTokenizer(checkpoint, instruct=True)
    stop = tokenizer.hf.eos_token_id
    assert tokenizer.hf.convert_ids_to_tokens(stop) == END and tokenizer.stop_ids == {stop, 1021}
    conversation = Conversation(tokenizer, tokenizer.stop_ids)
    assert tokenizer.hf.decode(conversation.prompt("What is 2 + 2?")).endswith(end)
    ids = [*tokenizer.encode_chat(answer), stop]
    stream = tokenizer.detokenizer()
    shown = "".join(stream.add(id, last=id == stop) for id in ids)
    assert shown == answer
    conversation.add_answer(shown, ids)
    following = conversation.prompt("And 5?")
    chat = tokenizer.hf.decode(following)
    assert "Two and two" not in chat and "It is 4." in chat
    turns = [*conversation.turns, {"role": "user", "content": "And 5?"}]
    assert following == tokenizer.hf.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
