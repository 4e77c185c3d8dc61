"""Who gets in: only under an expected name, with its code, once, with keys nobody has or had."""

from datetime import UTC, datetime, timedelta

import pytest

from experiments.provision import state
from experiments.provision.code import code_key, new_code
from experiments.provision.errors import ProvisionError
from experiments.provision.federation import Federation, Institution, Server
from experiments.provision.keys import Key, new_key, openssh_public
from experiments.provision.request import Request
from experiments.provision.state import State, Status
from privacy.signing import SigningKey
from secagg.pins import PinnedRoster

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
UNTIL = NOW + timedelta(days=14)
CODES = {name: code_key(new_code(), name, "code") for name in ("bank-a", "bank-b")}
KEYS: dict[str, tuple[SigningKey, Key]] = {name: (SigningKey.generate(), new_key()) for name in CODES}
DECLARED = Federation("Trial", (Server("fl.example.org"),), tuple(Institution(name, f"{name} plc") for name in CODES))


def request(name: str, *, keys: str = "", code: str = "", now: datetime = NOW, node: Key | None = None) -> Request:
    identity, key = KEYS[keys or name]
    used = node or key
    replaces = openssh_public(key) if node else ""
    secret = b"" if node else CODES[code or name]
    return Request.make(name, now, identity, used, openssh_public(used), key_of_code=secret, replaces=replaces)


@pytest.fixture
def expecting() -> State:
    return State().expect("bank-b", CODES["bank-b"], UNTIL, NOW).expect("bank-a", CODES["bank-a"], UNTIL, NOW)


@pytest.fixture
def enrolled(expecting: State) -> State:
    return expecting.admit(request("bank-a"), NOW, "r").admit(request("bank-b"), NOW, "r")


def test_enrolled_silos_are_in_the_roster_with_their_institutions(enrolled: State, expecting: State) -> None:
    assert PinnedRoster.parse(expecting.roster(DECLARED), "roster").pins == ()
    pins = PinnedRoster.parse(enrolled.roster(DECLARED), "roster").pins
    assert [(pin.name, pin.identity, pin.comment) for pin in pins] == [
        (name, KEYS[name][0].public_key, f"{name} plc") for name in ("bank-a", "bank-b")
    ]
    assert enrolled.revision == 2
    assert state.parse(enrolled.render(), "state.json") == enrolled


def test_a_code_is_gone_once_it_was_used_and_the_same_request_changes_nothing(enrolled: State) -> None:
    member = enrolled.need("bank-a")
    assert (member.code_key, member.code_until) == ("", "")
    assert CODES["bank-a"].hex().encode() not in enrolled.render()
    assert enrolled.admit(request("bank-a"), NOW, "r") is enrolled
    with pytest.raises(ProvisionError, match="enrolled since"):
        enrolled.admit(request("bank-a", now=NOW + timedelta(seconds=1)), NOW, "r")


def test_no_key_and_no_code_is_ever_shown(expecting: State) -> None:
    assert CODES["bank-a"].hex() not in repr(expecting)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ProvisionError, match="no silo bank-a is expected"):
        State().admit(request("bank-a"), NOW, "r")


def test_another_silos_code_or_an_ended_one_is_refused(expecting: State) -> None:
    with pytest.raises(ProvisionError, match="not made with the code that was given for bank-a"):
        expecting.admit(request("bank-a", code="bank-b"), NOW, "r")
    late = UNTIL + timedelta(seconds=1)
    with pytest.raises(ProvisionError, match="ended on 2026-03-16"):
        expecting.admit(request("bank-a", now=late), late, "r")
    again = expecting.expect("bank-a", CODES["bank-a"], late + timedelta(days=1), late)
    assert again.admit(request("bank-a", now=late), late, "r").need("bank-a")


def test_keys_of_another_silo_are_refused_whole_or_in_part(expecting: State) -> None:
    one = expecting.admit(request("bank-a"), NOW, "r")
    with pytest.raises(ProvisionError, match="identity key is that of bank-a"):
        one.admit(request("bank-b", keys="bank-a"), NOW, "r")
    identity, _ = KEYS["bank-b"]
    node = KEYS["bank-a"][1]
    mixed = Request.make("bank-b", NOW, identity, node, openssh_public(node), key_of_code=CODES["bank-b"])
    with pytest.raises(ProvisionError, match="node key is that of bank-a"):
        one.admit(mixed, NOW, "r")


def test_an_enrolled_silo_is_not_expected_again(enrolled: State) -> None:
    with pytest.raises(ProvisionError, match="'fcfl provision revoke' it first"):
        enrolled.expect("bank-a", CODES["bank-a"], UNTIL, NOW)


