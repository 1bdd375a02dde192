"""The table of reasoning parsers, for a server with --reasoning-parser deepseek_r1."""

from functools import partial

from options_client import Client, Row, expect, refused
from options_sampling import CHAT, SHORT

THOUGHT, ANSWER = "The capital of France", " Paris"


def reasoning(client: Client) -> str:
    """An answer with think tags, as a grammar or the chat template gives it."""
    text = f"{THOUGHT}</think>{ANSWER}"
    (choice,) = client.chat(SHORT, max_tokens=60)
    expect(choice, f"{choice}{text}")
    return "works"


ROWS = [
    Row("`--reasoning-parser`", reasoning),
    Row(
        "`thinking_token_budget`",
        partial(
            refused,
            limit="us",
            words="the plugin ignores thinking_token_budget",
            path=CHAT,
            thinking_token_budget=8,
        ),
    ),
]
