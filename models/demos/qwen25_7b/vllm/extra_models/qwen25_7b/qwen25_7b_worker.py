"""The plugin's worker, which also closes its mesh: vllm serve ... --worker-cls qwen25_7b_worker.MeshWorker.

The plugin closes the mesh in __del__, which Python does not call when an engine ends. A mesh that stays open may need a
reset of the card. This worker closes it at a shutdown, after an error, and at SIGTERM, also while the model loads.
docs/vllm.md says when RowUpdates and Rows can go.
"""

import logging
import signal
import sys
from ctypes import CDLL
from multiprocessing.util import Finalize
from typing import Any, Optional

from vllm.config import set_current_vllm_config
from vllm.v1.sample.logits_processor import BatchUpdateBuilder
from vllm_tt_plugin.config import get_tt_config
from vllm_tt_plugin.input_batch import InputBatch
from vllm_tt_plugin.worker import TTWorker, close_mesh_device

logger = logging.getLogger("vllm.qwen25_7b")  # vLLM shows loggers below its own
PRIORITY = 100  # multiprocessing ends what has a priority, the highest first, before it ends the process


class RowUpdates(BatchUpdateBuilder):
    """Changes of the rows of logit_bias, min_p and min_tokens. vLLM clears a removed row after it sets an added one.

    The plugin's InputBatch.add_request leaves a row that it reuses among the removed rows.
    """

    def get_and_reset(self, batch_size: int) -> Any:
        added = {row for row, *_ in self.added}
        self._removed = [row for row in self._removed if row not in added]
        return super().get_and_reset(batch_size)


class Rows(InputBatch):
    """The plugin's batch. It gives vLLM's sampler the answers so far only beside a penalty; bad_words need them too.

    A tokenizer or generation_config.json may have tokens that the model has no row for. They cannot come, and the index
    would end the engine.
    """

    def add_request(self, request: Any, req_index: Optional[int] = None) -> None:
        params = request.sampling_params
        params._all_stop_token_ids = {token for token in params.all_stop_token_ids if token < self.vocab_size}
        words = params.bad_words_token_ids or ()
        params._bad_words_token_ids = [ids for ids in words if max(ids) < self.vocab_size] or None
        super().add_request(request, req_index)

    @property
    def no_penalties(self) -> bool:
        return super().no_penalties and not self.sampling.bad_words_token_ids


class MeshWorker(TTWorker):
    def init_device(self) -> None:
        """Open the mesh. A SIGTERM meanwhile is handled after it, because a mesh that is half open cannot be closed."""
        pending: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, _frame: pending.append(number))
        super().init_device()
        Finalize(self, self.shutdown, exitpriority=PRIORITY)
        Finalize(None, _leave, exitpriority=-PRIORITY)
        # Until the engine has its own handler, the default one would end the process at once.
        signal.signal(signal.SIGTERM, before if callable(before) else lambda *_: sys.exit())
        if pending:
            sys.exit()

    def load_model(self) -> None:
        """Load the model, which reads vLLM's config. The plugin sets none here."""
        with set_current_vllm_config(self.vllm_config):
            super().load_model()

    def determine_available_memory(self) -> int:
        """Return the bytes of the cache, of --num-gpu-blocks-override blocks if given, which the plugin ignores."""
        asked = self.cache_config.num_gpu_blocks_override
        size = super().determine_available_memory()
        if asked is not None:
            size = size // self.cache_config.num_gpu_blocks_override * asked
            self.cache_config.num_gpu_blocks_override = asked
        return size

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        super().initialize_from_config(kv_cache_config)
        batch = self.model_runner.input_batch
        batch.__class__ = Rows
        batch.sampling.batch_update_builder = RowUpdates()
        self.model_runner.model.prompt_lengths = batch.num_prompt_tokens

    def shutdown(self) -> None:
        """Release the traces and close the mesh. vLLM calls it when an engine ends; a second call does nothing."""
        mesh, self.mesh_device = self.mesh_device, None
        if mesh is None:
            return
        try:
            if model := getattr(getattr(self, "model_runner", None), "model", None):
                model.close()
        finally:
            close_mesh_device(mesh, get_tt_config(self.vllm_config))
        logger.info("The mesh is closed")


def _leave() -> None:
    """End this process by C's exit: Python would free its objects, which takes seconds with ttnn."""
    if sys.exc_info()[0] in (None, SystemExit):  # another exception goes its own way
        sys.stdout.flush()
        CDLL(None).exit(0)
