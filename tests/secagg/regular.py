"""A federation over a regular graph, with parameters relaxed far enough for a dozen silos."""

from dataclasses import dataclass

from secagg.graph import RegularGraph
from secagg.graph_parameters import Degree, Rates
from secagg.messages import Run
from tests.secagg.federation import Federation

# Three of twelve may be missing, nobody is corrupt; a few bits only.
RELAXED = Rates(corruption=0.0, dropout=0.25, active=False, security=3, correctness=1)

SIX = Degree(6, 4)


@dataclass
class Regular(Federation):
    degree: Degree = SIX
    rates: Rates = RELAXED

    def __post_init__(self) -> None:
        super().__post_init__()
        graph = RegularGraph.of(self.degree, self.rates, [self.nonces[s] for s in self.ids])
        self.run = Run(2, self.run_id, self.run.roster, self.degree.t, 0, graph)
        self.run = Run.from_bytes(self.run.to_bytes())
