"""What reading takes is counted, over threads and workers."""

from __future__ import annotations

import os
import pickle
import threading
from multiprocessing.reduction import ForkingPickler

import pytest
import torch.multiprocessing  # noqa: F401 - teaches ForkingPickler tensors

from loader.traffic import Traffic


def test_counts_add_up() -> None:
    traffic = Traffic()
    traffic.add(requests=2, fetched=1000)
    traffic.add(requests=1, wanted=900, cached=1)
    assert (traffic.requests, traffic.fetched, traffic.wanted, traffic.cached) == (3, 1000, 900, 1)
    assert traffic.as_dict() == {
        "requests": 3, "fetched": 1000, "wanted": 900, "downloads": 0, "cached": 1, "repeated": 0,
    }  # fmt: skip
    assert repr(traffic) == (
        "<Traffic: 3 requests, 1,000 bytes for 900 wanted; 0 downloads, 1 from the cache; 0 repeated>"
    )
    traffic.reset()
    assert not any(traffic.as_dict().values())
    with pytest.raises(AttributeError, match="no attribute 'request'"):
        _ = traffic.request


def test_threads_share_one() -> None:
    traffic = Traffic()
    threads = [
        threading.Thread(target=lambda: [traffic.add(requests=1, fetched=3) for _ in range(2000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (traffic.requests, traffic.fetched) == (8000, 24_000)


def test_workers_are_counted_forked_or_pickled() -> None:
    traffic = Traffic().share()
    traffic.add(requests=1)
    for worker in range(2):
        child = os.fork()
        if child == 0:
            traffic.of_worker(worker)
            traffic.add(requests=10)
            os._exit(0)
        os.waitpid(child, 0)
    sent = pickle.loads(bytes(ForkingPickler.dumps(traffic)))
    sent.of_worker(3)
    sent.add(requests=100)
    assert traffic.requests == sent.requests == 121


def test_a_fork_while_it_is_counted() -> None:
    traffic = Traffic().share()
    with traffic._lock:  # as another thread may
        child = os.fork()
        if child == 0:
            traffic.of_worker(0)
            traffic.add(requests=1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert traffic.requests == 1


def test_a_pickle_of_one_that_is_not_shared() -> None:
    traffic = Traffic()
    traffic.add(fetched=5)
    other = pickle.loads(pickle.dumps(traffic))
    other.add(fetched=5)
    assert (traffic.fetched, other.fetched) == (5, 10)
