"""The methods a run can choose, as what each has of the parts that not all have.

A part is a set of configuration keys. A key of a part that the chosen method lacks keeps a fixed value; setting it to
anything but that or its default is an error. ``docs/methods.md`` has the formulas.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = bool | int | float | str

PARTS: Mapping[str, Value] = {
    "local.proximal": 0.0,
    "local.proximal-max": 10.0,
    "local.drift-budget": 0.0,
    "local.adaptive-step": False,
    "local.normalise": False,
    "local.backtracks": 0,
    "local.loss-bound": 0.1,
    "drift.smoothing": 0.0,
    "drift.gain": 0.0,
    "drift.gain-rule": "constant",
    "server.momentum": 0.0,
    "server.second-moment": 0.0,
    "server.lookahead": 0.0,
    "server.interpolation": 1.0,
    "server.bias-correction": False,
    "server.preconditioner": "none",
    "server.noise-corrected": False,
    "server.jitter": 1e-8,
    "server.trust-region": 0.0,
    "server.shrinkage": False,
    "participation.drift-penalty": 0.0,
    "adaptive.step-size": 0.01,
    "adaptive.tau": 1e-3,
    "mime.gradient-share": 0.2,
}
"""Every key that some methods lack, with the value that switches it off (or has no effect)."""

OF_OTHERS = frozenset({"adaptive.step-size", "adaptive.tau", "mime.gradient-share"})


@dataclass(frozen=True)
class Method:
    """What one method has.

    Attributes
    ----------
    label : str
        Its name in tables and figures.
    doc : str
        One line for people.
    has : frozenset of str
        Keys of `PARTS` that can be set.
    fixed : mapping of str to value
        Values of the method itself; these keys cannot be set.
    defaults : mapping of str to value
        Defaults of the method where that of the table means "off".
    update_only : bool
        Whether nothing but the update leaves a silo, so that the silo can be the unit of privacy (errata E6).
    """

    label: str
    doc: str
    has: frozenset[str] = frozenset()
    fixed: Mapping[str, Value] = field(default_factory=dict)
    defaults: Mapping[str, Value] = field(default_factory=dict)
    update_only: bool = True

    @property
    def lacks(self) -> Mapping[str, Value]:
        """Keys that cannot be set, and the value each has."""
        return {name: off for name, off in PARTS.items() if name not in self.has} | dict(self.fixed)


_MOMENTUM = frozenset({"server.momentum"})
_ADAPTIVE = _MOMENTUM | {"server.second-moment", "adaptive.step-size", "adaptive.tau"}

METHODS: Mapping[str, Method] = {
    "fcfl": Method("FCFL", "the whole method; every part has a switch", has=frozenset(PARTS) - OF_OTHERS),
    "fedavg": Method("FedAvg", "weighted mean of the silos' models", fixed={"local.proximal-constant": 0.0}),
    "fedprox": Method(
        "FedProx", "FedAvg with a proximal term of constant strength", defaults={"local.proximal-constant": 0.1}
    ),
    "scaffold": Method(
        "SCAFFOLD", "control variates, option II", fixed={"drift.smoothing": 1.0, "drift.gain": 1.0}, update_only=False
    ),
    "mime": Method(
        "MIME", "server momentum in the local steps", has=_MOMENTUM | {"mime.gradient-share"}, update_only=False
    ),
    "fednova": Method(
        "FedNova",
        "normalised mean of updates of unequal length",
        has=frozenset({"local.drift-budget", "local.adaptive-step"}),
        fixed={"local.normalise": True},
    ),
    "fedavgm": Method("FedAvgM", "server momentum", has=_MOMENTUM),
    "fedadam": Method("FedAdam", "Adam at the server", has=_ADAPTIVE, fixed={"server.step-size": 1.0}),
    "fedyogi": Method("FedYogi", "Yogi at the server", has=_ADAPTIVE, fixed={"server.step-size": 1.0}),
}


def having(name: str) -> tuple[str, ...]:
    """Methods in which a key can be set."""
    return tuple(method for method, one in METHODS.items() if name not in one.lacks)


PRESETS: Mapping[str, Mapping[str, Value]] = {
    "paper": {
        "method": "fcfl",
        "dp.epsilon": 1.0,
        "dp.delta": 1e-5,
        "dp.schedule": "divergence",
        "local.steps": 5,
        "drift.gain": 1.0,
        "server.momentum": 0.9,
        "server.second-moment": 0.999,
        "server.step-size": 1.0,
        "server.lookahead": 0.8,
        "server.interpolation": 1.0,
        "server.bias-correction": True,
        "server.preconditioner": "raw",
        "server.jitter": 1e-8,
        "server.trust-region": 1e8,
    },
}
"""Named overlays of the configuration. ``paper``: what the paper states for its own runs (its sections 4.1, 4.2, 6 and
6.8), where it states something; the trust region is that of its eq. 12, which with its jitter never binds. The loss
then grows by orders of magnitude (errata E3)."""
