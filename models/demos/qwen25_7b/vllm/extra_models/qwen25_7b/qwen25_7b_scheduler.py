"""The plugin's scheduler, with requests that end as they should. qwen25_7b_for_vllm.py names it."""

import json
import logging
from copy import copy
from typing import Any

import llguidance
from vllm.v1 import structured_output
from vllm.v1.structured_output import backend_guidance
from vllm_tt_plugin.scheduler import TTScheduler

# Keywords of JSON Schema: their values are no schemas, or map names to schemas.
VALUES = {"const", "default", "enum", "examples"}
MAPS = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}


class Grammar(backend_guidance.GuidanceGrammar):
    """After its end or an error llguidance allows the end of the answer alone, and vLLM takes any token."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        ended = self.ll_matcher.is_stopped()
        accepted = super().accept_tokens(request_id, tokens) and not self.ll_matcher.get_error()
        return accepted and (not ended or tokens == [self.ll_tokenizer.eos_token])

    def check_error(self) -> None:
        """vLLM's logs the error. The answer to the request says it."""


class Backend(backend_guidance.GuidanceBackend):
    """llguidance cannot go on where a grammar asks for the text of an added token, such as <tool_call>.

    Only a grammar that names an added token, such as a structural tag, gets the tokenizer that has them.
    """

    def __post_init__(self):
        super().__post_init__()
        self.named = copy(self)
        content = json.loads(self.tokenizer.backend_tokenizer.to_str())
        special = [token for token in content["added_tokens"] if token["special"]]
        content |= {"added_tokens": special, "padding": None, "truncation": None}
        size, end = self.ll_tokenizer.vocab_size, self.tokenizer.eos_token_id
        self.ll_tokenizer = llguidance.LLTokenizer(json.dumps(content), n_vocab=size, eos_token=end)

    def compile_grammar(self, kind: Any, grammar: str) -> Grammar:
        compiled = super().compile_grammar(kind, grammar)
        if "unknown special token" in compiled.ll_matcher.get_error():
            compiled = super(Backend, self.named).compile_grammar(kind, grammar)
        return compiled


def close_objects(schema: Any, is_map: bool = False) -> None:
    """Let objects have their named properties alone. vLLM's also changes the values of const and enum."""
    for part in schema if isinstance(schema, list) else ():
        close_objects(part)
    if not isinstance(schema, dict):
        return
    for key, part in schema.items():
        if is_map or key not in VALUES:
            close_objects(part, not is_map and key in MAPS)
    if not is_map and ("properties" in schema or "patternProperties" in schema):
        schema.setdefault("additionalProperties", False)


backend_guidance._walk_json_for_additional_properties = close_objects
backend_guidance.GuidanceGrammar = Grammar
structured_output.GuidanceBackend = Backend
scheduler_log = logging.getLogger("vllm.v1.core.sched.scheduler")
scheduler_log.addFilter(lambda record: "grammar rejected tokens" not in record.msg)  # the request gets 400


class Scheduler(TTScheduler):
    """The plugin drops the output of a prefill that finds no room, for a decode step in its place.

    The first output has the ended requests. Their slots would stay taken, until a prefill ends the engine.
    """

    def _schedule_prefill_only(self) -> Any:
        output = super()._schedule_prefill_only()
        if output.total_num_scheduled_tokens == 0:
            self.finished_req_ids |= output.finished_req_ids
            self.reset_preempted_req_ids |= output.preempted_req_ids or set()
        return output
