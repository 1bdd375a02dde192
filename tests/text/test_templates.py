"""A chat's next prompt is what Hugging Face makes of the whole conversation, for each kind of template."""

import pytest

from models.demos.qwen25_7b.text.tokenizer import ChatTokenizer, Conversation
from tests.text.conftest import VOCABULARIES

END = "{{ eos_token }}"
# How a template writes a user's turn and an answer.
TEMPLATES = {
    "Alpaca": ("### Instruction:\n%s\n\n### Response:\n", "%s\n\n"),
    "Vicuna": ("USER: %s ASSISTANT:", " %s" + END),
    "Zephyr": ("<|user|>\n%s" + END + "\n<|assistant|>\n", "%s" + END + "\n"),
    "Llama 2": ("{{ bos_token }}[INST] %s [/INST]", " %s " + END),
    "Mistral": ("[INST] %s[/INST]", " %s" + END),
}


def with_template(tokenizer: ChatTokenizer, name: str) -> ChatTokenizer:
    user, answer = (part.replace("%s", "{{ m['content'] }}") for part in TEMPLATES[name])
    tokenizer.hf.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'user' %}" + user + "{% else %}" + answer + "{% endif %}{% endfor %}"
    )
    return tokenizer


@pytest.mark.parametrize("end", ["whole", "cut", "at a stop string"])
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", [name for name in VOCABULARIES if name != "tekken"])  # as byte level
def test_a_conversation_is_tokenized_as_by_hugging_face(vocabulary, name, template, end):
    tokenizer = with_template(vocabulary(name), template)
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
