"""The command `parity`: the same questions on several splits and recipes, in one table beside Hugging Face's float32.

ttnn can open one machine in a process. Each split and recipe is therefore a run of the command `tasks` in a
process of its own.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from math import comb, sqrt
from pathlib import Path
from tempfile import TemporaryDirectory

from models.common.errors import UserError
from models.common.interrupt import shielded
from models.common.machines import machine
from models.common.markdown import table_at_end
from models.common.options import add_backend, path
from models.common.output_file import check_directory, write_json
from models.common.terminal import Progress, complain, say
from models.demos.qwen25_7b.config import recipe_named
from models.demos.qwen25_7b.config.recipe_file import add_recipes
from models.demos.qwen25_7b.evaluation.model import EvaluatedModel, Split, add_model
from models.demos.qwen25_7b.evaluation.questions import (
    MARK,
    UNTIL,
    before_any,
    last_number,
    read_questions,
    sums_of_the_small_world,
    word_problems,
)
from models.demos.qwen25_7b.evaluation.reference import HuggingFace
from models.demos.qwen25_7b.evaluation.report import add_out
from models.demos.qwen25_7b.evaluation.tasks import CONTEXT, check_room
from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer

HEADER = ("right", "95 % interval", "same text", "gained", "lost", "p")
LEGEND = (
    "right: the last number of the answer is the question's. same text: the answer is Hugging Face's, letter for letter. gained, "
    "lost: right here and wrong there, and the reverse. p: McNemar's exact test of gained against lost."
)
Z = 1.959964  # the normal distribution's 97.5 % point


@dataclass(frozen=True)
class Outcome:
    """The answers of one run, in the order of the questions, and whether each is right."""

    answers: list[str]
    right: list[bool]

    @classmethod
    def of(cls, answers: list[str], questions: list[dict[str, str]]) -> "Outcome":
        numbers = [question["answer"].split(MARK)[-1].strip() for question in questions]
        right = [
            last_number(answer) == number.replace(",", "")
            for answer, number in zip(answers, numbers, strict=True)
        ]
        return cls(answers, right)

    def row(self, reference: "Outcome") -> tuple[str, ...]:
        """The cells under HEADER."""
        low, high = wilson_interval(sum(self.right), len(self.right))
        gained = sum(a and not b for a, b in zip(self.right, reference.right))
        lost = sum(b and not a for a, b in zip(self.right, reference.right))
        same = sum(map(str.__eq__, self.answers, reference.answers))
        return (
            f"{sum(self.right)} of {len(self.right)}",
            f"{low:.1%} to {high:.1%}",
            f"{same}",
            f"{gained}",
            f"{lost}",
            f"{mcnemar_p(gained, lost):.2g}",
        )


def wilson_interval(right: int, questions: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share, by Wilson's score. It holds for shares near 0 and 1, too."""
    share, room = right / questions, Z * Z / questions
    middle = (share + room / 2) / (1 + room)
    half = Z / (1 + room) * sqrt(share * (1 - share) / questions + room / questions / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def mcnemar_p(gained: int, lost: int) -> float:
    """The two-sided p of McNemar's exact test: changes in either direction are equally likely."""
    changes = gained + lost
    tail = sum(comb(changes, k) for k in range(min(gained, lost) + 1)) / 2**changes
    return min(1.0, 2 * tail)


class ParityCommand:
    """The same questions on several splits and recipes: one table of scores with their confidence intervals."""

    EXAMPLES = (
        "python -m models.demos.qwen25_7b.evaluation parity --splits N150,N300,T3K:8,T3K:1 --recipes bf16,bfp8",
        "python -m models.demos.qwen25_7b.evaluation parity --model smollm2 --splits N150 --questions sums.jsonl",
    )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        models = parser.add_argument_group("model, recipes and splits")
        add_model(models)
        add_recipes(models, default="bf16,bfp8")
        models.add_argument(
            "--splits",
            default="N150,N300",
            metavar="NAMES",
            help="comma-separated: a machine, or machine:tp (default: %(default)s)",
        )
        add_backend(models)
        option = parser.add_argument_group("questions").add_argument
        option(
            "--questions",
            type=path("--questions"),
            metavar="FILE",
            help="JSON lines as of `tasks` (default: sums of the small checkpoint's world, or made word problems)",
        )
        option(
            "--limit",
            type=int,
            default=200,
            metavar="N",
            help="questions at most (default: %(default)s)",
        )
        option(
            "--max-new-tokens",
            type=int,
            default=48,
            metavar="N",
            help="of an answer (default: %(default)s)",
        )
        add_out(parser)

    @staticmethod
    def run(args: argparse.Namespace) -> None:
        for option in ("limit", "max_new_tokens"):
            if getattr(args, option) < 1:
                name = option.replace("_", "-")
                raise UserError(f"--{name} must be 1 or more, got {getattr(args, option)}")
        recipes = list(dict.fromkeys(args.recipes.split(",")))
        model = EvaluatedModel.open(args.model)
        for recipe in recipes:
            recipe_named(recipe, "--recipes").check_layers(model.config.num_hidden_layers)
        splits = [split_named(name, model) for name in dict.fromkeys(args.splits.split(","))]
        questions = _questions(args)
        check_room(args.max_new_tokens, min(CONTEXT, model.config.context))
        check_directory("--out", args.out)
        reference = _reference(model, questions, args.max_new_tokens)
        say(
            f"{model.name}: {len(questions)} questions, answers of {args.max_new_tokens} tokens at most\n{LEGEND}\n"
        )
        rows = [("Hugging Face", "float32", *reference.row(reference))]
        entries: list[dict] = []
        file = args.out / f"{model.name.replace(' ', '-')}-parity.json"
        runs = [(split, recipe) for split in splits for recipe in recipes]
        columns = ("split", "recipe", *HEADER)
        with table_at_end(columns, lambda: rows if entries else []):
            for split, recipe in runs:
                complain(f"{split}, {recipe}:")
                outcome, below = _run_tasks(args, split, recipe, questions)
                rows.append((f"{split}", recipe, *outcome.row(reference)))
                conditions = {"split": f"{split}", "recipe": recipe, "below ttnn": below}
                entries.append(conditions | asdict(outcome))
                write_json(
                    file,
                    {"model": model.name, "questions": questions}
                    | {"Hugging Face": asdict(reference), "runs": entries},
                )
        say(f"\n{file}")


def split_named(name: str, model: EvaluatedModel) -> Split:
    """name: a machine, or machine:tp. UserError: no such machine, or a tp that it or the model does not have."""
    kind, colon, tp = name.partition(":")
    if colon and not tp.isdecimal():
        raise UserError(f"--splits {name}: must be a machine, or machine:tp such as T3K:4")
    return Split.of(machine(kind, "--splits"), model.config, int(tp) if colon else None)


def _questions(args: argparse.Namespace) -> list[dict[str, str]]:
    if args.questions is not None:
        return read_questions(args.questions)[: args.limit]
    return sums_of_the_small_world(args.limit) if args.model is None else word_problems(args.limit)


def _reference(model: EvaluatedModel, questions: list[dict[str, str]], new_tokens: int) -> Outcome:
    tokenizer = ChatTokenizer(model.directory, instruct=True)
    stop_ids = tokenizer.stop_ids | set(model.config.eos_token_ids)
    with Progress("Hugging Face in float32 answers", "answers") as progress:
        hugging_face, answers = HuggingFace(model.directory), []
        for question in questions:
            prompt = tokenizer.encode(question["question"])
            detokenizer = tokenizer.detokenizer()
            *tokens, last = hugging_face.answer(prompt, new_tokens, stop_ids)
            for token in tokens:
                detokenizer.add(token, last=False)
            detokenizer.add(last, last=True)
            answers.append(before_any(UNTIL, detokenizer.text))
            progress(len(answers), len(questions))
    return Outcome.of(answers, questions)


def _run_tasks(
    args: argparse.Namespace, split: Split, recipe: str, questions: list[dict[str, str]]
) -> tuple[Outcome, str]:
    """The outcome of one run of `tasks`, and what was below ttnn."""
    with TemporaryDirectory(prefix="parity") as place:
        file = Path(place, "questions.jsonl")
        lines = [json.dumps(question) + "\n" for question in questions]
        file.write_text("".join(lines), encoding="utf-8")
        command = [sys.executable, "-m", "models.demos.qwen25_7b.evaluation", "tasks"]
        command += ["--mesh", split.kind.name, "--tp", f"{split.tp}", "--recipe", recipe]
        command += ["--backend", args.backend, "--questions", f"{file}", "--out", place]
        command += ["--max-new-tokens", f"{args.max_new_tokens}"]
        command += [] if args.model is None else ["--model", args.model]
        status = _wait_for(command)
        if status:
            raise UserError(f"{split}, {recipe}: `tasks` ended with status {status}; see above")
        (result,) = Path(place).glob("*.json")
        written = json.loads(result.read_text(encoding="utf-8"))
    return Outcome.of(written["answers"], questions), written["below ttnn"]


def _wait_for(command: list[str]) -> int:
    """The exit status of a program whose output is not needed. After an interrupt it has ended, too.

    It ignores Ctrl-C, as this process does (models/common/interrupt.py). It unwinds when its supervisor is killed,
    and its output then ends.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            child.stdout.read()
        except BaseException:
            child.kill()
            with shielded():
                child.stdout.read()
            raise
    return child.returncode
