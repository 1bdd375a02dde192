"""A bad option or prompt gives status 2 and one line that names it. Nothing is loaded."""

import json

import pytest

from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer


def test_a_missing_prompt_file(refused, tmp_path):
    assert "absent.json" in refused("--prompts", tmp_path / "absent.json")
    assert "nnnnn" in refused("--prompts", "n" * 5000)
    assert "it is a directory" in refused("--prompts", tmp_path)


def test_an_endless_prompt_file(refused):
    assert "/dev/zero" in refused("--prompts", "/dev/zero")


def test_a_deeply_nested_prompt_file(refused, tmp_path):
    (tmp_path / "prompts.json").write_text("[" * 200_000 + "]" * 200_000)
    assert "prompts.json" in refused("--prompts", tmp_path / "prompts.json")


def test_a_prompt_of_50_mb_is_refused_before_it_is_tokenized(refused, tmp_path, monkeypatch):
    (tmp_path / "prompts.json").write_text(json.dumps(["short", "many words " * 5_000_000]))
    monkeypatch.setattr(ChatTokenizer, "encode", lambda *_: pytest.fail("tokenized"))
    message = refused("--prompts", tmp_path / "prompts.json", "--max-seq-len", "4096")
    assert "prompt 1" in message and "55000000 bytes" in message and "4096" in message


@pytest.mark.parametrize("prompt", ["a\udcff", "\ud83d", "\udc00\ud800"])
def test_a_prompt_that_is_not_text(refused, tmp_path, prompt):
    """Command-line bytes that are not UTF-8 become surrogates. JSON can hold lone surrogates."""
    assert "--prompt" in refused("--prompt", prompt)
    (tmp_path / "prompts.json").write_text(json.dumps(["text", prompt]))
    assert "prompt 1" in refused("--prompts", tmp_path / "prompts.json")


@pytest.mark.parametrize(
    "contents, named",
    [("[", "prompts.json"), ("\xff", "prompts.json"), ("{}", "prompts.json"), ("[]", "holds no prompts"),
     ('["a", 3]', "item 1"), ('["a", {"text": "b"}]', "item 1"), ('["a", "  "]', "prompt 1"),
    ],
)  # fmt: skip
def test_a_prompt_file_of_another_form(refused, tmp_path, contents, named):
    file = tmp_path / "prompts.json"
    file.write_bytes(contents.encode("latin-1"))
    assert named in refused("--prompts", file)


