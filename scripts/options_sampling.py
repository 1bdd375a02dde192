"""The table of sampling parameters. Answers are judged by Hugging Face's logits after the option's own formula."""

import math
from collections import Counter
from functools import partial

import torch
from options_client import CLOSE, Client, Row, expect, refused

SHORT = "What is the capital of France?"
LONG = "Tell a story about teacher Tom, doctor Anna and a fox."
HOT = 2.0  # temperature
CHAT = "/v1/chat/completions"


def tokens(choices: list[dict]) -> list[int]:
    (choice,) = choices
    return choice["token_ids"]


def greedy(client: Client) -> str:
    for question, most in ((SHORT, 16), (LONG, 64)):
        answer = tokens(client.complete(question, max_tokens=most))
        client.expect_ended(answer, most)
        client.expect_greedy(question, answer)
    return "works: 0 is Hugging Face's greedy text"


def seed(client: Client) -> str:
    answers = [tokens(client.complete(LONG, temperature=HOT, seed=n)) for n in (1, 2, 3, 1)]
    expect(answers[0] == answers[3], f"one seed, two texts: {answers[0]} and {answers[3]}")
    expect(answers[0] != answers[1] != answers[2], "three seeds have one text")
    return "works: one text for a seed, others for other seeds"


def as_greedy(client: Client, result: str, **body) -> str:
    """The parameters leave one candidate, so a hot request gets the greedy text."""
    for n in range(2):
        client.expect_greedy(LONG, tokens(client.complete(LONG, temperature=HOT, seed=n, **body)))
    return f"works: {result}"


def top_k_off(client: Client) -> str:
    """With seeds, so that both spellings of off give one text; it must differ from a text of few candidates."""
    body = dict(temperature=HOT, seed=5, max_tokens=32)
    texts = [tokens(client.complete(LONG, top_k=k, **body)) for k in (0, -1, 10**6)]
    expect(texts[0] == texts[1] == texts[2], f"0, -1 and 10**6 differ: {texts}")
    return "works: 0, -1 and any number above the vocabulary are one text"


def penalties(client: Client, result: str, **body) -> str:
    """The text goes on behind its end, where the model is less sure."""
    prompt = client.prompt(SHORT)
    repetition = body.get("repetition_penalty", 1.0)
    presence, frequency = body.get("presence_penalty", 0.0), body.get("frequency_penalty", 0.0)

    def change(logits: torch.Tensor, answer: list[int]) -> torch.Tensor:
        seen = list({*prompt, *answer} if repetition != 1 else ())
        logits[seen] = torch.where(
            logits[seen] > 0, logits[seen] / repetition, logits[seen] * repetition
        )
        for token, times in Counter(answer).items():
            logits[token] -= presence + frequency * times
        return logits

    longer = dict(ignore_eos=True, max_tokens=64)
    answer = tokens(client.complete(SHORT, **longer, **body))
    client.expect_greedy(SHORT, answer, change)
    plain = tokens(client.complete(SHORT, **longer))
    expect(answer != plain, "the penalty changes nothing here")
    return f"works: {result}"


def logit_bias(client: Client) -> str:
    banned, raised = tokens(client.complete(SHORT))[0], client.ids(" Paris")[0]
    for token, bias in ((raised, 100), (banned, -100), (raised, 3.5)):

        def change(logits: torch.Tensor, _: list[int]) -> torch.Tensor:
            logits[token] += bias
            return logits

        answer = tokens(client.chat(SHORT, logit_bias={str(token): bias}))
        client.expect_greedy(SHORT, answer, change)
        expect(bias != 100 or set(answer) == {token}, f"+100 does not force {token}: {answer}")
        expect(bias != -100 or token not in answer, f"-100 does not ban {token}: {answer}")
    return "works: 100 forces a token, -100 bans it, 3.5 is Hugging Face's logit and 3.5"


def only(allowed: list[int], logits: torch.Tensor, _: list[int]) -> torch.Tensor:
    return logits.index_fill(
        0, torch.tensor([i for i in range(len(logits)) if i not in allowed]), -math.inf
    )


def without(banned: list[list[int]], logits: torch.Tensor, answer: list[int]) -> torch.Tensor:
    """banned: sequences of tokens."""
    for *first, last in banned:
        if answer[len(answer) - len(first) :] == first:
            logits[last] = -math.inf
    return logits


def allowed_token_ids(client: Client) -> str:
    allowed = sorted(
        {token for text in (" the", " a", " fox", ".", " Tom") for token in client.ids(text)}
    )
    answer = tokens(client.complete(LONG, allowed_token_ids=allowed))
    expect(set(answer) <= {*allowed}, f"tokens outside of {allowed}: {answer}")
    client.expect_greedy(LONG, answer, partial(only, allowed))
    return "works: Hugging Face's best token of the allowed ones"


