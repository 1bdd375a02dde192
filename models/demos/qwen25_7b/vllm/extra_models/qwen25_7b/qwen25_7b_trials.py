"""Trials of grammars, before the engine has them."""

import asyncio
import json
import logging
import os
import resource
import signal
from contextlib import suppress
from hashlib import sha256
from http import HTTPStatus
from threading import Lock
from typing import Any, Optional

import numpy as np

CPU_SECONDS, SECONDS = 5, 60  # for the compilation of a grammar; the second is for a process that hangs
REMEMBERED = 1024
SMALL = 10_000  # characters
AT_ONCE, WAITING = {True: 2, False: 1}, {True: 64, False: 4}  # by whether a grammar is small


class GrammarTrials:
    """Compiles a grammar in a process of its own, because it can take minutes, or end the process.

    A grammar that compiles can still fail at its first token. The answer is remembered, and not the grammar.
    """

    def __init__(self, backend: Any, busy: type[Exception]):
        """backend: vLLM's GuidanceBackend. busy: vLLM's error with a status_code."""
        self._backend = backend
        self._busy = busy
        self._forks = Lock()
        self._problems: dict[bytes, tuple[bool, asyncio.Future[str]]] = {}
        # A small grammar does not wait for a large one.
        self._free = {small: asyncio.Semaphore(at_once) for small, at_once in AT_ONCE.items()}

    async def check(self, kind: Any, grammar: str, text: Optional[str] = None) -> None:
        """ValueError: the grammar cannot be used, or the text is not whole by it. kind, grammar: vLLM's key of it."""
        key = sha256(f"{kind} {text!r} {grammar}".encode("utf-8", "surrogatepass")).digest()
        if key not in self._problems:
            small = len(grammar) < SMALL
            if sum(kin == small and not problem.done() for kin, problem in self._problems.values()) > WAITING[small]:
                error = self._busy("structured output: too many grammars wait for their trial, try again")
                error.status_code = HTTPStatus.TOO_MANY_REQUESTS
                raise error
            if len(self._problems) == REMEMBERED:
                del self._problems[next(iter(self._problems))]
            # A task of its own, which goes on for other requests where its first one ends.
            self._problems[key] = small, asyncio.ensure_future(self._in_turn(small, kind, grammar, text))
        if problem := await asyncio.shield(self._problems[key][1]):
            raise ValueError(f"structured output: {problem}")

    async def _in_turn(self, small: bool, *trial: Any) -> str:
        async with self._free[small]:
            return await asyncio.to_thread(self._refusal, *trial)

    def _refusal(self, *trial: Any) -> str:
        with self._forks:  # another child would hold this pipe open
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                self._answer(writer, *trial)
            os.close(writer)
        with open(reader, encoding="utf-8", errors="replace") as answer:
            problem = answer.read()
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            return problem
        slow = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM)
        return f"takes more than {CPU_SECONDS} s to compile" if slow else "too large to compile"

    def _answer(self, writer: int, *trial: Any) -> None:
        try:
            signal.alarm(SECONDS)
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
            logging.disable()
            problem = self._first_error(*trial)
        except BaseException as error:  # of vLLM and llguidance, whatever they raise
            foreign = f"not of a form that vLLM takes ({type(error).__name__}: {error})"
            problem = f"{error}" if isinstance(error, ValueError) else foreign
        problem = problem.partition("<state>")[0][:300]  # llguidance's own state comes after it
        os.write(writer, " ".join(problem.split()).encode("utf-8", "replace"))
        os._exit(0)

    def _first_error(self, kind: Any, grammar: str, text: Optional[str]) -> str:
        if text is not None:
            from llguidance import LLTokenizer

            self._backend.ll_tokenizer = LLTokenizer("byte")
            compiled = self._backend.compile_grammar(kind, grammar)
            fits = compiled.ll_matcher.consume_tokens(compiled.ll_tokenizer.tokenize_str(text))
            whole = fits and compiled.ll_matcher.is_accepting()
            return "" if whole else "a stop ends the answer where its grammar cannot end"
        if grammar.startswith("{"):
            with suppress(json.JSONDecodeError):
                json.loads(grammar, parse_int=_check_integer, object_hook=_check_bounds)
        compiled = self._backend.compile_grammar(kind, grammar)
        mask = self._backend.allocate_token_bitmask(1)
        for _ in range(2):
            compiled.fill_bitmask(mask, 0)
            error = compiled.ll_matcher.get_error()
            if error or compiled.ll_matcher.is_stopped():
                return error or ""
            token = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little").argmax()
            if not compiled.accept_tokens("", [int(token)]):
                return compiled.ll_matcher.get_error() or "no token fits"
        return ""


def _check_integer(digits: str) -> int:
    """ValueError for an integer of a schema that llguidance rounds. It reads float64, and writes at most 2**63 - 1."""
    if int(digits) not in (int(float(digits)), (1 << 63) - 1):
        raise ValueError(f"llguidance rounds {digits}: write it as a string")
    return int(digits)


def _check_bounds(schema: dict) -> None:
    """ValueError for bounds between which llguidance takes 0 although it is excluded."""
    excluded = [schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")]
    bounds = [*excluded, schema.get("minimum"), schema.get("maximum")]
    is_zero_out = any(type(bound) in (int, float) and bound == 0 for bound in excluded)
    if is_zero_out and any(isinstance(bound, float) and 0 < abs(bound) < 1 for bound in bounds):
        raise ValueError(f"llguidance does not exclude 0 between the bounds of {schema}")
