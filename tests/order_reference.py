"""The order once more, written from its specification in plain Python: slow, and sharing no line with it."""

from __future__ import annotations

import math

WORD = 2**64
G = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 % WORD
    z ^= z >> 27
    z = z * 0x94D049BB133111EB % WORD
    return z ^ z >> 31


def key(*words: int) -> int:
    h = 0
    for word in words:
        h = mix((h + word + G) % WORD)
    return h


def digit(i: int, v: int, m: int, k: int) -> int:
    y = ((v ^ k) + (i + 1) * 0x632BE59BD9B4E019) * G % WORD
    y = (y ^ y >> 32) * 0xD1B54A32D192ED03 % WORD
    return (y >> 32) * m >> 32


def bijection(x: int, n: int, k: int) -> int:
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    while True:
        left, right = divmod(x, b)
        for i in range(8):
            if i % 2 == 0:
                left = (left + digit(i, right, a, k)) % a
            else:
                right = (right + digit(i, left, b, k)) % b
        x = left * b + right
        if x < n:
            return x


def epoch_order(
    counts: list[int], seed: int, epoch: int, shuffle_size: int, lanes: int, shuffle: bool
) -> list[tuple[int, int]]:
    shards = [shard for shard, count in enumerate(counts) if count]
    if shuffle:
        h = key(seed, epoch, 0)
        ranked = sorted((mix((h + G * number) % WORD), number) for number in range(len(shards)))
        shards = [shards[number] for _, number in ranked]
    dealt = [shards[lane::lanes] for lane in range(lanes)]
    window_number = 0
    sequences = []
    for own in dealt:
        size = sum(counts[shard] for shard in own)
        wanted = max(1, math.floor(size / shuffle_size + 0.5))
        places = math.ceil(size / wanted)
        windows: dict[int, list[tuple[int, int]]] = {}
        begin = 0
        for shard in own:
            window = windows.setdefault(begin // places, [])
            window.extend((shard, sample) for sample in range(counts[shard]))
            begin += counts[shard]
        sequence = []
        for window in windows.values():
            k = key(seed, epoch, 1, window_number)
            window_number += 1
            n = len(window)
            sequence += [window[bijection(x, n, k) if shuffle else x] for x in range(n)]
        sequences.append(sequence)
    shortest = min(map(len, sequences))
    even = [sequence[place] for place in range(shortest) for sequence in sequences]
    return even + [sample for sequence in sequences for sample in sequence[shortest:]]