def test_a_node_key_changes_by_the_word_of_the_identity_and_the_old_one_never_returns(enrolled: State) -> None:
    fresh = new_key()
    noted = enrolled.note_node("bank-a", 7)
    changed = noted.admit(request("bank-a", node=fresh), NOW, "r")
    assert changed.need("bank-a").node_key == openssh_public(fresh)
    assert changed.need("bank-a").identity == enrolled.need("bank-a").identity
    assert changed.need("bank-a").node_id == 0
    assert changed.roster(DECLARED) == enrolled.roster(DECLARED)
    assert changed.revision == enrolled.revision + 1
    back = Request.make(
        "bank-a", NOW, KEYS["bank-a"][0], KEYS["bank-a"][1], openssh_public(KEYS["bank-a"][1]),
        replaces=openssh_public(fresh),
    )  # fmt: skip
    with pytest.raises(ProvisionError, match="revoked or replaced"):
        changed.admit(back, NOW, "r")


def test_a_node_key_is_not_changed_by_another_identity_or_for_another_key(enrolled: State) -> None:
    stranger = Request.make(
        "bank-a", NOW, SigningKey.generate(), (key := new_key()), openssh_public(key),
        replaces=enrolled.need("bank-a").node_key,
    )  # fmt: skip
    with pytest.raises(ProvisionError, match="not bank-a's"):
        enrolled.admit(stranger, NOW, "r")
    stale = Request.make("bank-a", NOW, KEYS["bank-a"][0], key, openssh_public(key), replaces=openssh_public(new_key()))
    with pytest.raises(ProvisionError, match="does not have here"):
        enrolled.admit(stale, NOW, "r")


def test_a_revoked_silo_is_out_of_the_roster_and_comes_back_only_with_a_code_and_a_new_node_key(
    enrolled: State,
) -> None:
    out = enrolled.revoke("bank-a", NOW)
    assert [pin.name for pin in PinnedRoster.parse(out.roster(DECLARED), "roster").pins] == ["bank-b"]
    assert out.revoke("bank-a", NOW + timedelta(days=1)) == out
    with pytest.raises(ProvisionError, match="was revoked"):
        out.admit(request("bank-a", now=NOW + timedelta(seconds=1)), NOW, "r")
    with pytest.raises(ProvisionError, match="revoked"):
        out.need("bank-a")
    again = out.expect("bank-a", CODES["bank-a"], UNTIL, NOW)
    with pytest.raises(ProvisionError, match=r"node key is that of bank-a|revoked or replaced"):
        again.admit(request("bank-a"), NOW, "r")
    fresh = new_key()
    back = Request.make("bank-a", NOW, KEYS["bank-a"][0], fresh, openssh_public(fresh), key_of_code=CODES["bank-a"])
    assert again.admit(back, NOW, "r").need("bank-a").identity == KEYS["bank-a"][0].public_key.hex()


def test_a_revoked_silos_identity_is_nobody_elses(enrolled: State) -> None:
    out = enrolled.revoke("bank-a", NOW).revoke("bank-b", NOW).expect("bank-b", CODES["bank-b"], UNTIL, NOW)
    fresh = new_key()
    taken = Request.make("bank-b", NOW, KEYS["bank-a"][0], fresh, openssh_public(fresh), key_of_code=CODES["bank-b"])
    with pytest.raises(ProvisionError, match="identity key is that of bank-a"):
        out.admit(taken, NOW, "r")


@pytest.mark.parametrize("first", [False, True])
def test_a_stolen_identity_never_comes_back(enrolled: State, first: bool) -> None:
    out = (enrolled.revoke("bank-a", NOW) if first else enrolled).revoke("bank-a", NOW, stolen=True)
    again = out.expect("bank-a", CODES["bank-a"], UNTIL, NOW)
    fresh = new_key()
    back = Request.make("bank-a", NOW, KEYS["bank-a"][0], fresh, openssh_public(fresh), key_of_code=CODES["bank-a"])
    with pytest.raises(ProvisionError, match="revoked or replaced"):
        again.admit(back, NOW, "r")


def test_only_known_silos_are_revoked_or_noted(enrolled: State) -> None:
    for step in (lambda: enrolled.revoke("bank-z", NOW), lambda: enrolled.note_node("bank-z", 1)):
        with pytest.raises(ProvisionError, match="bank-z: not known here"):
            step()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-20],
        lambda text: text.replace("state/1", "state/2"),
        lambda text: text.replace('"enrolled"', '"member"', 1),
        lambda text: text.replace('"bank-a"', '"bank-z"', 1),
        lambda text: text.replace('"node_key": "ecdsa', '"node_key": "rsa', 1),
        lambda text: text.replace('"revision": 2', '"revision": "2"'),
        lambda text: "[]",
        lambda text: "5",
    ],
)
def test_a_damaged_state_is_refused_and_not_mended(enrolled: State, change: object) -> None:
    assert callable(change)
    with pytest.raises(ProvisionError, match=r"state\.json"):
        state.parse(change(enrolled.render().decode()).encode(), "state.json")


def test_expected_silos_survive_the_file(expecting: State) -> None:
    found = state.parse(expecting.render(), "state.json")
    assert found == expecting
    assert found.members[0].status is Status.EXPECTED
