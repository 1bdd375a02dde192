"""The command `tasks`: scores by EleutherAI's lm-eval, in one table over splits and recipes."""

import argparse
from dataclasses import asdict
from typing import Iterator

from models.demos.qwen25_7b.cli.options import add_machine, number, path
from models.demos.qwen25_7b.cli.terminal import complain, say
from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import write_json
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.text.tokenizer import ChatTokenizer
from models.demos.qwen25_7b.tt.mesh import command_queues, open_replicas

from ..options import Command, add_recipes, check_result, markdown
from .eval import add_out, result_file
from .model import TP_DEFAULT, EvaluatedModel, add_model, choose_backend, replicas_on, split_for
from .questions import questions_task, read_questions

CONTEXT = 1024  # tokens a user
HEADER = ("split", "recipe", "task", "metric", "score", "std. error", "questions")
KEPT = ("results", "versions", "n-shot", "n-samples", "higher_is_better")  # what is kept of lm-eval's results


def add_options(parser: argparse.ArgumentParser) -> None:
    models = parser.add_argument_group("model and recipes")
    add_model(models)
    add_recipes(models, default=BFP8.name)
    context = "context, tokens a user (default: %(default)s)"
    models.add_argument("--max-seq-len", default=CONTEXT, help=context, **number(2))
    machine = parser.add_argument_group("machine")
    add_machine(machine)
    tp = f"chips of a replica, one run for each {TP_DEFAULT}"
    machine.add_argument("--tp", type=_numbers, default=[None], metavar="N,...", help=tp)
    option = parser.add_argument_group("questions").add_argument
    names = "comma-separated names of lm-eval's tasks; most download their data"
    option("--tasks", default="", metavar="NAMES", help=names)
    lines = 'JSON lines: {"question": "...", "answer": "... #### 12"}'
    option("--questions", type=path, metavar="FILE", help=lines)
    option("--limit", **number(), help="questions of each task at most")
    option("--fewshot", **number(0), help="solved examples before each question (default: the task's)")
    template = "use the chat template (default: yes)"
    option("--instruct", action=argparse.BooleanOptionalAction, default=True, help=template)
    option("--max-new-tokens", default=256, help="of an answer to --questions (default: %(default)s)", **number())
    add_out(parser)


def score(args: argparse.Namespace) -> None:
    """The scores of lm-eval's tasks, or of a file of questions with one number for an answer each (GSM8K's form)."""
    names = [name for name in args.tasks.split(",") if name]
    if not names and args.questions is None:
        raise UserError("nothing to do: give --tasks or --questions")
    questions = [] if args.questions is None else read_questions(args.questions)
    model = EvaluatedModel.open(args.model)
    for recipe in args.recipes:
        recipe.check_layers(model.config.num_hidden_layers)
    splits = [split_for(model.config, args.mesh, tp) for tp in args.tp]
    context = min(args.max_seq_len, model.config.context)
    if questions and args.max_new_tokens >= context:
        raise UserError(
            f"--max-new-tokens {args.max_new_tokens} leaves no room for a question in a context of {context}: "
            "give less, or a larger --max-seq-len"
        )
    file = result_file(args.out, model.name, splits[0], "tasks")
    check_result("--out", file, "model", "runs")
    texts = splits[0].dp * MAX_USERS
    backend = choose_backend(args.backend, splits[0], model.config, args.recipes, texts=texts, max_seq_len=context)
    rows, runs = [], []
    try:
        for split, recipe, results in _runs(args, names, questions, model, splits):
            rows += _rows(f"{split}", recipe.name, results)
            run = {"split": f"{split}", "recipe": asdict(recipe)}
            run |= {name: results[name] for name in KEPT}
            if questions:
                run["answers"] = _answers(results["samples"]["questions"])
            runs.append(run)
            write_json(file, {"model": model.name, "below ttnn": backend, "runs": runs})
    finally:
        if rows:
            say(f"{model.name}; below ttnn: {backend}\n")
            say(markdown(HEADER, rows, aligned=True))
    say(f"\n{file}")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _runs(args, names, questions, model, splits) -> Iterator[tuple]:
    """(split, recipe, lm-eval's results). What a user can mend is found before the model is loaded."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    from .harness import ReplicaLM

    manager = TaskManager(include_defaults=bool(names))
    unknown = [name for name in names if not manager.match_tasks([name])]
    if unknown:
        raise UserError(f"--tasks: lm-eval has no {', '.join(unknown)}; see its list of tasks")
    tokenizer = ChatTokenizer(model.directory, instruct=args.instruct)
    context = min(args.max_seq_len, model.config.context)
    for split in splits:
        with open_replicas(split, queues=command_queues()) as devices:
            for recipe in args.recipes:
                complain(f"{split}, {recipe.name}")
                tasks = list(names)
                if questions:
                    tasks.append(questions_task(questions, instruct=args.instruct, new_tokens=args.max_new_tokens))
                sizes = dict(texts=split.dp * MAX_USERS, max_seq_len=context)
                with replicas_on(devices, model.checkpoint, recipe, **sizes) as replicas:
                    results = simple_evaluate(
                        ReplicaLM(replicas, tokenizer),
                        tasks=tasks,
                        task_manager=manager,
                        num_fewshot=args.fewshot,
                        limit=args.limit,
                        apply_chat_template=args.instruct,
                    )
                yield split, recipe, results


def _rows(split: str, recipe: str, results: dict) -> list[tuple[str, ...]]:
    """The cells under HEADER. lm-eval's keys are "metric,filter" and "metric_stderr,filter"."""
    rows = []
    for task, scores in results["results"].items():
        questions = results["n-samples"].get(task, {}).get("effective", "")
        for key, score in scores.items():
            metric, comma, filter = key.partition(",")
            if not comma or metric.endswith("_stderr"):
                continue
            error = scores.get(f"{metric}_stderr,{filter}")
            error = f"{error:.4f}" if isinstance(error, float) else ""
            name = metric if filter == "none" else f"{metric}, {filter}"
            rows.append((split, recipe, task, name, f"{score:.4f}", error, f"{questions}"))
    return rows


def _answers(samples: list[dict]) -> list[str]:
    """The text of each answer, in the order of the questions. lm-eval has a sample for each filter."""
    texts = {sample["doc_id"]: sample["resps"][0][0] for sample in samples}
    return [texts[index] for index in sorted(texts)]


TASKS = Command(
    score,
    add_options,
    (
        "--questions sums.jsonl --limit 50",
        "--model DIR --tasks gsm8k,hellaswag --fewshot 5",
        "--questions sums.jsonl --mesh T3K --tp 8,4,2,1 --recipes bf16,bfp8",
    ),
)
