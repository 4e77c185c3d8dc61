"""Host names and texts: one accepted form, and a reason for every refusal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.provision import names
from experiments.provision.errors import ProvisionError
from experiments.provision.federation import Federation, Institution, Server, parse

LABELS = st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
HOSTS = st.lists(LABELS, min_size=1, max_size=5).map(".".join)
TEXT = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), max_size=20).filter(str.isprintable)


@pytest.mark.parametrize(
    ("given_name", "wanted"),
    [
        ("FL.Example.org.", "fl.example.org"),
        ("superlink", "superlink"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("straße.de", "xn--strae-oqa.de"),
        ("例え.jp", "xn--r8jz45g.jp"),
        ("a" * 63 + ".org", "a" * 63 + ".org"),
    ],
)
def test_host_names_come_out_as_certificates_carry_them(given_name: str, wanted: str) -> None:
    assert names.host_name(given_name, "--server") == wanted


@pytest.mark.parametrize(
    "bad",
    [
        *("", "*.example.org", "a_b.org", "-a.org", "a-.org", "a..org", "a" * 64 + ".org", ("a" * 60 + ".") * 5),
        *("a b", "a/b", "../x", "10.0.0.1", "1.2.3", "fl.org:443", "https://fl.org", "xn--\u00fc.org", None, 7),
    ],
)
def test_what_is_no_host_name_is_refused_by_name(bad: object) -> None:
    with pytest.raises(ProvisionError, match="--server"):
        names.host_name(bad, "--server")


@pytest.mark.parametrize("bad", ["fl.org", "10.0.0.0/8", "fe80::1%eth0", "", None, 5])
def test_what_is_no_single_address_is_refused(bad: object) -> None:
    with pytest.raises(ProvisionError, match="--ip"):
        names.address(bad, "--ip")


def test_names_of_federations_fit_a_certificate() -> None:
    assert names.federation_name("ü" * 32, "name") == "ü" * 32
    for bad in ("ü" * 33, "", " ", "a\nb", None):
        with pytest.raises(ProvisionError, match="64 bytes"):
            names.federation_name(bad, "name")


@given(
    st.builds(Server, HOSTS, st.integers(1, 65535), st.lists(HOSTS, unique=True, max_size=3).map(tuple)),
    TEXT.filter(lambda text: bool(text.strip())),
    st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,9}", fullmatch=True), unique=True, max_size=4),
    TEXT,
)
def test_a_declaration_reads_back_as_it_was_written(server: Server, name: str, silos: list[str], owner: str) -> None:
    if len(name.encode()) > 64 or server.host in server.names:
        return
    declared = Federation(name, (server,), tuple(Institution(silo, owner) for silo in silos))
    assert parse(declared.render(), "federation.toml") == declared


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "missing federation"),
        ("x = 1\n= 2", "line 2"),
        ("[federation]\n[[server]]\nhost='a'", r"\[federation\]: missing name"),
        ("[federation]\nname='f'", r"no \[\[server\]\]"),
        ("[federation]\nname='f'\nyears=1\n[[server]]\nhost='a'", "unknown key 'years'"),
        ("[federation]\nname='f'\nca_days=0\n[[server]]\nhost='a'", "ca_days = 0"),
        ("[federation]\nname='f'\nca_days=true\n[[server]]\nhost='a'", "ca_days = True"),
        ("[federation]\nname='f'\n[[server]]\nhost='a'\nport=70000", "number 1: port"),
        ("[federation]\nname='f'\n[[server]]\nhost='a'\nnames='b'", "expected lists"),
        ("[federation]\nname='f'\n[[server]]\nhost='a'\n[[server]]\nhost='A'", "a occurs twice"),
        ("[federation]\nname='f'\n[[server]]\nhost='a'\n[[silo]]\nname='b c'", "number 1: name"),
        ("[federation]\nname='f'\n[[server]]\nhost='a'\n[[silo]]\nname='b'\n[[silo]]\nname='b'", "b occurs twice"),
        ("[federation]\nname='f'\n[[server]]\nhost='a'\n[[silo]]\nname='b'\norganisation=\"x\\ny\"", "organisation"),
        ("silo = 5\n[federation]\nname='f'\n[[server]]\nhost='a'", r"tables \[\[silo\]\]"),
    ],
)
def test_a_bad_declaration_is_named_with_file_and_key(text: str, reason: str) -> None:
    with pytest.raises(ProvisionError, match=reason) as caught:
        parse(text, "federation.toml")
    assert str(caught.value).startswith("federation.toml")


def test_endpoints_are_in_the_form_flower_takes() -> None:
    assert Server.of("fl.example.org", 8443, [], [], "s").endpoint == "fl.example.org:8443"
    assert Server.of("10.0.0.1", 443, [], [], "s").endpoint == "10.0.0.1:443"
    assert Server.of("2001:DB8::1", 443, [], [], "s").endpoint == "[2001:db8::1]:443"
