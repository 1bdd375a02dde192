"""The score of lm-eval's tasks, or of a file of questions with one number for an answer each (GSM8K's form)."""

import argparse
from dataclasses import asdict
from pathlib import Path

from models.common.errors import UserError
from models.common.mesh import command_queues, describe_backend, select_backend
from models.common.terminal import say
from models.demos.qwen25_7b.config.options import add_recipe
from models.demos.qwen25_7b.evaluation.options import add_machine, add_model, add_out, split_of
from models.demos.qwen25_7b.evaluation.report import result_file, write_json
from models.demos.qwen25_7b.evaluation.subject import MAX_USERS, Subject, replicas_on
from models.demos.qwen25_7b.serving.text import Text


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_machine(parser)
    add_recipe(parser)
    parser.add_argument(
        "--tasks", default="", help="comma-separated names of lm-eval's tasks, which may want a network"
    )
    parser.add_argument("--include", type=Path, help="directory of further lm-eval tasks (YAML)")
    parser.add_argument("--questions", type=Path, help='JSON lines: {"question": "...", "answer": "... #### 12"}')
    parser.add_argument("--limit", type=int, help="questions of each task at most")
    parser.add_argument("--fewshot", type=int, help="solved examples before each question (default: what a task says)")
    parser.add_argument(
        "--instruct", action=argparse.BooleanOptionalAction, default=True, help="use the chat template (default: yes)"
    )
    parser.add_argument("--max-new-tokens", type=int, default=256, help="for an answer to --questions (default: 256)")
    parser.add_argument("--max-seq-len", type=int, default=1024, help="context, tokens a user (default: 1024)")
    add_out(parser)


def run(args: argparse.Namespace) -> None:
    names = [name for name in args.tasks.split(",") if name]
    if not names and args.questions is None:
        raise UserError("nothing to do: give --tasks or --questions")
    recipe = args.recipe
    subject = Subject.open(args.model)
    split = split_of(args, subject)
    text = Text(subject.directory, instruct=args.instruct)
    below = describe_backend(select_backend(args.backend, split.kind.name)).split(" (")[0]

    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import make_table

    from models.demos.qwen25_7b.evaluation.harness import ReplicaLM
    from models.demos.qwen25_7b.evaluation.questions import questions_task, read_questions

    tasks = list(names)
    if args.questions is not None:
        asked = read_questions(args.questions)
        tasks.append(questions_task(asked, instruct=args.instruct, new_tokens=args.max_new_tokens))
    manager = TaskManager(include_path=str(args.include) if args.include else None, include_defaults=bool(names))
    context = min(args.max_seq_len, subject.config.max_position_embeddings)
    options = dict(texts=split.dp * MAX_USERS, max_seq_len=context, queues=command_queues())
    with split.open() as devices, replicas_on(devices, subject.checkpoint, recipe, **options) as replicas:
        results = simple_evaluate(
            ReplicaLM(replicas, text),
            tasks=tasks,
            task_manager=manager,
            num_fewshot=args.fewshot,
            limit=args.limit,
            apply_chat_template=args.instruct,
        )
    title = f"{subject.name}, {split}, recipe {recipe}; below ttnn: {below}"
    say(f"{title}\n\n{make_table(results)}")
    file = result_file(args.out, subject.name, "tasks", "json")
    kept = {name: results[name] for name in ("results", "versions", "n-shot", "n-samples", "higher_is_better")}
    write_json(
        file,
        {"model": subject.name, "split": f"{split}", "below ttnn": below} | {"recipe": asdict(recipe)} | kept,
    )
    say(str(file))
