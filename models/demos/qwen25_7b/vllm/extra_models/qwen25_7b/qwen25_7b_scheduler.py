"""The plugin's scheduler, with requests that end as they should. qwen25_7b_for_vllm.py names it."""

from typing import Any

from vllm.v1.structured_output import backend_guidance
from vllm_tt_plugin.scheduler import TTScheduler


class Grammar(backend_guidance.GuidanceGrammar):
    """After an error llguidance allows the end of the answer alone, and vLLM takes that for a whole answer."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return super().accept_tokens(request_id, tokens) and not self.ll_matcher.get_error()


backend_guidance.GuidanceGrammar = Grammar


class Scheduler(TTScheduler):
    """The plugin drops the output of a prefill that finds no room, and schedules a decode step in its place.

    vLLM has put the ended requests into the first output. Their slots would stay taken, and a later prefill would end
    the engine. Here the next output has them again.
    """

    def _schedule_prefill_only(self) -> Any:
        output = super()._schedule_prefill_only()
        if output.total_num_scheduled_tokens == 0:
            self.finished_req_ids |= output.finished_req_ids
            self.reset_preempted_req_ids |= output.preempted_req_ids or set()
        return output
