"""A checkpoint gives back the very bits."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fcfl_strategy import checkpoint
from fcfl_strategy.errors import RunError
from fcfl_strategy.rounds import RunState
from fcfl_strategy.server_rule import ServerState
from privacy.count_filter import CountFilter
from privacy.filter import RenyiFilter
from privacy.release import FEATURE_BOUND
from privacy.scaling import FeatureScale
from secagg.messages import EpochOutcome
from tests.fcfl_strategy.made import PARAMETERS, make_settings, make_state


def same(first: RunState, second: RunState) -> bool:
    """Equality of every field, vectors and floats by their bits."""

    def bits(value: object) -> object:
        if isinstance(value, np.ndarray):
            return value.dtype.str, value.shape, value.tobytes()
        if isinstance(value, float):
            return value.hex()
        if isinstance(value, ServerState | RenyiFilter | CountFilter):
            return [type(value), *(bits(getattr(value, field.name)) for field in fields(value))]
        if isinstance(value, dict):
            return {name: bits(item) for name, item in value.items()}
        return value

    return all(bits(getattr(first, field.name)) == bits(getattr(second, field.name)) for field in fields(RunState))


vectors = arrays.arrays(np.float64, PARAMETERS, elements=st.floats(width=64))
finite = st.floats(0, 1e300)


@st.composite
def states(draw: st.DrawFn) -> RunState:
    made = make_state(make_settings())
    count = draw(st.integers(0, 5))
    outcomes = tuple(
        EpochOutcome(epoch, draw(st.sampled_from(["completed", "abandoned"])), ("silo-a", "silo-b"))
        for epoch in range(1, count + 1)
    )
    return replace(
        made,
        server=ServerState(
            draw(vectors),
            draw(vectors),
            draw(vectors),
            draw(vectors),
            draw(st.floats(allow_nan=False)),
            draw(st.integers(0, 2**60)),
        ),
        control_total=draw(vectors),
        average=draw(vectors),
        control_spread=draw(finite),
        control_noise=draw(finite),
        rounds=draw(st.integers(0, 2**60)),
        epoch=count,
        outcomes=outcomes,
        score_total=draw(st.floats(allow_nan=False)),
        divergence=draw(st.floats(allow_nan=False)),
        spent={
            "training": CountFilter(9, draw(st.floats(1e-9, 1)), 3.0, 5, 17.0, draw(st.integers(0, 9)), draw(finite)),
            "evaluation": RenyiFilter(draw(st.floats(1.01, 1e6)), 1e301, draw(finite)),
        },
        abandoned=draw(st.integers(0, 9)),
        empty=draw(st.integers(0, 9)),
        ledger_heads=draw(
            st.dictionaries(st.text(min_size=1, max_size=5), st.binary(min_size=40, max_size=40), max_size=3)
        ),
        evaluated=draw(st.booleans()),
    )


@settings(deadline=None, max_examples=25)
@given(state=states())
def test_load_gives_back_the_bits_of_what_was_dumped(state: RunState) -> None:
    """Also -0.0, subnormals, infinities and the payloads of NaN, which a text form would lose."""
    assert same(checkpoint.load(checkpoint.dump(state)), state)


def test_every_field_of_the_state_is_kept() -> None:
    """A new field that the checkpoint forgets would come back as its default."""
    state = make_state(make_settings())
    changed = replace(
        state,
        server=replace(state.server, noise_moment=0.1, updates=3, first_noise=0.2),
        control_total=state.control_total + 1,
        average=state.average + 2,
        control_spread=1.25,
        control_noise=0.3,
        rounds=1,
        epoch=2,
        outcomes=(EpochOutcome(1, "abandoned", ()),),
        score_total=3.3,
        divergence=0.7,
        spent={run: budget.charge(0.1) for run, budget in state.spent.items()},
        abandoned=1,
        empty=1,
        ledger_heads={"silo-a": b"h" * 40},
        evaluated=True,
        generation=4,
        scale=FeatureScale((0.1, -0.0), (1.0, 2.5), FEATURE_BOUND),
    )
    for field in fields(RunState):
        assert repr(getattr(changed, field.name)) != repr(getattr(state, field.name))
    assert same(checkpoint.load(checkpoint.dump(changed)), changed)


def test_equal_states_go_on_equally_after_a_second_round_trip() -> None:
    state = make_state(make_settings())
    assert same(checkpoint.load(checkpoint.dump(checkpoint.load(checkpoint.dump(state)))), state)


def test_a_checkpoint_of_another_schema_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = checkpoint.dump(make_state(make_settings()))
    monkeypatch.setattr(checkpoint, "SCHEMA", 4)
    with pytest.raises(RunError, match=r"schema 3, this software reads 4"):
        checkpoint.load(data)


@pytest.mark.parametrize("keep", [0, 1, 100, 700, -1])
def test_a_damaged_checkpoint_is_refused_in_one_line(keep: int) -> None:
    data = checkpoint.dump(make_state(make_settings()))
    with pytest.raises(RunError, match=r"journal/checkpoint: damaged") as caught:
        checkpoint.load(data[:keep])
    assert "\n" not in str(caught.value)


def test_a_checkpoint_with_other_bytes_is_refused() -> None:
    data = bytearray(checkpoint.dump(make_state(make_settings())))
    position = data.index(b"NUMPY") + 130
    data[position] ^= 1
    with pytest.raises(RunError, match=r"damaged"):
        checkpoint.load(bytes(data))


@pytest.mark.parametrize("missing", ["scale", "spent", "outcomes"])
def test_a_checkpoint_without_a_value_is_refused_in_one_line(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps = checkpoint.json.dumps
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.json, "dumps", lambda values: dumps({k: v for k, v in values.items() if k != missing}))
        data = checkpoint.dump(make_state(make_settings()))
    with pytest.raises(RunError, match="not as this software writes it"):
        checkpoint.load(data)