def bad_words(client: Client, words: list[str], result: str, **body) -> str:
    """Each word is in the greedy text, and has as many tokens with a space before it as without."""
    banned = [client.ids(space + word) for word in words for space in ("", " ")]
    answer = tokens(client.chat(LONG, max_tokens=48, bad_words=words, **body))
    text = client.tokenizer.decode(answer)
    expect(not any(f" {word} " in text for word in words), f"a banned word: {text!r}")
    client.expect_greedy(LONG, answer, partial(without, banned))
    (plain,) = client.complete(LONG, max_tokens=48)
    expect(all(f" {word} " in plain["text"] for word in words), f"not in {plain['text']!r}")
    return f"works: {result}"


def min_tokens(client: Client) -> str:
    def change(logits: torch.Tensor, answer: list[int]) -> torch.Tensor:
        return (
            without([[i] for i in client.stop_ids], logits, answer) if len(answer) < 24 else logits
        )

    answer = tokens(client.complete(SHORT, min_tokens=24, max_tokens=40))
    expect(len(answer) >= 24, f"{len(answer)} tokens")
    client.expect_greedy(SHORT, answer, change)
    return "works: no stop token among the first"


def ignore_eos(client: Client) -> str:
    (choice,) = client.complete(SHORT, ignore_eos=True, max_tokens=32, skip_special_tokens=False)
    expect(len(choice["token_ids"]) == 32 and choice["finish_reason"] == "length", f"{choice}")
    client.expect_greedy(SHORT, choice["token_ids"])
    expect(client.tokenizer.eos_token in choice["text"], f"no stop token in {choice['text']!r}")
    return "works, and `skip_special_tokens` false shows the stop tokens"


def stop(client: Client) -> str:
    (whole,) = client.complete(LONG, max_tokens=48)
    word = whole["text"].split()[6]
    cut = whole["text"][: whole["text"].index(word)]
    for kept in (False, True):
        (choice,) = client.complete(
            LONG, max_tokens=48, stop=["unseen", word], include_stop_str_in_output=kept
        )
        expect(choice["text"] == cut + word * kept, f"{choice['text']!r} for {cut + word * kept!r}")
        expect((choice["finish_reason"], choice["stop_reason"]) == ("stop", word), f"{choice}")
    return "works, with `include_stop_str_in_output`"


def stop_token_ids(client: Client) -> str:
    whole = tokens(client.complete(LONG, max_tokens=48))
    (choice,) = client.complete(LONG, max_tokens=48, stop_token_ids=[whole[9]])
    expect(
        choice["token_ids"] == whole[: whole.index(whole[9]) + 1],
        f"{choice['token_ids']} of {whole}",
    )
    expect((choice["finish_reason"], choice["stop_reason"]) == ("stop", whole[9]), f"{choice}")
    return "works"


def n(client: Client) -> str:
    body = dict(n=4, temperature=HOT, seed=3, max_tokens=24)
    first, second = (
        [c["token_ids"] for c in sorted(client.complete(LONG, **body), key=lambda c: c["index"])]
        for _ in range(2)
    )
    expect(len(first) == 4 and len(set(map(tuple, first))) == 4, f"not 4 texts: {first}")
    expect(first == second, "the same seed gives other texts")
    return "works: 4 with a seed are 4 texts, the same 4 each time"


def beam_search(client: Client) -> str:
    """The best of the beams is as likely, a token, as the greedy text, or likelier."""

    def likelihood(answer: list[int]) -> float:
        logits = client.logits(client.prompt(SHORT), answer).log_softmax(-1)
        return float(logits.gather(-1, torch.tensor(answer)[:, None]).mean())

    beams = client.complete(SHORT, use_beam_search=True, n=3)
    expect(len(beams) == 3, f"{len(beams)} beams")
    plain = tokens(client.complete(SHORT))
    best = client.ids(beams[0]["text"])
    expect(
        likelihood(best) >= likelihood(plain[: len(best)]) - CLOSE,
        f"{beams[0]} is worse than {plain}",
    )
    return "works"


def log_probs(client: Client) -> str:
    """Of the sampled token and of the five most likely ones, on both endpoints, greedy and hot."""
    worst = 0.0
    for temperature in (0, HOT):
        body = dict(temperature=temperature, seed=1, max_tokens=24)
        (choice,) = client.complete(LONG, logprobs=5, return_tokens_as_token_ids=True, **body)
        (chat,) = client.chat(
            LONG, logprobs=True, top_logprobs=5, return_tokens_as_token_ids=True, **body
        )
        content = chat["logprobs"]["content"]
        answers = [
            (
                choice["token_ids"],
                choice["logprobs"]["token_logprobs"],
                choice["logprobs"]["top_logprobs"],
            ),
            (
                chat["token_ids"],
                [token["logprob"] for token in content],
                [
                    {top["token"]: top["logprob"] for top in token["top_logprobs"]}
                    for token in content
                ],
            ),
        ]
        for answer, sampled, tops in answers:
            expected = client.logits(client.prompt(LONG), answer).log_softmax(-1)
            expect(
                len(answer) == len(sampled) == len(tops),
                f"{len(answer)} tokens, {len(sampled)} numbers",
            )
            for row, token, number, top in zip(expected, answer, sampled, tops):
                pairs = {int(name.partition(":")[2]): value for name, value in top.items()} | {
                    token: number
                }
                # vLLM's chat counts the sampled token among the five.
                likely = {
                    int(i)
                    for i in row.topk(4).indices
                    if row[i] > row.topk(5).values[4] + 2 * CLOSE
                }
                expect(likely <= {*pairs}, f"{pairs} have not all of {likely}")
                worst = max(worst, *(abs(float(row[i]) - value) for i, value in pairs.items()))
    expect(worst <= CLOSE, f"{worst:.3f} from Hugging Face's")
    return f"works, to 20 of them: within {worst:.3f} nats of Hugging Face's float32"


