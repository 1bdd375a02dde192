"""A task for lm-eval in GSM8K's form: JSON lines with a "question" and an "answer" that ends in "#### 12"."""

import json
from pathlib import Path

from datasets import Dataset
from lm_eval.api.task import ConfigurableTask

from models.common.errors import UserError
from models.demos.qwen25_7b.evaluation.texts import read

MARK = "####"  # before the number
NUMBER = r"-?\d[\d,]*(?:\.\d+)?"


def read_questions(file: Path) -> list[dict[str, str]]:
    """The file's questions; UserError that names the line for one that is none."""
    questions = []
    for number, line in enumerate(read(file).splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError as error:
            raise UserError(f"{file}, line {number}: not JSON ({error})") from error
        texts = [item.get(name) for name in ("question", "answer")] if isinstance(item, dict) else [None]
        if not all(isinstance(text, str) for text in texts) or MARK not in texts[1]:
            raise UserError(f'{file}, line {number}: must be {{"question": "...", "answer": "... {MARK} 12"}}')
        questions.append({"question": texts[0], "answer": texts[1]})
    if not questions:
        raise UserError(f"{file} has no questions: give JSON lines")
    return questions


def questions_task(questions: list[dict[str, str]], *, instruct: bool, new_tokens: int) -> ConfigurableTask:
    """Scored as GSM8K is: by the number after the mark (strict-match), and by the last number (flexible-extract)."""
    return ConfigurableTask(
        config={
            "task": "questions",
            "custom_dataset": lambda **_: {"test": Dataset.from_list(questions)},
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_text": "{{question}}" if instruct else "Question: {{question}}\nAnswer:",
            "doc_to_target": f"{{{{answer.split('{MARK}')[-1].strip()}}}}",
            "num_fewshot": 0,
            "generation_kwargs": {"until": ["Question:"], "do_sample": False, "max_gen_toks": new_tokens},
            "metric_list": [
                {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True, "regexes_to_ignore": [","]}
            ],
            "filter_list": [
                _extracted("strict-match", f"{MARK} ({NUMBER})", 0),
                _extracted("flexible-extract", f"({NUMBER})", -1),
            ],
        }
    )


def _extracted(name: str, pattern: str, which: int) -> dict:
    regex = {"function": "regex", "regex_pattern": pattern, "group_select": which}
    return {"name": name, "filter": [regex, {"function": "take_first"}]}
