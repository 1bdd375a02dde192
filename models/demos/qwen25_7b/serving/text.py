"""Text to token ids and back: the checkpoint's tokenizer and chat template."""

from pathlib import Path

from models.common.errors import UserError


class Text:
    """instruct: wrap a prompt in the chat template as a user's turn, so that an instruct model answers it."""

    def __init__(self, directory: Path, *, instruct: bool):
        from transformers import AutoTokenizer, GenerationConfig

        try:
            self.tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        except Exception as error:  # what is missing or damaged decides which: OSError, ImportError, a bare Exception
            raise UserError(
                f"{directory} has no tokenizer that transformers can load ({type(error).__name__}): "
                "download the checkpoint again"
            ) from error
        if instruct and not self.tokenizer.chat_template:
            raise UserError(f"the tokenizer of {directory} has no chat template: run with --no-instruct")
        self.instruct = instruct
        self.stop_ids = {self.tokenizer.eos_token_id} - {None}
        generation = Path(directory) / "generation_config.json"
        if generation.exists():
            try:
                eos = GenerationConfig.from_pretrained(directory, local_files_only=True).eos_token_id
            except (OSError, ValueError) as error:
                raise UserError(f"{generation} cannot be read: download the checkpoint again, or remove it") from error
            self.stop_ids |= set(eos if isinstance(eos, list) else [eos]) - {None}

    def encode(self, prompt: str) -> list[int]:
        if not self.instruct:
            return self.tokenizer.encode(prompt)
        turn = [{"role": "user", "content": prompt}]
        return self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)

    def stream(self) -> "Stream":
        return Stream(self.tokenizer)


class Stream:
    """Text that grows token by token."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self.text = ""  # what has been given out

    def add(self, token: int, *, last: bool) -> str:
        """The text that `token` adds: empty while a character's bytes are incomplete, and for special tokens."""
        self.ids.append(token)
        whole = self.tokenizer.decode(self.ids, skip_special_tokens=True)
        if whole.endswith("\N{REPLACEMENT CHARACTER}") and not last:
            return ""
        new, self.text = whole[len(self.text) :], whole
        return new
