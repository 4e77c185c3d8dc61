"""Cost of exact noise on the grid against float64 normals: `python -m tests.privacy.bench_noise`.

Rounds are interleaved and CPU time is taken, so that load on the machine moves both sides.
"""

import statistics
import time
from collections.abc import Callable

import torch

from privacy.grid import Grid
from privacy.randomness import RandomStream

SIZE, ROUNDS = 121_281, 60


def main() -> None:
    torch.set_num_threads(1)
    stream = RandomStream.from_os()

    def cpu(draw: Callable[[], object]) -> float:
        start = time.process_time()
        draw()
        return (time.process_time() - start) * 1e3

    print(f"{SIZE} values, one thread, {ROUNDS} interleaved rounds, CPU time")
    for sigma in (1.0, 3.77, 30.0, 100.0):
        scale = Grid.of(1.0, sigma, SIZE, 1e4).noise
        stream.rounded_normal(SIZE, scale)
        pairs = [
            (cpu(lambda at=scale: stream.rounded_normal(SIZE, at)), cpu(lambda: stream.normal(SIZE)))
            for _ in range(ROUNDS)
        ]
        ratio = statistics.median(left / right for left, right in pairs)
        print(
            f"sigma {sigma:5.4g}: exact min {min(a for a, _ in pairs):.2f} ms, "
            f"float64 min {min(b for _, b in pairs):.2f} ms, ratio median {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
