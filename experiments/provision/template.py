"""The texts of a start-up kit: an example ``silo.toml``, and how to reach the coordinator."""

import json

from client_app.policy import Policy
from experiments.provision.federation import Federation

# The two that every silo decides for itself; the rest are the policy's own defaults.
EPSILON, DELTA = 1.0, 1e-5
_TEXT = """\
# An example. Read it, set what your institution is willing to do, and save it as silo.toml in the silo's folder. It is
# your policy: whoever sent this example has no say in it. docs/operations.md and client_app/policy.py explain the keys.
[silo]
name = {name}
# Folder of the samples that 'fcfl data prepare' wrote, from here.
data = "samples"
# The silos this one will share a run with, and their identity keys; compare the fingerprints by telephone.
roster = "roster.toml"

# A request outside these limits is declined before any record is touched.
[policy]
# Budget of the data set over all runs, for one record.
epsilon = {epsilon}
delta = {delta}
# Least noise multiplier, greatest clipping norm, record sampling rate and number of local steps.
min_noise_multiplier = {min_noise_multiplier}
max_clip_norm = {max_clip_norm}
max_sampling_rate = {max_sampling_rate}
max_local_steps = {max_local_steps}
# Least expected contributors to a sum, least participation probability a plan may force, smallest roster.
min_cohort = {min_cohort}
min_probability = {min_probability}
min_enrolment = {min_enrolment}
# Hidden widths of the model agreed to.
hidden = {hidden}
# Noise from an announced seed: such a run is not private.
allow_seeded = {allow_seeded}
# Exact sums over validation and test records: not differentially private.
allow_metrics = {allow_metrics}
# Runs that protect the silo as a whole instead of each record.
allow_silo_unit = {allow_silo_unit}
# Runs among silos that only the coordinator vouches for.
allow_unpinned = {allow_unpinned}
# Least share of colluding silos that a regular graph of masks has to withstand, and whether it may rely on a
# coordinator that shows everyone the same lists.
min_corruption = {min_corruption}
allow_semi_honest_graph = {allow_semi_honest_graph}
"""


def example_settings(silo: str) -> str:
    """Return an example ``silo.toml`` with every key of the policy and what it is for."""
    policy = vars(Policy(EPSILON, DELTA))
    return _TEXT.format(name=json.dumps(silo), **{key: _toml(value) for key, value in policy.items()})


def connection_text(federation: Federation, silo: str) -> str:
    """Return how a silo reaches the coordinator; the first declared server is the one to connect to."""
    return (
        "# Where the SuperNode connects to, and the certificate it checks the server's against.\n"
        f"federation = {json.dumps(federation.name, ensure_ascii=False)}\n"
        f"silo = {json.dumps(silo)}\n"
        f"superlink = {json.dumps(federation.servers[0].endpoint)}\n"
        'root_certificates = "ca.crt"\n'
    )


def _toml(value: object) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)
