"""open_model in any order: open, generate, read on, close a call, close the model.

Whatever came before, an answer that is read to its end is Hugging Face's, a call in the middle of another one is
refused, and so is a second open model. open_model opens the mesh itself, so the machine runs in a process of its own.
"""

import os
from pathlib import Path

import pytest
from programs import run_python

ROOT = Path(__file__).parents[2]
NEW_TOKENS = 6
QUESTIONS = ["What is 7 + 5?", "Name the planets.", "Spell the word banana.", "Why? " * 30]


@pytest.mark.make_test_on("N300")
def test_answers_do_not_depend_on_what_came_before(tmp_path):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(f"{ROOT}/{place}" for place in ("", "golden_mesh/src", "golden_mesh/tests")),
        "XDG_CACHE_HOME": f"{tmp_path}",
    }
    done = run_python(__file__, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


def main() -> None:
    import hypothesis.strategies as st
    import torch
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
    from transformers import AutoModelForCausalLM

    from models.demos.qwen25_7b.engine.open_model import open_model
    from models.demos.qwen25_7b.errors import UserError
    from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
    from tests.generation import greedy

    options = dict(mesh="N300", recipe="bf16", max_seq_len=256)
    with open_model(SMALL_CHECKPOINT, **options) as model:  # ttnn is imported after this
        hf = AutoModelForCausalLM.from_pretrained(SMALL_CHECKPOINT, dtype=torch.float32).eval()
        prompts = [model.tokenizer.encode(question) for question in QUESTIONS]
        prompts += [prompts[3] + prompt for prompt in prompts[:2]]  # one beginning
        right = [greedy(hf, prompt, NEW_TOKENS, model.stop_ids) for prompt in prompts]

    class Model(RuleBasedStateMachine):
        model = call = None

        @precondition(lambda self: self.model is None)
        @rule(users=st.sampled_from([1, 2, 9]), tp=st.sampled_from([1, 2]), speculate=st.sampled_from([1, 4]))
        def open(self, users, tp, speculate):
            self.model = open_model(SMALL_CHECKPOINT, **options, users=users, tp=tp, speculate=speculate)

        @precondition(lambda self: self.model)
        @rule()
        def open_again(self):
            with pytest.raises(UserError, match="close it first"):
                open_model(SMALL_CHECKPOINT, **options)

        @precondition(lambda self: self.model)
        @rule(chosen=st.lists(st.integers(0, len(prompts) - 1), min_size=1, max_size=11))
        def generate(self, chosen):
            if self.call:
                with pytest.raises(UserError, match="in the middle of another call"):
                    self.model.generate([prompts[i] for i in chosen])
                return
            self.call = self.model.generate([prompts[i] for i in chosen], NEW_TOKENS)
            self.expected = {user: list(right[i]) for user, i in enumerate(chosen)}
            self.read(1)  # a call begins with its first token

        @precondition(lambda self: self.call)
        @rule(tokens=st.integers(1, 70))
        def read(self, tokens):
            for _ in range(tokens):
                delta = next(self.call, None)
                if delta is None:
                    assert not any(self.expected.values()), "a call ended early"
                    self.call = None
                    return
                assert delta.token == self.expected[delta.user].pop(0)
                assert delta.last == (not self.expected[delta.user])

        @precondition(lambda self: self.call)
        @rule()
        def close_call(self):
            self.call.close()
            self.call = None

        @precondition(lambda self: self.model)
        @rule()
        def close(self):
            self.model.close()
            assert not self.call or list(self.call) == []
            with pytest.raises(UserError, match="the model is closed: open it again"):
                self.model.generate(prompts)
            self.model = self.call = None

        def teardown(self):
            if self.model:
                self.model.close()

    few = settings(
        max_examples=3,
        stateful_step_count=12,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # a shorter example takes minutes
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Model, settings=few)


if __name__ == "__main__":
    main()
