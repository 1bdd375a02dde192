"""The demo's prompts and output, without a model."""

import json
from argparse import Namespace

import pytest

from models.demos.qwen25_7b.demo.answers import Answer, Speed, show
from models.demos.qwen25_7b.demo.options import read_prompts

ANSWERS = [Answer("a\x1b[2J\nb" * 9, 30, "\x9b\r\n!", 3, "stop"), Answer("c", 4, "e" * 500, 12, "length")]


@pytest.mark.parametrize("users, expected", [(None, ["a", "b"]), (1, ["a"]), (5, ["a", "b", "a", "b", "a"])])
def test_prompts_are_repeated_or_cut_to_the_batch_size(tmp_path, users, expected):
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps(["a", {"prompt": "b"}]))
    args = Namespace(prompts=file, prompt_file=None, prompt=None, batch_size=users)
    assert read_prompts(args) == expected


FILES = {
    "list": '["a", {"prompt": "b"}]',
    "list over lines": '[\n "a",\n {"prompt": "b", "id": 1}\n]\n',
    "lines": '{"prompt": "a"}\n{"prompt": "b"}',
    "lines of strings": '"a"\n"b"\n',
    "empty lines": '\n{"prompt": "a"}\n\n{"prompt": "b"}\n\n',
}


@pytest.mark.parametrize("mark", (b"", b"\xef\xbb\xbf"))
@pytest.mark.parametrize("end", ("\n", "\r\n"))
@pytest.mark.parametrize("name", ("p.json", "p.jsonl", "p"))
@pytest.mark.parametrize("form", FILES)
def test_a_file_of_prompts_in_every_form(tmp_path, form, name, end, mark):
    file = tmp_path / name
    file.write_bytes(mark + FILES[form].replace("\n", end).encode())
    args = Namespace(prompts=file, prompt_file=None, prompt=None, batch_size=None)
    assert read_prompts(args) == ["a", "b"]
    file.write_bytes(mark + "Hi\u2028you".encode())
    assert read_prompts(Namespace(prompts=None, prompt_file=file, batch_size=1)) == ["Hi\u2028you"]


def test_answers_are_complete_without_control_characters_and_a_cut_one_says_so(capsys):
    show(ANSWERS)
    out = capsys.readouterr().out
    assert "a\\x1b[2J" in out and "\x1b" not in out and "\x9b" not in out
    assert "e" * 500 + " [cut: --max-new-tokens]" in out and out.count("[cut") == 1


def test_speed_tells_prefill_from_decode_while_users_take_turns():
    """Two users run one at a time. The second user's prefill does not count as decode time."""
    times = iter((0.0, 4.0, 5.0, 9.0, 10.0))
    speed = Speed(users=2, at_once=1, clock=lambda: next(times))
    for user in (0, 0, 1, 1):
        speed.add(user)
    assert "4000 ms" in f"{speed}" and "1.00 tokens/s, 1.00 tokens/s/user" in f"{speed}"
