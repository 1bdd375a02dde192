"""Questions with one number for an answer, in the form of GSM8K: read from a file, or made here.

Made questions depend on a fixed seed alone.
"""

import random
import re
from pathlib import Path
from typing import Sequence

from models.common.errors import UserError
from models.common.json_file import parse_json
from models.common.user_file import MIB, read_text
from models.demos.qwen25_7b.reference.corpus import make_questions

LIMIT = 16 * MIB  # of a file of questions; GSM8K has 5 MB
MARK = "####"  # before the number
NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
UNTIL = ("Question:",)  # ends an answer, as in GSM8K
SEED = 0

WORD_PROBLEMS = (
    ("{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?", "+"),
    ("{name} has {a} {things} and gives {b} of them away. How many are left?", "-"),
    ("There are {b} boxes with {a} {things} in each box. How many {things} are there?", "*"),
    ("What is {a} + {b}?", "+"),
)
NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Frank")
THINGS = ("apples", "books", "coins", "stamps", "marbles", "pens")


def read_questions(file: Path) -> list[dict[str, str]]:
    """The questions of a file of JSON lines. UserError: names the line that is no question."""
    questions = []
    for number, line in enumerate(read_text(file, LIMIT, "--questions").splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = parse_json(line)
        except ValueError as error:
            raise UserError(f"--questions {file}, line {number}: not JSON ({error})") from error
        texts = (
            [item.get(name) for name in ("question", "answer")]
            if isinstance(item, dict)
            else [None]
        )
        if not all(isinstance(text, str) for text in texts) or MARK not in texts[1]:
            raise UserError(
                f'--questions {file}, line {number}: must be {{"question": "...", "answer": "... {MARK} 12"}}'
            )
        questions.append({"question": texts[0], "answer": texts[1]})
    if not questions:
        raise UserError(f"--questions {file} has no questions: give JSON lines")
    return questions


def sums_of_the_small_world(count: int) -> list[dict[str, str]]:
    """Sums and counts that the small checkpoint was trained on or that were held out, at most `count` of them."""
    turns = make_questions()
    drawn = random.Random(SEED).sample(turns["sums"], len(turns["sums"])) + turns["counting"]
    return [
        {"question": turn.user, "answer": f"{turn.answer} {MARK} {last_number(turn.answer)}"}
        for turn in drawn[:count]
    ]


def word_problems(count: int) -> list[dict[str, str]]:
    """Problems of one step with numbers of up to two digits, for models of some language."""
    rng = random.Random(SEED)
    made = []
    for index in range(count):
        text, sign = WORD_PROBLEMS[index % len(WORD_PROBLEMS)]
        a, b = rng.randint(10, 19), rng.randint(2, 9)
        number = {"+": a + b, "-": a - b, "*": a * b}[sign]
        question = text.format(a=a, b=b, name=rng.choice(NAMES), things=rng.choice(THINGS))
        made.append({"question": question, "answer": f"{MARK} {number}"})
    return made


def last_number(text: str) -> str | None:
    """The last number of an answer, as flexible-extract of GSM8K finds it; without commas."""
    numbers = re.findall(NUMBER, text)
    return numbers[-1].replace(",", "") if numbers else None


def before_any(ends: Sequence[str], text: str) -> str:
    """The text before the first occurrence of any of the ends."""
    return text[: min([text.find(end) for end in ends if end in text], default=len(text))]
