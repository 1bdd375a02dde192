"""Text from Qwen2.5 on an N150, N300, N150x4, T3K or Galaxy. Start here to read the repository.

    python models/demos/qwen25_7b/demo/demo.py --mesh N300 --model Qwen/Qwen2.5-7B-Instruct --prompt "Hello"

Without --model, the small checkpoint of this repository answers and nothing is downloaded.

The call path of a decode step, which begins and ends in
`answer` (demo/answers.py) -> OpenModel.generate (engine/open_model.py) -> Generator (engine/generator.py)
-> Replica (engine/replica.py) -> TtTransformer (tt/transformer.py) -> TtSampler (tt/sampler.py)
"""

import importlib
import sys
from pathlib import Path

if not __package__:  # run as a file: the packages that this file lies in are found from here, whatever they are called
    here = Path(__file__).resolve().parent
    root = here.parents[3]
    sys.path.insert(0, str(root))
    __package__ = ".".join(here.relative_to(root).parts)
    importlib.import_module(__package__)

from ..cli.command import quiet_libraries, run  # noqa: E402


def main(argv: list[str] | None = None) -> None:
    """Answer prompts, or chat. What needs no weights is checked first. argv: default the command line's."""
    from .options import CHAT_CONTEXT, CONTEXT, parse, read_prompts, sampling

    args = parse(argv)
    prompts = [] if args.chat else read_prompts(args)
    quiet_libraries()

    # Imported here, so that --help needs no torch and `run` says which package is not installed.
    from ..cli.terminal import complain, say
    from ..config.sampling import GREEDY
    from ..engine.open_model import open_model
    from ..plans.parallel_plan import MAX_USERS
    from ..reference.small import SMALL_CHECKPOINT
    from ..text.generation_config import default_sampling, read_generation_config, unsupported_fields
    from ..text.request import check_request
    from ..text.tokenizer import ChatTokenizer
    from ..weights.cache import open_checkpoint
    from .answers import answer
    from .chat import Chat

    params = sampling(args, GREEDY)
    name = SMALL_CHECKPOINT if args.model is None else args.model
    checkpoint = open_checkpoint(name, cache=args.cache, use_cache=not args.no_cache)
    if args.model is None:
        say("model: the small checkpoint of this repository (--model for another)")
    config = checkpoint.config
    tokenizer = ChatTokenizer(checkpoint.directory, instruct=args.instruct)
    token_ids = [tokenizer.encode(prompt) for prompt in prompts]
    if args.chat:
        context = args.max_seq_len or min(CHAT_CONTEXT, config.context)
        defaults = read_generation_config(checkpoint.directory)
        params = sampling(args, default_sampling(defaults))
        for field in unsupported_fields(defaults):
            say(f"note: generation_config.json sets {field}, which is not supported")
    else:
        longest = max(map(len, token_ids)) + args.max_new_tokens
        context = args.max_seq_len or min(max(CONTEXT, longest), config.context)
        check_request(token_ids, args.max_new_tokens, context, vocab_size=config.vocab_size)

    if sys.stderr.isatty():
        complain(f"opening {args.mesh}: ttnn takes seconds to import")
    with open_model(
        checkpoint,
        mesh=args.split,
        backend=args.backend,
        recipe=args.recipe,
        users=max(1, min(len(prompts), MAX_USERS * args.split.dp)),
        max_seq_len=context,
        tokenizer=tokenizer,
        on_host=args.sample_on == "host",
        speculate=args.speculate,
    ) as model:
        how = "greedy" if params.greedy else params
        say(f"\n{args.split}, recipe {args.recipe}, below ttnn {model.backend}")
        say(f"context {context} tokens, sampling {how}")
        if args.chat:
            Chat(model, params, args.stop, context, args.max_new_tokens).run()
        else:
            answer(model, prompts, token_ids, params, args)


if __name__ == "__main__":
    run(main)
