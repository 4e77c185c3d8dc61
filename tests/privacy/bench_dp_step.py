"""Time of one DP-SGD step against plain autograd: `python -m tests.privacy.bench_dp_step` from the repository's root.

Rounds are interleaved and CPU time is taken, so that load on the machine moves both sides.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

from privacy.dpsgd import private_gradient
from privacy.mlp import Mlp
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream

RATE, RECORDS, ROUNDS = 0.1, 10_000, 40


def main() -> None:
    torch.set_num_threads(1)
    model, stream = Mlp(), RandomStream.from_os()
    rng = np.random.default_rng(0)
    features = rng.standard_normal((RECORDS, model.features)).astype(np.float32)
    targets = rng.standard_normal(RECORDS).astype(np.float32)
    params = torch.from_numpy(model.initial_parameters(0))
    params[-321:] = 0.05
    tracked = params.clone().requires_grad_()
    plan = MechanismPlan(RATE, 1.0, 3.77, 5, RECORDS)

    def private() -> None:
        private_gradient(model, params, features, targets, plan, stream)

    def plain() -> None:
        rows = stream.poisson_sample(RECORDS, RATE)
        blocks = [tracked[block.span].view(block.shape) for block in model.layout]
        hidden = torch.from_numpy(features[rows])
        for index, width in enumerate(model.hidden):
            weight, bias, gain, shift = blocks[4 * index : 4 * index + 4]
            hidden = functional.layer_norm(
                functional.gelu(functional.linear(hidden, weight, bias)), [width], gain, shift
            )
        loss = ((hidden @ blocks[-2] + blocks[-1] - torch.from_numpy(targets[rows])) ** 2 / 2).mean()
        torch.autograd.grad(loss, tracked)

    def cpu(step: Callable[[], None]) -> float:
        start = time.process_time()
        step()
        return (time.process_time() - start) * 1e3

    private()
    plain()
    pairs = [(cpu(private), cpu(plain)) for _ in range(ROUNDS)]
    ratio = statistics.median(left / right for left, right in pairs)
    print(f"B about {int(RATE * RECORDS)}, {model.size} parameters, one thread, {ROUNDS} interleaved rounds, CPU time")
    print(f"private: min {min(p for p, _ in pairs):.1f} ms, median {statistics.median(p for p, _ in pairs):.1f} ms")
    print(f"plain:   min {min(p for _, p in pairs):.1f} ms, median {statistics.median(p for _, p in pairs):.1f} ms")
    print(f"ratio:   median {ratio:.2f}")


if __name__ == "__main__":
    main()