@pytest.mark.parametrize(
    "argv, named",
    [
        (["--prompt", ""], ["prompt 0"]),
        (["--prompt", " \n"], ["prompt 0"]),
        (["--batch-size", "0"], ["--batch-size", "0"]),
        (["--max-new-tokens", "0"], ["max_new_tokens", "0"]),
        (["--max-new-tokens", "4090"], ["4090", "4096"]),
        (["--max-new-tokens", "1020", "--max-seq-len", "1024"], ["1020", "1024"]),
        (["--max-new-tokens", "5000", "--max-seq-len", "4096"], ["5000", "4096"]),
        (["--max-seq-len", "-1"], ["--max-seq-len", "-1"]),
        (["--max-seq-len", "0"], ["--max-seq-len", "0"]),
        (["--max-seq-len", "4097"], ["--max-seq-len", "4097", "4096", "max_position_embeddings"]),
        (["--max-seq-len", "9" * 4000], ["--max-seq-len", "4096"]),
        (["--prompt", "word " * 5000], ["4096"]),
        (["--prompt", "word " * 1200, "--max-seq-len", "1024"], ["1024"]),
        (["--mesh", "N200"], ["N200", "N150, N300, T3K"]),
        (["--mesh", "\x1b[2J\u202e"], ["\\x1b[2J", "N150, N300, T3K"]),
        (["--mesh\x1b[2J"], ["--mesh\\x1b[2J"]),
        (["--recipe", "int3"], ["--recipe", "int3", "bfp8-kv8"]),
        (["--max-new-tokens", "many"], ["--max-new-tokens", "many"]),
        (["--max-new-tokens", "9" * 5000], ["--max-new-tokens"]),
        (["--prompt", "a", "--prompts", "b"], ["--prompt", "--prompts"]),
        (["--banana"], ["--banana"]),
        (["--tp", "3"], ["N300", "3"]),
        (["--tp", "0"], ["N300", "0"]),
        (["--mesh", "N150", "--tp", "2"], ["N150", "2"]),
        (["--temperature", "-1"], ["temperature", "-1"]),
        (["--temperature", "nan"], ["temperature", "nan"]),
        (["--top-k", "-1"], ["top_k", "-1"]),
        (["--temperature", "1e-9"], ["temperature", "0.001", "1e-09"]),
        (["--top-p", "0"], ["top_p", "0"]),
        (["--top-p", "1.5"], ["top_p", "1.5"]),
        (["--temperature", "1", "--seed", "9" * 30], ["seed", "9" * 30]),
        (["--temperature", "1", "--seed", "-1"], ["seed", "-1"]),
        (["--batch-size", "1000000000"], ["--batch-size", "1 to 100000"]),
        (["--batch-size", "-1"], ["--batch-size", "-1"]),
        (["--batch-size", "1.5"], ["--batch-size", "1.5"]),
        (["--cache", ""], ["--cache", "empty"]),
        (["--cache", "a\0b"], ["--cache", "zero"]),
        (["--prompts", ""], ["--prompts", "empty"]),
        (["--prompt-file", ""], ["--prompt-file", "empty"]),
        (["--prompt-file", "/dev/zero"], ["--prompt-file /dev/zero", "device"]),
        (["--prompt-file", "/dev/urandom"], ["--prompt-file /dev/urandom", "device"]),
        (["--prompt-file", "/"], ["--prompt-file /", "directory"]),
        (["--prompt-file", "nothing"], ["--prompt-file nothing", "not found"]),
        (["--prompt-file", "a\0b"], ["--prompt-file", "zero"]),
        (["--prompts", "/dev/null"], ["--prompts /dev/null", "device"]),
        (["--out", ""], ["--out", "empty"]),
        (["--out", "/"], ["--out /", "directory"]),
        (["--out", "/dev/null"], ["--out /dev/null", "exists"]),
        (["--out", "/dev/null/file"], ["--out /dev/null/file", "Not a directory"]),
        (["--out", "/proc/answers"], ["--out /proc/answers"]),
        (["--out", "n" * 300], ["--out nnn", "too long"]),
        (["--out", "n" * 5000], ["--out nnn", "too long"]),
        (["--out", "."], ["--out .", "directory"]),
        (["--out", "x", "--chat"], ["--out", "--chat"]),
        (["--chat", "--prompts", "x"], ["--chat", "--prompts"]),
        (["--verify-cache", "--no-cache"], ["--verify-cache", "--no-cache"]),
        (["--cache", "x", "--no-cache"], ["--cache", "--no-cache"]),
        (["--stop", ""], ["stop", "one character"]),
        (["--stop", "\udcff"], ["--stop", "UTF-8"]),
        (["--speculate", "0"], ["speculate", "1 to 8"]),
        (["--speculate", "9"], ["speculate", "1 to 8"]),
        (["--speculate", "2", "--sample-on", "host"], ["speculate", "host"]),
        (["--sample-on", "gpu"], ["--sample-on", "gpu"]),
        (["--backend", "cuda"], ["--backend", "cuda", "golden"]),
        (["--tp", "-1"], ["N300", "-1"]),
        (["--tp", "1.5"], ["--tp", "1.5"]),
        (["--tp", "9" * 30], ["N300", "999"]),
        (["--mesh", ""], ["--mesh", "N150, N300, T3K"]),
        (["--mesh", "N300 "], ["--mesh", "'N300 '"]),
        (["--recipe", ""], ["--recipe", "bfp8-kv8"]),
        (["--recipe", "nothing.json"], ["nothing.json", "not found"]),
        (["--temperature", "inf"], ["temperature", "inf"]),
        (["--temperature", "hot"], ["--temperature", "hot"]),
        (["--top-k", "1.5"], ["--top-k", "1.5"]),
        (["--top-k", "9" * 5000], ["--top-k"]),
        (["--top-p", "nan"], ["top_p", "nan"]),
        (["--repetition-penalty", "0"], ["repetition_penalty", "1e-30 to 1e+30"]),
        (["--repetition-penalty", "1e-46"], ["repetition_penalty", "1e-46"]),
        (["--repetition-penalty", "inf"], ["repetition_penalty", "inf"]),
        (["--seed", "1.5"], ["--seed", "1.5"]),
        (["--seed", f"{1 << 32}"], ["seed", f"{1 << 32}"]),
        (["--max-new-tokens", "-5"], ["max_new_tokens", "-5"]),
        (["--max-new-tokens", "9" * 30], ["999", "4096"]),
        (["--max-seq-len", "1e3"], ["--max-seq-len", "1e3"]),
        (["--model", "/etc/passwd"], ["/etc/passwd", "directory"]),
        (["--model", "/dev/zero"], ["/dev/zero", "directory"]),
        (["--model", "a/b/c"], ["a/b/c", "directory"]),
        (["--model", "."], ["config.json", "not found"]),
        (["--model", "a\0b"], ["a\\x00b"]),
        (["--model", "\udcff"], ["\\udcff"]),
        (["more"], ["more"]),
        (["--prompt"], ["--prompt", "one argument"]),
    ],
    ids=lambda value: ascii(" ".join(value))[1:40],
)
def test_impossible_options_are_named(refused, argv, named):
    message = refused(*argv)
    assert all(name in message for name in named), message
