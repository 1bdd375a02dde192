"""SmolLM2 with gate and up in 4 bits by our tool, made with what everybody has: its own answers and Python's documentation."""

from pathlib import Path
from pydoc_data.topics import topics

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from models.common.terminal import say
from models.demos.qwen25_7b.evaluation.smollm2 import cached_smollm2

SMOLLM2_4BIT = "smollm2-4bit"
TOKENS = 6144  # of the calibration text; half of them answers
CHARACTERS = 4 * TOKENS // 2  # of each half: a token is about four
PROMPTS = (
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


def cached_smollm2_4bit() -> Path:
    """The rounded checkpoint in the user's cache; made there if it is not there yet, which a stopped run goes on with."""
    from models.demos.qwen25_7b.demo.report import Bar
    from models.demos.qwen25_7b.quantize.run import quantise

    model = cached_smollm2()
    out, text = (model.with_name(f"{model.name}-4bit{suffix}") for suffix in ("", ".txt"))
    if not (out / "config.json").is_file():
        say(f"making {out} (some minutes, 370 MB to keep)")
        if not text.is_file():
            passing = text.with_suffix(".part")
            passing.write_text(calibration_text(model), encoding="utf-8")
            passing.rename(text)
        with Bar("layers", "layers") as bar:
            quantise(f"{model}", text, out, ("gate", "up"), TOKENS, bar)
    return out


def calibration_text(model: Path) -> str:
    """Half of it what the model answers, half of it documentation."""
    pages = "\n\n".join(topics[name] for name in sorted(topics))
    return answers(model)[:CHARACTERS] + "\n\n" + pages[:CHARACTERS]


@torch.no_grad()
def answers(model: Path) -> str:
    """Of all prompts, sampled with a fixed seed: greedy ones of so small a model repeat themselves."""
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.eos_token
    chats = [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True)
        for p in PROMPTS
    ]
    asked = tokenizer(chats, return_tensors="pt", padding=True, add_special_tokens=False)
    ids = asked["input_ids"]
    torch.manual_seed(0)
    hugging_face = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, local_files_only=True).eval()
    written = hugging_face.generate(
        ids,
        attention_mask=asked["attention_mask"],
        max_new_tokens=192,
        do_sample=True,
        temperature=0.7,
        top_p=0.9,
        pad_token_id=tokenizer.pad_token_id,
    )
    texts = tokenizer.batch_decode(written[:, ids.shape[1] :], skip_special_tokens=True)
    return "\n\n".join(f"{prompt}\n\n{text}" for prompt, text in zip(PROMPTS, texts))
