"""Ctrl-C at a terminal reaches every process: those that ours start leave it to the one that started them."""

from __future__ import annotations

import multiprocessing
import signal

import pytest

if not hasattr(signal, "pthread_sigmask"):
    pytest.skip("needs masks of signals", allow_module_level=True)

from vlm.interrupts import blocked_interrupts


def is_blocked() -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def tell(pipe) -> None:
    pipe.send(is_blocked())


def test_a_process_that_is_started_meanwhile_never_sees_one():
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with blocked_interrupts():
        process = context.Process(target=tell, args=(theirs,))
        process.start()
    assert ours.recv() and not is_blocked()
    process.join()


def test_a_mask_of_the_callers_stays():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with blocked_interrupts():
            assert is_blocked()
        assert is_blocked()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
