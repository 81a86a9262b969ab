"""The order of training samples, as a pure function of (seed, position).

Training is one endless stream that repeats the data set and shuffles it anew in each epoch (`repeat ->
shuffle`, vision_transformer/vit_jax/input_pipeline.py:218-224). Nothing is stored and no list is shuffled, so
a resumed run, another number of workers or other ranks meet the same samples at the same positions.
"""

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, the increment of SplitMix64
_ROUND_STEP = 0xD1B54A32D192ED03  # odd, with random-looking bits: rounds must not hash overlapping numbers
_ROUNDS = 12  # with 8 the orders of 5 samples are measurably uneven
_AUGMENTATION = 0x617567  # "aug" in ASCII: the stream of `sample_rng` is no other stream of the same seed


def sample_at(
    positions: NDArray[np.int64], num_samples: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Compute the epochs and sample ids at positions of the stream, both of the shape of `positions`.

    Positions count from 0, and there is at least one sample. Position p belongs to epoch p // num_samples;
    the ids of one epoch are a permutation of 0..num_samples-1.
    The cost of a position depends neither on its size nor on num_samples.
    """
    positions = np.asarray(positions, dtype=np.int64)
    # The position within the epoch is permuted by a key of the epoch and the seed. Both are hashed, so that
    # epoch 1 of seed 0 and epoch 0 of seed 1 have unrelated orders.
    epochs, places = np.divmod(positions.reshape(-1), num_samples)
    keys = _mix(epochs.astype(np.uint64) * np.uint64(_GOLDEN) + _mix(np.array([seed], dtype=np.uint64)))
    ids = _permute(places.astype(np.uint64), keys, num_samples).astype(np.int64)
    return epochs.reshape(positions.shape), ids.reshape(positions.shape)


def sample_rng(seed: int, epoch: int, sample_id: int) -> np.random.Generator:
    """Make the generator for one sample in one epoch: the same in any worker, on any rank, after any restart.

    Philox is counter-based: the seed is its key, epoch and sample are the upper half of its 256-bit counter,
    so that no two samples can meet in one stream of less than 2^128 numbers.
    """
    counter = (sample_id << 128) | (epoch << 192)
    return np.random.Generator(np.random.Philox(_Key(seed), counter=counter))  # type: ignore[arg-type]


class _Key(ISeedSequence):
    """The key of Philox, given as a seed sequence.

    `Philox(key=...)` would first read random bytes from the system and not use them, three times as slow.
    """

    def __init__(self, seed: int) -> None:
        self.state = np.array([seed, _AUGMENTATION], dtype=np.uint64)

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> NDArray[np.uint64]:
        return self.state


def _permute(places: NDArray[np.uint64], keys: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """Permute 0..size-1 by a key and return the values at `places`, each of which has a key of its own.

    This is a Feistel network on a grid of rows x columns >= size. Each round shifts one coordinate, modulo
    its side, by a hash of the other, which can be undone and so is a bijection of the grid. A place that
    lands outside 0..size-1 is permuted again until it is inside (cycle walking; Black and Rogaway, "Ciphers
    with Arbitrary Finite Domains", 2002, sections 3 and 4). The grid exceeds `size` by less than one side, so
    few places are permuted again.
    """
    side = int(np.ceil(np.sqrt(size)))  # of the smallest square that holds `size`
    rows, columns = np.uint64(side), np.uint64(-(-size // side))
    # Unsigned 64-bit numbers throughout: hashes wrap around modulo 2^64, as in the reference implementation.
    out = places.copy()
    walking = np.arange(len(places))
    while len(walking):
        row, column = np.divmod(out[walking], columns)
        key = keys[walking]
        for number in range(_ROUNDS):
            key = key + np.uint64(_ROUND_STEP)  # another hash in each round
            if number % 2:
                column = (column + _mix(row + key) % columns) % columns
            else:
                row = (row + _mix(column + key) % rows) % rows
        out[walking] = row * columns + column
        walking = walking[out[walking] >= size]
    return out


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash by the output function of SplitMix64 (Steele, Lea, Flood, 2014).

    The shifts and factors are that function's. Every input bit changes every output bit with a probability of
    about one half.
    """
    values = values * np.uint64(_GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
