"""The table of endpoints, of what their answers count, and of the prefix cache."""

from functools import partial

from options_client import Client, Row, expect, refused
from options_sampling import CHAT, LONG, SHORT, tokens


def completions(client: Client) -> str:
    """Text and ids, one prompt and several."""
    ids = client.prompt(SHORT)
    expected = tokens(client.complete(SHORT))
    text = client.tokenizer.decode(ids)
    several = client.complete(SHORT, prompt=[text, client.tokenizer.decode(client.prompt(LONG))])
    expect(
        tokens(client.complete(SHORT, prompt=text)) == expected,
        "a prompt as text has another answer",
    )
    expect(several[0]["token_ids"] == expected, f"{several[0]}")
    client.expect_greedy(LONG, several[1]["token_ids"])
    return "works: prompts as text or token ids, one or several"


def chat(client: Client) -> str:
    (choice,) = client.chat(SHORT)
    client.expect_greedy(SHORT, choice["token_ids"])
    turns = [*client.messages(SHORT), {"role": "assistant", "content": "The capital"}]
    body = dict(messages=turns, continue_final_message=True, add_generation_prompt=False)
    (rest,) = client.chat(SHORT, **body)
    whole = "The capital" + rest["message"]["content"]
    expect(
        whole == choice["message"]["content"], f"{whole!r}, not {choice['message']['content']!r}"
    )
    return "works, with `continue_final_message`"


def stream(client: Client) -> str:
    (whole,) = client.complete(LONG, max_tokens=40)
    body = dict(prompt=client.prompt(LONG), temperature=0, max_tokens=40)
    events = list(client.stream("/v1/completions", stream_options={"include_usage": True}, **body))
    text = "".join(event["choices"][0]["text"] for event in events if event["choices"])
    expect(text == whole["text"], f"{text!r}, not {whole['text']!r}")
    expect(len(events) > 20, f"{len(events)} events for 40 tokens")
    expect(events[-1]["usage"]["completion_tokens"] == 40, f"{events[-1]}")
    return "works: a piece for each token, with `stream_options`"


def usage(client: Client) -> str:
    answer = client.answer(
        "/v1/completions", prompt=client.prompt(SHORT), temperature=0, max_tokens=5
    )
    counts = len(client.prompt(SHORT)), 5
    got = answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]
    expect(got == counts, f"{got}, not {counts}")
    prompt = client.prompt(LONG)
    cut = client.answer("/v1/completions", prompt=prompt, truncate_prompt_tokens=9, max_tokens=1)
    expect(cut["usage"]["prompt_tokens"] == 9, f"{cut}")
    return "works, with `truncate_prompt_tokens`"


def prefix_cache(client: Client) -> str:
    """Two prompts with a long common beginning: the second one finds whole blocks of it."""
    shared = client.prompt(LONG) * 12
    question = client.prompt(SHORT)
    hits = "vllm:prefix_cache_hits_total"
    answers, found = [], []
    for _ in range(2):
        before = client.metric(hits)
        answers.append(tokens(client.complete(SHORT, prompt=shared + question)))
        found.append(client.metric(hits) - before)
    logits = client.logits(shared + question, answers[1])
    gaps = logits.max(-1).values - logits[range(len(answers[1])), answers[1]]
    expect(
        answers[0] == answers[1] and gaps.max() <= 0.25,
        f"{answers}, {gaps.max():.2f} behind the first choice",
    )
    expect(found[1] >= len(shared) // 128 * 128, f"{found[1]:.0f} tokens found of {len(shared)}")
    return "works (vLLM's default): the text of an uncached prompt"


def tokenize(client: Client) -> str:
    asked = client.answer("/tokenize", messages=client.messages(SHORT))
    expect(asked["tokens"] == client.prompt(SHORT), f"{asked}")
    text = client.answer("/detokenize", tokens=asked["tokens"])["prompt"]
    expect(text == client.tokenizer.decode(client.prompt(SHORT)), f"{text!r}")
    return "work"


def generate(client: Client) -> str:
    body = dict(token_ids=client.prompt(SHORT), sampling_params=dict(temperature=0, max_tokens=16))
    (choice,) = client.answer("/inference/v1/generate", **body)["choices"]
    client.expect_greedy(SHORT, choice["token_ids"])
    return "works"


def other_protocols(client: Client) -> str:
    expected = client.chat(SHORT)[0]["message"]["content"]
    answer = client.answer("/v1/responses", input=SHORT, temperature=0, max_output_tokens=16)
    expect(answer["output"][-1]["content"][0]["text"] == expected, f"{answer['output']}")
    answer = client.answer(
        "/v1/messages", messages=client.messages(SHORT), temperature=0, max_tokens=16
    )
    expect(answer["content"][0]["text"] == expected, f"{answer['content']}")
    return "work"


def priority(client: Client) -> str:
    client.expect_greedy(SHORT, tokens(client.complete(SHORT, priority=3)))
    return "ignored by vLLM without `--scheduling-policy priority`"


def state(client: Client) -> str:
    for path in ("/health", "/ping", "/version", "/v1/models", "/metrics", "/load"):
        status = client.http.get(path).status_code
        expect(status == 200, f"{path}: status {status}")
    return "work"


ABSENT = partial(refused, limit="vLLM", words="Not Found")
ROWS = [
    Row("/v1/completions", completions),
    Row("/v1/chat/completions", chat),
    Row("`stream`", stream),
    Row("`usage`", usage),
    Row("`--enable-prefix-caching`", prefix_cache),
    Row("/tokenize, /detokenize", tokenize),
    Row("/inference/v1/generate", generate),
    Row("/v1/responses, /v1/messages", other_protocols),
    Row("/v1/models, /health, /ping, /version, /metrics, /load", state),
    Row("`priority`", priority),
    Row(
        "`chat_template`",
        partial(
            refused,
            limit="vLLM",
            words="--trust-request-chat-template is not set",
            path=CHAT,
            chat_template="{{ 1 }}",
        ),
    ),
    Row(
        "`prompt_embeds`",
        partial(
            refused,
            limit="vLLM",
            words="You must set `--enable-prompt-embeds`",
            prompt_embeds="AAAA",
        ),
    ),
    Row("/v1/embeddings", partial(ABSENT, path="/v1/embeddings", input="a")),
    Row("/pooling", partial(ABSENT, path="/pooling", input="a")),
    Row("/score", partial(ABSENT, path="/score", text_1="a", text_2="b")),
    Row("/rerank", partial(ABSENT, path="/rerank", query="a", documents=["b"])),
    Row(
        "/v1/load_lora_adapter",
        partial(ABSENT, path="/v1/load_lora_adapter", lora_name="a", lora_path="b"),
    ),
    Row("/sleep, without `VLLM_SERVER_DEV_MODE`", partial(ABSENT, path="/sleep")),
]
