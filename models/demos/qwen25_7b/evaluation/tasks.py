"""The command `tasks`: scores by EleutherAI's lm-eval, on its tasks or on a file of questions in GSM8K's form."""

import argparse
from dataclasses import asdict

from models.common.errors import UserError
from models.common.mesh import command_queues
from models.common.options import path
from models.common.output_file import check_directory, write_json
from models.common.terminal import Progress, complain, say
from models.demos.qwen25_7b.config import MAX_USERS
from models.demos.qwen25_7b.config.recipe_file import add_recipe
from models.demos.qwen25_7b.evaluation.model import (
    EvaluatedModel,
    Split,
    add_machine,
    add_model,
    replicas_on,
)
from models.demos.qwen25_7b.evaluation.questions import MARK, NUMBER, UNTIL, read_questions
from models.demos.qwen25_7b.evaluation.report import add_out, result_file
from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer

CONTEXT = 1024  # tokens a user
KEPT = ("results", "versions", "n-shot", "n-samples", "higher_is_better")  # of lm-eval's results


class TasksCommand:
    """The score of lm-eval's tasks, or of a file of questions with one number for an answer each (GSM8K's form)."""

    EXAMPLES = (
        "python -m models.demos.qwen25_7b.evaluation tasks --questions sums.jsonl --limit 50",
        "python -m models.demos.qwen25_7b.evaluation tasks --model DIR --tasks gsm8k,hellaswag --fewshot 5",
    )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        models = parser.add_argument_group("model and recipe")
        add_model(models)
        add_recipe(models)
        models.add_argument(
            "--max-seq-len",
            type=int,
            default=CONTEXT,
            metavar="N",
            help="context, tokens a user (default: %(default)s)",
        )
        add_machine(parser)
        option = parser.add_argument_group("questions").add_argument
        option(
            "--tasks",
            default="",
            metavar="NAMES",
            help="comma-separated names of lm-eval's tasks; most download their data",
        )
        option(
            "--include",
            type=path("--include"),
            metavar="DIR",
            help="directory of further lm-eval tasks (YAML)",
        )
        option(
            "--questions",
            type=path("--questions"),
            metavar="FILE",
            help='JSON lines: {"question": "...", "answer": "... #### 12"}',
        )
        option("--limit", type=int, metavar="N", help="questions of each task at most")
        option(
            "--fewshot",
            type=int,
            metavar="N",
            help="solved examples before each question (default: the task's)",
        )
        option(
            "--instruct",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="use the chat template (default: yes)",
        )
        option(
            "--max-new-tokens",
            type=int,
            default=256,
            metavar="N",
            help="of an answer to --questions (default: %(default)s)",
        )
        add_out(parser)

    @staticmethod
    def run(args: argparse.Namespace) -> None:
        names = [name for name in args.tasks.split(",") if name]
        _check_numbers(args)
        if not names and args.questions is None:
            raise UserError("nothing to do: give --tasks or --questions")
        if args.include is not None and not args.include.is_dir():
            raise UserError(f"--include {args.include}: no directory; give one of lm-eval's YAML")
        questions = [] if args.questions is None else read_questions(args.questions)
        model = EvaluatedModel.open(args.model)
        args.recipe.check_layers(model.config.num_hidden_layers)
        split = Split.from_options(args, model.config)
        context = min(args.max_seq_len, model.config.context)
        if questions:
            check_room(args.max_new_tokens, context)
        tokenizer = ChatTokenizer(model.directory, instruct=args.instruct)
        check_directory("--out", args.out)
        below = split.select_backend(args.backend)
        results = _run_tasks(args, names, questions, model, split, tokenizer)
        title = f"{model.name}, {split}, recipe {args.recipe}; below ttnn: {below}"
        with Progress("lm-eval makes its table"):
            from lm_eval.utils import make_table
        say(f"{title}\n\n{make_table(results)}")
        file = result_file(args.out, model.name, split, "tasks", "json")
        settings = {"model": model.name, "split": f"{split}", "below ttnn": below}
        contents = {name: results[name] for name in KEPT}
        if questions:
            contents["answers"] = _answers(results["samples"]["questions"])
        write_json(file, settings | {"recipe": asdict(args.recipe)} | contents)
        say(str(file))


def check_room(new_tokens: int, context: int) -> None:
    """UserError if answers of new_tokens fill the context."""
    if new_tokens >= context:
        raise UserError(
            f"--max-new-tokens {new_tokens} leaves no room for a question in a context of {context}: give less, "
            "or a larger --max-seq-len"
        )


def _check_numbers(args: argparse.Namespace) -> None:
    for option, least in (("limit", 1), ("fewshot", 0), ("max_new_tokens", 1), ("max_seq_len", 2)):
        value = getattr(args, option)
        if value is not None and value < least:
            raise UserError(f"--{option.replace('_', '-')} must be {least} or more, got {value}")


def _run_tasks(
    args: argparse.Namespace,
    names: list[str],
    questions: list[dict[str, str]],
    model: EvaluatedModel,
    split: Split,
    tokenizer: ChatTokenizer,
) -> dict:
    """lm-eval's results. Everything that a user can mend is found before the model is loaded."""
    with Progress("loading lm-eval"):
        from lm_eval.evaluator import simple_evaluate
        from lm_eval.tasks import TaskManager

        from models.demos.qwen25_7b.evaluation.harness import ReplicaLM

        include = str(args.include) if args.include else None
        manager = TaskManager(include_path=include, include_defaults=bool(names))
    unknown = [name for name in names if not manager.match_tasks([name])]
    if unknown:
        raise UserError(
            f"--tasks: lm-eval {args.include or ''} has no {', '.join(unknown)}".replace("  ", " ")
            + "; see lm-eval's list, or give --include"
        )
    tasks: list = list(names)
    if questions:
        tasks.append(
            questions_task(questions, instruct=args.instruct, new_tokens=args.max_new_tokens)
        )
    context = min(args.max_seq_len, model.config.context)
    options = dict(texts=split.dp * MAX_USERS, max_seq_len=context, queues=command_queues())
    complain(f"{args.recipe.name}: loading")
    with (
        split.open() as devices,
        replicas_on(devices, model.checkpoint, args.recipe, **options) as replicas,
    ):
        return simple_evaluate(
            ReplicaLM(replicas, tokenizer),
            tasks=tasks,
            task_manager=manager,
            num_fewshot=args.fewshot,
            limit=args.limit,
            apply_chat_template=args.instruct,
        )


def _answers(samples: list[dict]) -> list[str]:
    """The text of each answer, in the order of the questions. lm-eval has a sample for each filter."""
    texts = {sample["doc_id"]: sample["resps"][0][0] for sample in samples}
    return [texts[index] for index in sorted(texts)]


def questions_task(questions: list[dict[str, str]], *, instruct: bool, new_tokens: int):
    """A task for lm-eval, scored as GSM8K is.

    strict-match scores the number after the mark, flexible-extract the last number.
    """
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
            "generation_kwargs": {
                "until": list(UNTIL),
                "do_sample": False,
                "max_gen_toks": new_tokens,
            },
            "metric_list": [
                {
                    "metric": "exact_match",
                    "aggregation": "mean",
                    "higher_is_better": True,
                    "regexes_to_ignore": [","],
                }
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