def echo(client: Client) -> str:
    asked = dict(prompt="The capital of France", echo=True, max_tokens=4)
    (choice,) = client.complete(SHORT, return_token_ids=False, **asked)
    expect(choice["text"].startswith("The capital of France"), f"{choice['text']!r}")
    return "works without `logprobs`"


def repetition_detection(client: Client) -> str:
    token = client.ids(" fox")[0]
    detection = dict(max_pattern_size=3, min_count=4)
    body = dict(logit_bias={str(token): 100}, max_tokens=40, repetition_detection=detection)
    (choice,) = client.complete(LONG, **body)
    expect(len(choice["token_ids"]) < 10, f"{choice}")
    return "works: ends the answer"


ROWS = [
    Row("`temperature`", greedy),
    Row("`seed`", seed),
    Row("`top_k`", partial(as_greedy, result="1 is the greedy text", top_k=1)),
    Row("`top_k` off", top_k_off),
    Row("`top_p`", partial(as_greedy, result="1e-6 is the greedy text", top_p=1e-6)),
    Row("`min_p`", partial(as_greedy, result="1 is the greedy text", min_p=1.0)),
    Row(
        "`repetition_penalty`",
        partial(penalties, result="Hugging Face's formula", repetition_penalty=1.3),
    ),
    Row("`presence_penalty`", partial(penalties, result="OpenAI's formula", presence_penalty=2.0)),
    Row(
        "`frequency_penalty`", partial(penalties, result="OpenAI's formula", frequency_penalty=2.0)
    ),
    Row("`logit_bias`", logit_bias),
    Row("`allowed_token_ids`", allowed_token_ids),
    Row("`bad_words` of one token", partial(bad_words, words=["red", "for"], result="in chat")),
    Row(
        "`bad_words` of several tokens",
        partial(
            refused,
            limit="RequestCheck",
            words="bad_words of several tokens need a penalty, else the plugin ignores them: add presence_penalty 1e-6",
            path=CHAT,
            bad_words=["red fox"],
        ),
    ),
    Row(
        "`bad_words` of several tokens with a penalty",
        partial(bad_words, words=["red fox"], result="in chat", presence_penalty=1e-6),
    ),
    Row(
        "`bad_words` of /v1/completions",
        partial(
            refused,
            limit="RequestCheck",
            words="/v1/completions of vLLM ignores bad_words",
            bad_words=["a"],
        ),
    ),
    Row("`min_tokens`", min_tokens),
    Row("`ignore_eos`", ignore_eos),
    Row("`stop`", stop),
    Row("`stop_token_ids`", stop_token_ids),
    Row("`n`", n),
    Row(
        "`n` above 1 with temperature 0",
        partial(
            refused,
            limit="vLLM",
            words="n must be 1 when using greedy sampling",
            n=4,
            temperature=0,
        ),
    ),
    Row(
        "`best_of`", partial(refused, limit="RequestCheck", words="vLLM ignores best_of", best_of=4)
    ),
    Row("`use_beam_search`", beam_search),
    Row("`logprobs`, `top_logprobs`", log_probs),
    Row(
        "`logprobs` above 20",
        partial(
            refused, limit="the plugin", words="which is greater than max allowed: 20", logprobs=21
        ),
    ),
    Row(
        "`prompt_logprobs`",
        partial(
            refused,
            limit="the plugin",
            words="Not yet supporting prompt_logprobs on tt",
            prompt_logprobs=1,
        ),
    ),
    Row("`echo`", echo),
    Row(
        "`echo` with `logprobs`",
        partial(
            refused,
            limit="the plugin",
            words="Not yet supporting prompt_logprobs on tt",
            echo=True,
            logprobs=1,
        ),
    ),
    Row(
        "`suffix`",
        partial(refused, limit="vLLM", words="suffix is not currently supported", suffix="x"),
    ),
    Row("`repetition_detection`", repetition_detection),
    Row(
        "`thinking_token_budget`",
        partial(
            refused,
            limit="RequestCheck",
            words="the plugin ignores thinking_token_budget",
            path=CHAT,
            thinking_token_budget=8,
        ),
    ),
]
