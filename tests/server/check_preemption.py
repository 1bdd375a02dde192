"""Send more chats than a small cache holds, which join late: .venv-vllm/bin/python tests/server/check_preemption.py
[URL].

vLLM preempts requests then. Each text must be Hugging Face's, half of them with a presence penalty, which counts the
answer alone and not the prompt in which a preempted answer comes back. The server must live. The server is one such as

    make serve MESH=N150 ARGS="--max-num-seqs 8 --max-model-len 256 --num-gpu-blocks-override 9"
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from checked_server import CHAT, Server, expect

QUESTIONS = (
    "Tell a story about teacher Tom, doctor Anna and a fox.",
    "What is the capital of France?",
    "Count from one to ten.",
)
CHATS, AT_ONCE = 48, 16
PENALTIES = 0, 2.0
PREEMPTIONS = "vllm:num_preemptions_total"


def main() -> None:
    server = Server(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
    before, began = server.metric(PREEMPTIONS), time.monotonic()

    def chat(number: int) -> tuple[str, dict, list[int]]:
        time.sleep(number % 5)  # some join while others decode
        question, option = QUESTIONS[number % len(QUESTIONS)], {"presence_penalty": PENALTIES[number % 2]}
        return question, option, server.ask(question, CHAT, ignore_eos=True, max_tokens=36 + number * 7 % 30, **option)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(chat, range(CHATS)))
    for question, option, answer in [*answers, (QUESTIONS[1], {}, server.ask(QUESTIONS[1], CHAT))]:
        server.expect_greedy(server.prompt(question), answer, option)
    preempted = server.metric(PREEMPTIONS) - before
    expect(preempted, "no preemption: start the server with a smaller cache")
    print(f"{CHATS} chats have Hugging Face's texts, {preempted:.0f} preemptions, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
