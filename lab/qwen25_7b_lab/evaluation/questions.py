"""Questions with one number for an answer, in the form of GSM8K, as a task of lm-eval."""

from pathlib import Path

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import read_json_lines, read_text

MARK = "####"  # before the number
NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
UNTIL = ("Question:",)  # ends an answer, as in GSM8K


def read_questions(file: Path) -> list[dict[str, str]]:
    """The questions of a file of JSON lines. UserError: names the line that is no question."""
    questions = []
    text = read_text(file, "--questions")
    for number, item in read_json_lines(text, f"--questions {file}"):
        try:
            question, answer = item["question"], item["answer"]
            if not isinstance(question, str) or MARK not in answer:
                raise TypeError
        except (LookupError, TypeError) as error:
            raise UserError(
                f'--questions {file}, line {number}: must be {{"question": "...", "answer": "... {MARK} 12"}}'
            ) from error
        questions.append({"question": question, "answer": answer})
    if not questions:
        raise UserError(f"--questions {file} has no questions: give JSON lines")
    return questions


def questions_task(questions: list[dict[str, str]], *, instruct: bool, new_tokens: int):
    """A task for lm-eval, as GSM8K: strict-match scores the number after the mark, flexible-extract the last."""
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask

    return ConfigurableTask(
        config={
            "task": "questions",
            "custom_dataset": lambda **_: {"test": Dataset.from_list(questions)},
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_text": "{{question}}" if instruct else "Question: {{question}}\nAnswer:",
            "doc_to_target": f"{{{{answer.split('{MARK}')[-1].strip()}}}}",
            "num_fewshot": 0,
            "generation_kwargs": {"until": list(UNTIL), "do_sample": False, "max_gen_toks": new_tokens},
            "metric_list": [
                {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True, "regexes_to_ignore": [","]}
            ],
            "filter_list": [
                _number_filter("strict-match", f"{MARK} ({NUMBER})", 0),
                _number_filter("flexible-extract", f"({NUMBER})", -1),
            ],
        }
    )


def _number_filter(name: str, pattern: str, index: int) -> dict:
    regex = {"function": "regex", "regex_pattern": pattern, "group_select": index}
    return {"name": name, "filter": [regex, {"function": "take_first"}]}
