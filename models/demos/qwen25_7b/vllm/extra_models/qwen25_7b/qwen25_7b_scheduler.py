"""The plugin's scheduler, which tells its worker of every request that has ended. qwen25_7b_for_vllm.py names it."""

from typing import Any

from vllm_tt_plugin.scheduler import TTScheduler


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
