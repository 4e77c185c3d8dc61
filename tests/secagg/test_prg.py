"""The mask generator: the documented stream, uniform, and separate between keys and segments."""

import hashlib
import hmac

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB

from secagg import prg
from secagg.cbor import encode
from secagg.errors import ProtocolError


def reference_stream(key: bytes, name: str, size: int) -> bytes:
    """The documentation's words, without the library's HKDF and counter mode."""
    subkey = hmac.new(key, encode([b"fcfl-secagg/2/segment", name]) + b"\x01", hashlib.sha256).digest()
    block = Cipher(AES256(subkey), ECB()).encryptor()
    return b"".join(block.update(i.to_bytes(16, "big")) for i in range(-(-size // 16)))[:size]


@pytest.mark.parametrize(("bits", "length"), [(32, 1), (32, 7), (64, 9), (32, 1000), (64, 70_001), (32, 140_003)])
def test_a_mask_is_the_documented_stream_across_chunks(bits: int, length: int) -> None:
    key = bytes(range(32))
    wanted = np.frombuffer(reference_stream(key, "A", length * bits // 8), f"<u{bits // 8}")
    mask = prg.expand(key, "A", length, bits)
    assert mask.dtype == wanted.dtype
    assert (mask == wanted).all()


def test_adding_then_subtracting_a_mask_gives_the_vector_back() -> None:
    vector = np.arange(100_000, dtype=np.uint32) * np.uint32(50_000)
    masked = vector.copy()
    prg.add_masks(masked, [prg.Mask(bytes(32))], "A")
    assert (masked != vector).mean() > 0.999
    prg.add_masks(masked, [prg.Mask(bytes(32), subtract=True)], "A")
    assert (masked == vector).all()


@pytest.mark.parametrize(("dtype", "length"), [(np.uint32, 70_001), (np.uint64, 20_003)])
def test_many_masks_at_once_are_the_sum_of_each(dtype: type, length: int) -> None:
    masks = [prg.Mask(bytes([i]) * 32, subtract=i % 3 == 0) for i in range(prg.STREAMS + 3)]
    total = np.arange(length, dtype=dtype)
    expected = total.copy()
    for mask in masks:
        alone = prg.expand(mask.key, "A", length, 8 * total.itemsize)
        expected = expected - alone if mask.subtract else expected + alone
    prg.add_masks(total, iter(masks), "A")
    np.testing.assert_array_equal(total, expected)


def test_a_mask_does_not_show_its_key() -> None:
    assert "key" not in repr(prg.Mask(b"k" * 32))


def test_keys_words_of_a_key_in_another_order_and_segments_give_unrelated_masks() -> None:
    key = bytes(range(32))
    rotated = key[4:] + key[:4]
    masks = [prg.expand(k, name, 4096, 32) for k, name in ((key, "A"), (rotated, "A"), (key[::-1], "A"), (key, "B"))]
    masks.append(prg.expand(bytes(32), "A", 4096, 32))
    masks.append(prg.expand(b"abcd" * 8, "A", 4096, 32))
    for i, one in enumerate(masks):
        for other in masks[i + 1 :]:
            assert (one == other).sum() <= 2


def test_every_ring_value_occurs_the_top_one_included() -> None:
    words = prg.expand(b"k" * 32, "A", 1 << 20, 32).view(np.uint16)
    counts = np.bincount(words, minlength=1 << 16)
    assert counts.min() > 0
    chi_square = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    degrees = (1 << 16) - 1
    assert abs(chi_square - degrees) < 6 * (2 * degrees) ** 0.5


def test_keys_of_another_length_are_refused() -> None:
    with pytest.raises(ProtocolError, match="32 bytes"):
        prg.expand(bytes(16), "A", 4, 32)


def test_secure_uniforms_are_uniform_in_zero_to_one_and_fresh() -> None:
    draw = prg.secure_uniforms()
    u, v = draw(100_000), draw(100_000)
    assert u.dtype == np.float64
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.006
    counts = np.histogram(u, 100, (0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 200
    assert (u != v).all()
