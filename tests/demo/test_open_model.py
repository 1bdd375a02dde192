"""open_model in any order: open, generate, read on, close a call, close the model.

Whatever came before, an answer that is read to its end is Hugging Face's, a call in the middle of another one is
refused, and so is a second open model. open_model opens the mesh itself, so this runs in a process of its own.
"""

import pytest

from tests.demo.test_readme import run_in

NEW_TOKENS = 6
QUESTIONS = ["What is 7 + 5?", "Name the planets.", "Spell the word banana.", "Why? " * 30]


@pytest.mark.make_test_on("N300")
def test_answers_do_not_depend_on_what_came_before(tmp_path):
    run_in(tmp_path, __file__)


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from models.demos.qwen25_7b.engine.open_model import open_model
    from models.demos.qwen25_7b.errors import UserError
    from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
    from tests.generation import greedy

    options, right = dict(mesh="N300", recipe="bf16", max_seq_len=256), []
    for users, tp, speculate in ((1, 2, 1), (9, 1, 4), (2, 2, 4)):
        model = open_model(SMALL_CHECKPOINT, **options, users=users, tp=tp, speculate=speculate)
        with pytest.raises(UserError, match="close it first"):
            open_model(SMALL_CHECKPOINT, **options)
        prompts = [model.tokenizer.encode(question) for question in QUESTIONS]
        prompts += [prompts[3] + prompt for prompt in prompts[:2]]  # one beginning
        if not right:  # transformers imports after open_model, which comes before ttnn
            hf = AutoModelForCausalLM.from_pretrained(SMALL_CHECKPOINT, dtype=torch.float32).eval()
            right = [greedy(hf, prompt, NEW_TOKENS, model.stop_ids) for prompt in prompts]
        for read in (1, 5, None):  # deltas before a call is closed; None: all
            asked = prompts * (1 + (users > 2))
            call, new = model.generate(asked, NEW_TOKENS), [[] for _ in asked]
            while read != sum(map(len, new)) and (delta := next(call, None)):
                new[delta.user].append(delta.token)
                assert bool(delta.finish_reason) == (new[delta.user] == right[delta.user % len(right)])
                with pytest.raises(UserError, match="in the middle of another call"):
                    model.generate(prompts)
            for user, tokens in enumerate(new):
                expected = right[user % len(right)]
                assert tokens == (expected if read is None else expected[: len(tokens)])
            call.close()
        call = model.generate(prompts, NEW_TOKENS)
        next(call)
        model.close()
        assert list(call) == []
        with pytest.raises(UserError, match="the model is closed: open it again"):
            model.generate(prompts)


if __name__ == "__main__":
    main()
