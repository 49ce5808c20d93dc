"""Times functions side by side, so that what disturbs the machine disturbs all of them alike."""

from __future__ import annotations

import math
import random
import time
import timeit
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Call = Callable[[], object]
Clock = Callable[[], float]


def repetitions(call: Call, shortest: float, clock: Clock = time.perf_counter) -> int:
    """How often a function has to be called for a measurement of at least ``shortest`` seconds."""
    timer = timeit.Timer(call, timer=clock)
    timer.timeit(1)  # the first call also pays for what is loaded or compiled
    number = 1
    while (seconds := timer.timeit(number)) < shortest / 10:
        number *= 10
    return max(1, math.ceil(number * shortest / seconds))


def interleave(
    calls: Mapping[Key, Call],
    rounds: int,
    *,
    shortest: float = 2e-3,
    after_round: Call = lambda: None,
    clock: Clock = time.perf_counter,
) -> dict[Key, list[float]]:
    """Takes the time of every function once per round, each round in another order.

    Args:
        calls: What to time.
        rounds: Measurements of each.
        shortest: Seconds that a measurement takes at least; a fast function is called many times for it.
        after_round: Called after every round.
        clock: What tells the time. ``time.process_time`` is for one thread on a machine that is not idle.

    Returns:
        For every function, seconds per call, one number for each round.
    """
    numbers = {key: repetitions(call, shortest, clock) for key, call in calls.items()}
    times: dict[Key, list[float]] = {key: [] for key in calls}
    order = list(calls)
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)  # lest one always inherit the caches of the same other
        for key in order:
            timer, number = timeit.Timer(calls[key], timer=clock), numbers[key]
            if number > 1:
                timer.timeit(1)  # brings its data back into the caches
            times[key].append(timer.timeit(number) / number)
        after_round()
    return times
